#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The documents give commands that check their claims; the tests that these commands name must exist.
# Usage: commands.sh SOURCE_DIRECTORY [BUILD_DIRECTORY]
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"
build=${2:-build/tests}

count=0
for document in README.md docs/*.md; do
  [[ -f $document ]] || continue
  while IFS= read -r command; do
    count=$((count + 1))
    pattern=${command#*-R }
    pattern=${pattern#\'} pattern=${pattern%\'}
    pattern=${pattern//\\|/|}  # in a table Markdown writes it so
    ctest --test-dir "$build" -N -R "$pattern" 2>&1 | grep -q '^Total Tests: [1-9]' ||
      fault "$document" "no test for '$command'"
  done < <(grep -oE "ctest --test-dir build/tests -R ('[^']*'|[^ \`]+)" "$document" | sort -u)
done
((count > 0)) || fault "the documents" "no command 'ctest --test-dir build/tests -R ...'"

finish "commands"
