#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# include/unitscale/unitscale.hpp includes every header once, in the order of the layers.
# Left out are headers that need nlohmann-json, libzip, ICU, PCRE2, SentencePiece, MPI or POSIX files, and headers that
# its head comment lists.
# The only other include, at its end, is unitscale/compiled.hpp, where a user asks for it.
# Usage: umbrella.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

umbrella=include/unitscale/unitscale.hpp
if [[ ! -f $umbrella ]]; then
  fault "$umbrella" "is not there"
  finish "umbrella header"
fi

# The head comment lists headers that are left out because of their compile time: indented, as <layer>/<thing>.hpp.
declare -A included=() rank=() left_out=()
while IFS= read -r name; do
  left_out[$name]=1
  [[ -f include/unitscale/$name ]] || fault "$umbrella" "leaves out $name, which is not there"
done < <(sed '/^#include/,$d' "$umbrella" | grep -E '^//   ' | grep -oE '[a-z0-9_]+/[a-z0-9_]+\.hpp' || true)
for i in "${!layers[@]}"; do rank[${layers[i]}]=$i; done
last=0
while IFS= read -r line; do
  [[ $line == '#include <unitscale/compiled.hpp>' ]] && continue
  if ! [[ $line =~ ^\#include\ \<unitscale/([a-z0-9_]+)/([a-z0-9_]+)\.hpp\> ]]; then
    fault "$umbrella" "'$line' is not #include <unitscale/<layer>/<thing>.hpp>"
    continue
  fi
  layer=${BASH_REMATCH[1]} name="${BASH_REMATCH[1]}/${BASH_REMATCH[2]}.hpp"
  if [[ -z ${rank[$layer]+known} || ! -f include/unitscale/$name ]]; then
    fault "$umbrella" "includes $name, which is not there"
    continue
  fi
  [[ -z ${included[$name]+twice} ]] || fault "$umbrella" "includes $name twice"
  included[$name]=1
  [[ -z ${left_out[$name]+out} ]] || fault "$umbrella" "includes $name, which its head comment leaves out"
  ((rank[$layer] >= last)) || fault "$umbrella" "includes $name after a later layer"
  last=${rank[$layer]}
  ! needs_json "$name" || fault "$umbrella" "includes $name, which needs nlohmann-json"
  ! needs_zip "$name" || fault "$umbrella" "includes $name, which needs libzip"
  ! needs_icu "$name" || fault "$umbrella" "includes $name, which needs ICU"
  ! needs_pcre2 "$name" || fault "$umbrella" "includes $name, which needs PCRE2"
  ! needs_sentencepiece "$name" || fault "$umbrella" "includes $name, which needs SentencePiece"
  ! needs_mpi "$name" || fault "$umbrella" "includes $name, which needs MPI"
  ! needs_posix "$name" || fault "$umbrella" "includes $name, which needs POSIX files"
done < <(grep -E '^[[:space:]]*#[[:space:]]*include' "$umbrella" || true)

for layer in "${layers[@]}"; do
  for header in "include/unitscale/$layer"/*.hpp; do
    name=${header#include/unitscale/}
    if [[ -e $header && -z ${included[$name]+there}${left_out[$name]+out} ]] && ! needs_json "$name" &&
      ! needs_zip "$name" && ! needs_icu "$name" && ! needs_pcre2 "$name" && ! needs_sentencepiece "$name" &&
      ! needs_mpi "$name" && ! needs_posix "$name"; then
      fault "$umbrella" "does not include $name"
    fi
  done
done

grep -A 2 -E '^#ifdef UNITSCALE_COMPILED( |$)' "$umbrella" | tail -n +2 | tr '\n' ' ' |
  grep -qx '#include <unitscale/compiled.hpp> #endif ' ||
  fault "$umbrella" "does not include compiled.hpp under #ifdef UNITSCALE_COMPILED"

finish "umbrella header"
