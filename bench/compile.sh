#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compile times, in three parts:
# 1. An empty program that includes unitscale/unitscale.hpp, against one that includes Eigen/Core, xtensor/xarray.hpp
#    and xtensor/xnpy.hpp: medians of 5, taken in turn, and their ratio. The aim is a ratio of at most 1.6.
# 2. README's example with the headers alone and with unitscale::compiled: its object's size too (`size`: text).
# 3. Each entry header (bench/compile_entries.txt), in an empty program and with the use in its line there: medians of
#    3, taken in turn.
# Seconds are the compiler's user time, so that other programs on the machine have little effect.
# Usage: bash bench/compile.sh [--ratio]
# --ratio: parts 1 and 2 only. CXX, and CXXFLAGS for include directories and optimisation, as usual.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
read -r -a command <<< "${CXX:-g++} -std=c++20 ${CXXFLAGS:--O2} -I$root/include"
eigen=$(pkg-config --cflags eigen3 2> /dev/null || echo -I/usr/include/eigen3)
read -r -a eigen <<< "$eigen"
command+=("${eigen[@]}" -c)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TIMEFORMAT=%U
measure() {  # measure RUNS PROGRAM...: the seconds of $work/PROGRAM.cpp are lines of $work/PROGRAM.times
  local runs=$1 run program
  shift
  for ((run = 0; run <= runs; ++run)); do  # run 0 fills the file cache and is not counted
    for program in "$@"; do
      { time "${command[@]}" -o /dev/null "$work/$program.cpp"; } 2> "$work/time" || { cat "$work/time" >&2; exit 1; }
      ((run == 0)) || tail -n 1 "$work/time" >> "$work/$program.times"
    done
  done
}
median() { sort -n "$work/$1.times" | awk '{ all[NR] = $1 } END { print all[(NR + 1) / 2] }'; }

printf '%s\n' '#include <unitscale/unitscale.hpp>' 'int main() {}' > "$work/unitscale.cpp"
printf '%s\n' '#include <Eigen/Core>' '#if __has_include(<xtensor/containers/xarray.hpp>)' \
  '#include <xtensor/containers/xarray.hpp>' '#include <xtensor/io/xnpy.hpp>' '#else' \
  '#include <xtensor/xarray.hpp>' '#include <xtensor/xnpy.hpp>' '#endif' 'int main() {}' > "$work/backends.cpp"
measure 5 backends unitscale
LC_ALL=C awk -v ours="$(median unitscale)" -v theirs="$(median backends)" \
  'BEGIN { printf "unitscale %.2f s, Eigen and xtensor %.2f s, ratio %.2f\n", ours, theirs, ours / theirs }'

definitions='#define UNITSCALE_COMPILED'
for type in FLOAT DOUBLE HALF BFLOAT16; do definitions+=$'\n'"#define UNITSCALE_COMPILED_$type"; done
cp "$root/examples/readme.cpp" "$work/headers.cpp"
printf '%s\n#include "%s"\n' "$definitions" "$root/examples/readme.cpp" > "$work/compiled.cpp"
measure 3 headers compiled
for way in headers compiled; do
  "${command[@]}" -o "$work/$way.o" "$work/$way.cpp"
  text=$(size "$work/$way.o" | awk 'NR == 2 { print int($1 / 1000) }')
  LC_ALL=C printf "README's example, %s: %.2f s, object with %d KB of code and constants\n" \
    "$way" "$(median $way)" "$text"
done
if [[ ${1:-} == --ratio ]]; then exit; fi

printf '\n| header | included, s | used, s |\n| --- | --- | --- |\n'
while read -r header use; do
  [[ $header == \#* ]] && continue
  printf '#include <%s>\n' "$header" > "$work/included.cpp"
  printf '#include <%s>\n%s\n' "$header" "$use" > "$work/used.cpp"
  "${command[@]}" -E "$work/included.cpp" > /dev/null 2>&1 || continue  # its library is missing
  rm -f "$work"/{included,used}.times
  measure 3 included used
  LC_ALL=C printf '| %s | %.2f | %.2f |\n' "$header" "$(median included)" "$(median used)"
done < "$root/bench/compile_entries.txt"
