#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs builds of kernel_bits.cpp for one instruction set and compares their outputs: nothing may differ. The first
# program runs again with small caches and with large ones, which products choose other blocks for.
# Usage: compare.sh PROGRAM PROGRAM...
set -euo pipefail

if (($# < 2)); then
  printf 'usage: compare.sh PROGRAM PROGRAM...\n' >&2
  exit 2
fi

first=$1
shift
if ! expected=$("$first"); then
  printf '%s: failed\n' "$first"
  exit 1
fi
if [[ -z $expected ]]; then
  printf '%s: printed nothing\n' "$first"
  exit 1
fi

faults=0
for program in "$@" UNITSCALE_CACHES=8k,32k,0 UNITSCALE_CACHES=64k,4m,64m; do
  run=("$program")
  if [[ $program == *=* ]]; then run=(env "$program" "$first"); fi
  if ! found=$("${run[@]}"); then
    printf '%s: failed\n' "$program"
    faults=$((faults + 1))
  elif [[ $found != "$expected" ]]; then
    # Names of lines that differ or are missing.
    lines=$({ diff <(printf '%s\n' "$expected") <(printf '%s\n' "$found") || true; } |
      sed -nE 's/^[<>] (.*) [0-9a-f]{16}$/  \1/p' | sort -u)
    printf '%s and %s differ:\n%s\n' "$first" "$program" "${lines:-  lines that are no checksums}"
    faults=$((faults + 1))
  fi
done
((faults == 0)) || exit 1
printf 'kernel bits: %d lines, the same in %d programs and with other caches\n' "$(wc -l <<< "$expected")" \
  "$(($# + 1))"
