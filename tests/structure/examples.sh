#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The small examples, examples/<number>_<name>.cpp, can be read in order. They are numbered from 1 without a gap.
# Each has under 100 lines and begins with its number and its command; its output is kept. A model in examples/models/
# has at most 120 lines.
# The README and the tour list them in this order.
# Usage: examples.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

command='^// Run: g\+\+ -std=c\+\+20 -O2 -Iinclude( -I/usr/include/eigen3)? %s && \./a\.out$'
listed='' number=0
while IFS= read -r file; do
  number=$((number + 1))
  listed+="$file "
  [[ $file == examples/${number}_* ]] || fault "$file" "is example $number in order, but not numbered so"
  [[ $(sed -n 2p "$file") == "// $number. "* ]] || fault "$file" "its second line does not begin with '// $number. '"
  # shellcheck disable=SC2059  # the command is the format
  grep -qE "$(printf "$command" "$file")" "$file" || fault "$file" "has no line '// Run: g++ ... $file && ./a.out'"
  lines=$(wc -l < "$file")
  ((lines < 100)) || fault "$file" "has $lines lines; expected fewer than 100"
done < <(find examples -name '[0-9]*_*.cpp' | LC_ALL=C sort -V)
((number > 0)) || fault examples "has no <number>_<name>.cpp"

for document in README.md docs/tour.md; do
  found=''
  if [[ -f $document ]]; then
    found=$(grep -oE '\]\((\.\./)?examples/[0-9][^)]*' "$document" | sed -E 's@.*(examples/)@\1@' | tr '\n' ' ' || true)
  fi
  [[ $found == "$listed" ]] || fault "$document" "links to the examples ${found:-(none) }instead of $listed"
done

for program in examples/models/*.cpp; do
  [[ -e $program ]] || continue
  # shellcheck disable=SC2059  # the command is the format
  grep -qE "$(printf "$command" "$program")" "$program" ||
    fault "$program" "has no line '// Run: g++ ... $program && ./a.out'"
  lines=$(wc -l < "$program")
  ((lines <= 120)) || fault "$program" "has $lines lines; expected at most 120"
done

for program in examples/*.cpp examples/models/*.cpp; do
  [[ -e $program ]] || continue
  name=$(basename -- "$program" .cpp)
  if grep -q '^#include <CLI/' "$program"; then
    [[ -f tests/runs/$name.sh ]] || fault "$program" "has options, but no tests/runs/$name.sh"
  else
    [[ -f tests/runs/examples/$name.txt ]] || fault "$program" "has no tests/runs/examples/$name.txt"
  fi
done
for expected in tests/runs/examples/*.txt; do
  name=$(basename -- "$expected" .txt)
  [[ ! -e $expected || -f examples/$name.cpp || -f examples/models/$name.cpp ]] || fault "$expected" "has no example"
done

finish "examples"
