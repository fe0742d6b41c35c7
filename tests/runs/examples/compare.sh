#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a program and compares its output with a file.
# If the file has 0.31±0.02, a number between 0.29 and 0.33 is right.
# Tolerances are needed because the last bits of sums depend on the instruction set and the compiler.
# Training makes these differences larger.
# Usage: compare.sh EXPECTED PROGRAM
set -euo pipefail
export LC_ALL=C
expected=$1 program=$2
if [[ ! -f $expected ]]; then
  printf '%s: is not there; it should hold what %s prints\n' "$expected" "$program"
  exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT

status=0
"$program" > "$folder/printed" < /dev/null || status=$?

# Lines of the output within the tolerances are replaced by the file's lines, so that diff shows only the others.
awk -v expected="$expected" '
  # Splits a line into gaps and words: gap, word, gap, word, ..., gap.
  function split_words(line, parts,   n) {
    for (n = 0; match(line, /[^ ]+/); line = substr(line, RSTART + RLENGTH)) {
      parts[++n] = substr(line, 1, RSTART - 1)
      parts[++n] = substr(line, RSTART, RLENGTH)
    }
    parts[++n] = line
    return n
  }
  # True if a word of the output is within the tolerance of a word of the file.
  # Sets `longer` to the difference in length between the number and the expected number.
  function near(word, pattern,   sign, value, tolerance, rest, size, distance) {
    sign = index(pattern, "±")
    if (!sign || !match(word, /^-?[0-9]+(\.[0-9]+)?/)) return 0
    size = RLENGTH
    value = substr(pattern, 1, sign - 1)
    rest = substr(pattern, sign + length("±"))
    match(rest, /^[0-9]+(\.[0-9]+)?/)
    tolerance = substr(rest, 1, RLENGTH)
    distance = substr(word, 1, size) - value
    longer = size - length(value)
    return substr(word, size + 1) == substr(rest, RLENGTH + 1) &&
      distance * distance <= tolerance * tolerance * (1 + 1e-9)
  }
  function is_near(line, wanted_line,   count, i) {
    count = split_words(line, printed)
    if (split_words(wanted_line, wanted) != count) return 0
    for (i = 2; i < count; i += 2) {
      if (printed[i] == wanted[i]) continue
      if (!near(printed[i], wanted[i])) return 0
      if (longer && printed[i - 1] != "") printed[i - 1] = wanted[i - 1]  # numbers are aligned in columns
      if (longer && printed[i + 1] != "") printed[i + 1] = wanted[i + 1]
    }
    for (i = 1; i <= count; i += 2)
      if (printed[i] != wanted[i]) return 0
    return 1
  }
  {
    if ((getline line < expected) > 0 && is_near($0, line)) $0 = line
    print
  }' "$folder/printed" > "$folder/compared"

if ! diff -u --label "$expected" --label "$program" "$expected" "$folder/compared"; then
  printf '%s prints something else\n' "$program"
  exit 1
fi
if ((status != 0)); then
  printf '%s ends with exit code %d\n' "$program" "$status"
  exit 1
fi
