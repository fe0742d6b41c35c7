#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Programs shown in the documents are those of examples/, word for word.   Usage: snippets.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

block() {  # block <document> <n>: its n-th C++ block
  awk -v wanted="$2" '/^```cpp/ { inside = ++count == wanted; next }
                      /^```/ { inside = 0 }
                      inside' "$1"
}

shown() {  # shown <document> <number of C++ blocks> <program>: each of them stands in the program
  local n text program='' count=0
  if [[ -f $1 ]]; then count=$(grep -c '^```cpp' "$1" || true); fi
  ((count == $2)) || fault "$1" "has $count C++ blocks instead of $2"
  if [[ -f $3 ]]; then program=$(< "$3"); fi
  for ((n = 1; n <= count; ++n)); do
    text=$(block "$1" "$n")
    if [[ -z $text || $program != *"$text"* ]]; then fault "$1" "C++ block $n, which begins with '${text%%$'\n'*}', is not in $3"; fi
  done
}

shown README.md 1 examples/readme.cpp
shown docs/adding_an_op.md 3 examples/4_custom_op.cpp
finish "snippets"
