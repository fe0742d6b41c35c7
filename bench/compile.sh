#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compile time of an empty program that includes unitscale/unitscale.hpp, against one that includes Eigen/Core,
# xtensor/xarray.hpp and xtensor/xnpy.hpp: medians of 5, taken in turn, and their ratio. The aim is a ratio of at most 2. Seconds
# are the compiler's own (user time), so that what else runs on the machine disturbs little.
# Usage: bash bench/compile.sh   (CXX, and CXXFLAGS for include directories and optimisation, as usual)
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
read -r -a command <<< "${CXX:-g++} -std=c++20 ${CXXFLAGS:--O2} -I$root/include"
eigen=$(pkg-config --cflags eigen3 2> /dev/null || echo -I/usr/include/eigen3)
read -r -a eigen <<< "$eigen"
command+=("${eigen[@]}" -c -o /dev/null)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s\n' '#include <unitscale/unitscale.hpp>' 'int main() {}' > "$work/unitscale.cpp"
printf '%s\n' '#include <Eigen/Core>' '#if __has_include(<xtensor/containers/xarray.hpp>)' \
  '#include <xtensor/containers/xarray.hpp>' '#include <xtensor/io/xnpy.hpp>' '#else' \
  '#include <xtensor/xarray.hpp>' '#include <xtensor/xnpy.hpp>' '#endif' 'int main() {}' > "$work/backends.cpp"

TIMEFORMAT=%U
for run in 0 1 2 3 4 5; do  # run 0 fills the file cache
  for program in backends unitscale; do
    { time "${command[@]}" "$work/$program.cpp"; } 2> "$work/time" || { cat "$work/time" >&2; exit 1; }
    ((run == 0)) || tail -n 1 "$work/time" >> "$work/$program.times"
  done
done
median() { sort -n "$work/$1.times" | sed -n 3p; }
LC_ALL=C awk -v ours="$(median unitscale)" -v theirs="$(median backends)" \
  'BEGIN { printf "unitscale %.2f s, Eigen and xtensor %.2f s, ratio %.2f\n", ours, theirs, ours / theirs }'
