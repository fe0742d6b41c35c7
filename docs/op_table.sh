#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Writes docs/ops.md from the doc comments of the headers in include/unitscale/ops. With --check it compares instead,
# and prints the difference.   Usage: bash docs/op_table.sh [--check]
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export LC_ALL=C

headers=(include/unitscale/ops/*.hpp)
shopt -s nullglob
options=(include/unitscale/record/*.hpp)  # options that several ops share
write() {
  local rows
  rows=$(awk -f docs/op_table.awk pass=1 "${options[@]}" "${headers[@]}" pass=2 "${headers[@]}") || return 1
  cat << 'END'
# Ops

All functions of namespace `unitscale::ops`, from the doc comments of their headers. The headers say more: options,
derivations, errors, references. Arguments and results are `Variable<T>`; places and comparisons are tensors of
integers. Options are given by name: `ops::gelu(x, {.mult = 2})`. Under scaling `none` alpha and every beta is 1. A test
makes each call (`ctest --test-dir build/tests -R '^runs/calls$'`).

| op | call | value and gradients | factors under `unit` | check |
| --- | --- | --- | --- | --- |
END
  sort -t '`' -k 2,2 <<< "$rows"
  cat << 'END'

Written by `bash docs/op_table.sh`. `ctest --test-dir build/tests -R structure/op_table` checks that it is up to date.
The checks need a build: `bash tests/run.sh`.
END
}

case ${1:-} in
  "")
    write > docs/ops.md.new || {
      rm -f docs/ops.md.new
      exit 1
    }
    mv docs/ops.md.new docs/ops.md
    ;;
  --check)
    if ! write | diff docs/ops.md -; then
      printf 'docs/ops.md is not what the headers say: run bash docs/op_table.sh\n'
      exit 1
    fi
    ;;
  *)
    printf "op_table.sh: unknown argument '%s'; known: --check\n" "$1" >&2
    exit 2
    ;;
esac
