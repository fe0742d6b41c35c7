#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# include/unitscale/<layer>/<thing>.hpp has tests/<layer>/<thing>_test.cpp and the other way round.
# examples/experiments/<thing>.hpp has tests/experiments/<thing>_test.cpp and the other way round.
# Each such test includes its header and has an assertion.   Usage: tests_mirror.sh SOURCE_DIRECTORY
set -euo pipefail
# shellcheck source=tests/structure/layers.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/layers.sh"
cd -- "$1"

for layer in "${layers[@]}" experiments; do
  folder=include/unitscale/$layer
  [[ $layer != experiments ]] || folder=examples/experiments
  for header in "$folder"/*.hpp; do
    [[ -e $header ]] || continue
    thing=$(basename "$header" .hpp)
    test="tests/$layer/${thing}_test.cpp"
    name="<unitscale/$layer/$thing.hpp>"
    [[ $layer != experiments ]] || name="\"experiments/$thing.hpp\""
    if [[ ! -f $test ]]; then
      fault "$header" "has no $test"
      continue
    fi
    grep -qF "#include $name" "$test" || fault "$test" "does not include $name"
    code=$(sed -E "s@^[[:space:]]*//.*@@" "$test")
    grep -qE "\b(TEST_CASE|TEMPLATE_(LIST_)?TEST_CASE|SCENARIO)\b" <<< "$code" || fault "$test" "has no test case"
    grep -qE "\b(REQUIRE|CHECK)(_[A-Z_]+)?\(" <<< "$code" || fault "$test" "asserts nothing: no REQUIRE, no CHECK"
  done
  for test in "tests/$layer"/*.cpp; do
    [[ -e $test ]] || continue
    if [[ $test != *_test.cpp ]]; then
      fault "$test" "is never built: name it *_test.cpp"
      continue
    fi
    thing=$(basename "$test" _test.cpp)
    [[ -f $folder/$thing.hpp ]] || fault "$test" "has no $folder/$thing.hpp"
  done
done

finish "tests mirror headers"
