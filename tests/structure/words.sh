#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# No file of the project names a path of one machine or says that it is unfinished.
# Usage: words.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

list_files() {  # tracked and new files, without ignored files; without git, all but the usual places of built files
  if [[ -e .git ]] && git ls-files -z --cached --others --exclude-standard 2>/dev/null; then return; fi
  find . \( -path ./build -o -path ./.git -o -path ./.cache \) -prune -o -type f -print0
}

# The patterns do not match themselves.
unfinished='\b(T[O]DO|F[I]XME|X[X]X)\b'
machine='(^|[^A-Za-z0-9_.~}/*-])/(home|root|work|tmp|Users|mnt|scratch)/[A-Za-z0-9_]'
search() {  # search <pattern> <meaning of a match>
  local file number rest
  while IFS=: read -r file number rest; do
    fault "${file#./}:$number" "$2: $rest"
  done < <(list_files | xargs -0 -r grep -nHIE -e "$1" -- 2>/dev/null | cut -c1-200)
}
search "$unfinished" "unfinished"
search "$machine" "a path of one machine"

finish "words"
