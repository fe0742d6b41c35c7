#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What each entry header costs a compiler that is ours to keep: lines of this library's headers that are left after
# preprocessing (comments and blank lines gone). They depend neither on the machine nor on the versions of other libraries, so
# bench/compile_counts.txt holds them, and a test fails when a header grows by more than 3 %. Times: bench/compile.sh.
# Usage: bash bench/compile_counts.sh            compares with the file
#        bash bench/compile_counts.sh --update   writes it
# CXX, CXXFLAGS (include directories) as usual. Headers whose libraries are not installed are left out.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
baseline="$root/bench/compile_counts.txt"
read -r -a command <<< "${CXX:-g++} -std=c++20 ${CXXFLAGS:-} -I$root/include"
eigen=$(pkg-config --cflags eigen3 2> /dev/null || echo -I/usr/include/eigen3)
read -r -a eigen <<< "$eigen"
command+=("${eigen[@]}" -E -x c++ -)

entries=(unitscale/unitscale.hpp unitscale/numerics.hpp unitscale/formats/quantise.hpp unitscale/tensor/tensor.hpp
         unitscale/kernels/matmul.hpp unitscale/autograd/tape.hpp unitscale/ops/linear.hpp unitscale/nn/decoder.hpp
         unitscale/io/json_log.hpp unitscale/io/npz.hpp unitscale/train/step.hpp unitscale/train/language_run.hpp)
count() {  # the lines of our headers in what the preprocessor makes of an #include of $1
  printf '#include <%s>\n' "$1" | "${command[@]}" 2> /dev/null |
    awk -v prefix="\"$root/include/unitscale/" '/^# [0-9]+ "/ { ours = index($3, prefix) == 1; next }
                                                ours && NF { lines++ } END { print lines + 0 }'
}

failed=0
{
  echo "# Lines of this library after preprocessing, by entry header. Written by: bash bench/compile_counts.sh --update"
  for entry in "${entries[@]}"; do
    if lines=$(count "$entry"); then echo "$entry $lines"; else echo "# $entry: left out, a library is missing"; fi
  done
} > "${TMPDIR:-/tmp}/unitscale_compile_counts.$$"
result="${TMPDIR:-/tmp}/unitscale_compile_counts.$$"
trap 'rm -f "$result"' EXIT
if [[ ${1:-} == --update ]]; then
  cp "$result" "$baseline"
  cat "$baseline"
  exit
fi
while read -r entry lines; do
  [[ $entry == \#* ]] && { echo "$entry $lines"; continue; }
  held=$(awk -v entry="$entry" '$1 == entry { print $2 }' "$baseline")
  if [[ -z $held ]]; then
    echo "$entry: $lines lines, not in bench/compile_counts.txt; bash bench/compile_counts.sh --update"
    failed=1
  elif ((lines * 100 > held * 103)); then
    echo "$entry: $lines lines, more than 3 % above $held; find what it includes, or: bash bench/compile_counts.sh --update"
    failed=1
  else
    echo "$entry: $lines lines ($held)"
  fi
done < "$result"
exit "$failed"
