#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Programs shown in the documents are those of examples/, word for word.   Usage: snippets.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

block() {  # block <document> <how the block begins>: the first C++ block of the document that begins so
  awk -v start="$2" '/^```cpp/ { inside = 1; text = ""; next }
                     /^```/ { if (inside && index(text, start) == 1) { printf "%s", text; exit } inside = 0 }
                     inside { text = text $0 "\n" }' "$1"
}

shown() {  # shown <document> <how the block begins> <program>
  local text
  text=$(block "$1" "$2")
  if [[ -z $text ]]; then
    fault "$1" "has no C++ block that begins with '$2'"
  elif [[ ! -f $3 || $(< "$3") != *"$text"* ]]; then
    fault "$1" "the block that begins with '$2' is not in $3"
  fi
}

shown README.md '#include' examples/readme.cpp
shown docs/adding_an_op.md 'template' examples/custom_op.cpp
finish "snippets"
