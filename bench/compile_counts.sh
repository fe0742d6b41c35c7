#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A compiler's work for each entry header (bench/compile_entries.txt), in counts that do not depend on the machine:
#   lines           of this library's headers after preprocessing, without comments and blank lines.
#                   They depend on no other library's version.
#   instantiations  of templates, ours and others', by a program with the use in the header's line there.
#                   GCC: class, function and variable specialisations (-fstats).
#                   Clang: InstantiateClass and InstantiateFunction events (-ftime-trace).
#                   They are compared between equal versions of compiler, Eigen, xtensor and libstdc++ only.
# bench/compile_counts.txt holds the counts. A test fails when a count grows by more than 3 %. Times: bench/compile.sh.
# Usage: bash bench/compile_counts.sh lines|instantiations            compares with the file
#        bash bench/compile_counts.sh lines|instantiations --update   writes the counts into the file
# CXX, CXXFLAGS (include directories) as usual. Headers whose libraries are not installed are left out.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
baseline="$root/bench/compile_counts.txt"
read -r -a compiler <<< "${CXX:-g++} -std=c++20 ${CXXFLAGS:-} -I$root/include"
eigen=$(pkg-config --cflags eigen3 2> /dev/null || echo -I/usr/include/eigen3)
read -r -a eigen <<< "$eigen"
compiler+=("${eigen[@]}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

count_lines() {  # of our headers in $work/preprocessed
  awk -v prefix="\"$root/include/unitscale/" '/^# [0-9]+ "/ { ours = index($3, prefix) == 1; next }
                                              ours && NF { lines++ } END { print lines + 0 }' "$work/preprocessed"
}
count_instantiations() {  # by the compiler, of $work/program.cpp
  if [[ $quantity == clang* ]]; then
    "${compiler[@]}" -fsyntax-only -ftime-trace="$work/trace.json" -ftime-trace-granularity=0 "$work/program.cpp" >&2
    grep -oE '"name":"Instantiate(Class|Function)"' "$work/trace.json" | wc -l
  else
    "${compiler[@]}" -fsyntax-only -fstats "$work/program.cpp" 2> "$work/stats" || { cat "$work/stats" >&2; return 1; }
    awk '/^(decl|type)_specializations:/ { sum += $4 } END { print sum }' "$work/stats"
  fi
}
# The versions that instantiations depend on, as one word; no output if a library is missing.
versions() {
  printf '%s\n' '#include <version>' '#include <Eigen/Core>' '#if __has_include(<xtensor/core/xtensor_config.hpp>)' \
    '#include <xtensor/core/xtensor_config.hpp>' '#else' '#include <xtensor/xtensor_config.hpp>' '#endif' \
    > "$work/versions.cpp"
  "${compiler[@]}" -E -dM "$work/versions.cpp" | awk '
    { value[$2] = $3 }
    END {
      compiler = "__clang__" in value ? "clang" value["__clang_major__"] : "gcc" value["__GNUC__"]
      printf "%s,eigen%s.%s.%s,xtensor%s.%s.%s,libstdc++%s\n", compiler, value["EIGEN_WORLD_VERSION"],
             value["EIGEN_MAJOR_VERSION"], value["EIGEN_MINOR_VERSION"], value["XTENSOR_VERSION_MAJOR"],
             value["XTENSOR_VERSION_MINOR"], value["XTENSOR_VERSION_PATCH"], value["_GLIBCXX_RELEASE"]
    }'
}

case ${1:-} in
  lines) quantity=lines ;;
  instantiations) quantity=$(versions) ;;
  *)
    echo "usage: bash bench/compile_counts.sh lines|instantiations [--update]" >&2
    exit 2
    ;;
esac
update=false
[[ ${2:-} == --update ]] && update=true
if ! $update && ! grep -q "^$quantity " "$baseline"; then
  echo "bench/compile_counts.txt has no counts of $quantity: nothing is compared"
  exit 77  # for ctest: skipped
fi

failed=0
while read -r header use; do
  [[ $header == \#* ]] && continue
  printf '#include <%s>\n' "$header" > "$work/program.cpp"
  if ! "${compiler[@]}" -E "$work/program.cpp" > "$work/preprocessed" 2> /dev/null; then
    echo "$header: left out, a library is missing"
    if $update; then grep "^$quantity $header " "$baseline" >> "$work/counted" || true; fi
    continue
  fi
  if [[ $quantity == lines ]]; then
    count=$(count_lines)
  else
    printf '%s\n' "$use" >> "$work/program.cpp"
    count=$(count_instantiations)
  fi
  echo "$quantity $header $count" >> "$work/counted"
  held=$(awk -v quantity="$quantity" -v header="$header" '$1 == quantity && $2 == header { print $3 }' "$baseline")
  if $update || { [[ -n $held ]] && ((count * 100 <= held * 103)); }; then
    echo "$header: $count (${held:-new})"
  elif [[ -z $held ]]; then
    echo "$header: $count $1, not in bench/compile_counts.txt; bash bench/compile_counts.sh $1 --update"
    failed=1
  else
    advice="find what it includes, or: bash bench/compile_counts.sh $1 --update"
    echo "$header: $count $1, more than 3 % above $held; $advice"
    failed=1
  fi
done < "$root/bench/compile_entries.txt"
if $update; then
  grep -v "^$quantity " "$baseline" > "$work/others" || true
  cat "$work/others" "$work/counted" > "$baseline"
fi
exit "$failed"
