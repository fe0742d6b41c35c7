#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Programs shown in the documents equal the programs in examples/, word for word.   Usage: snippets.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

block() {  # block <document> <n>: its n-th C++ block
  awk -v wanted="$2" '/^```cpp/ { inside = ++count == wanted; next }
                      /^```/ { inside = 0 }
                      inside' "$1"
}

shown() {  # shown <document> <program> <n>...: its C++ blocks are n in the first program, then n in the next, and so on
  local document=$1 text program count=0 last=0 n=0
  shift
  if [[ -f $document ]]; then count=$(grep -c '^```cpp' "$document" || true); fi
  while (($# > 0)); do
    program=''
    if [[ -f $1 ]]; then program=$(< "$1"); fi
    last=$((last + $2))
    while ((n < last && n < count)); do
      n=$((n + 1))
      text=$(block "$document" "$n")
      if [[ -z $text || $program != *"$text"* ]]; then
        fault "$document" "C++ block $n, which begins with '${text%%$'\n'*}', is not in $1"
      fi
    done
    shift 2
  done
  ((count == last)) || fault "$document" "has $count C++ blocks instead of $last"
}

shown README.md examples/readme.cpp 1
shown docs/formats.md examples/1_formats.cpp 1
shown docs/adding_an_op.md examples/4_custom_op.cpp 2 examples/own_scale_rule.cpp 1 examples/4_custom_op.cpp 1
shown docs/pretrained.md examples/pretrained.cpp 1
shown docs/umup.md examples/width_transfer.cpp 3
shown docs/for_pytorch_users.md examples/own_loop.cpp 3
shown docs/own_model.md tests/consumers/own_model/main.cpp 1 examples/models/image_classifier.cpp 3
finish "snippets"
