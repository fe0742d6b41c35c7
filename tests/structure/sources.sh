#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every source names its licence; headers have #pragma once and stay short. Lines of C++ files and of shell scripts have
# at most 120 columns.   Usage: sources.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

while IFS= read -r file; do
  file=${file#./}
  # A script's first line is its interpreter, and a sourced one may tell shellcheck its dialect.
  [[ $(head -n 3 "$file") == *"SPDX-License-Identifier: MIT"* ]] ||
    fault "$file" "has no line 'SPDX-License-Identifier: MIT' at its start"
  if [[ $file == *.[hc]pp || $file == *.sh || $file == .ci/* ]]; then
    long=$(LC_ALL=C.UTF-8 grep -nE '^.{121,}$' "$file" | head -n 1 | cut -d : -f 1 || true)
    [[ -z $long ]] || fault "$file:$long" "is longer than 120 columns"
  fi
  [[ $file == *.hpp ]] || continue
  # The library's texts speak of arguments and fields. Only programs know options of a command line.
  option=$(grep -nE '["`]--[a-z][a-z-]+( [A-Z]+)?["`]' "$file" | head -n 1 | cut -d : -f 1 || true)
  [[ $file != include/* || $file == include/unitscale/report/* || -z $option ]] ||
    fault "$file:$option" "names an option of a command line"
  grep -qx '#pragma once' "$file" || fault "$file" "has no '#pragma once'"
  lines=$(wc -l < "$file")
  case $file in
    include/unitscale/unitscale.hpp) continue ;;
    include/unitscale/autograd/tape.hpp) limit=540 ;;     # one class: its invariants belong in one place
    include/unitscale/train/checkpoint.hpp) limit=435 ;;  # its reader undoes line by line what its writer does
    include/unitscale/ops/*) limit=150 ;;
    *) limit=400 ;;
  esac
  ((lines <= limit)) || fault "$file" "has $lines lines; at most $limit"
done < <(find . \( -path ./build -o -path ./.git -o -path ./.cache \) -prune -o -type f \
  \( -name '*.hpp' -o -name '*.cpp' -o -name '*.sh' -o -path './.ci/*' \
  -o -name '*.cmake' -o -name '*.cmake.in' -o -name CMakeLists.txt \) -print | LC_ALL=C sort)

finish "sources"
