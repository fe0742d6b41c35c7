#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# docs/ops.md equals the output of docs/op_table.sh for the op headers' doc comments. tests/runs/calls_test.cpp calls
# every op of the table.
# Usage: op_table.sh SOURCE_DIRECTORY
set -euo pipefail
bash "$1/docs/op_table.sh" --check
calls=$1/tests/runs/calls_test.cpp
while IFS= read -r op; do
  if ! grep -q "ops::$op(" "$calls"; then
    printf 'tests/runs/calls_test.cpp: does not call ops::%s\n' "$op"
    exit 1
  fi
done < <(sed -nE 's/^\| \[`([a-z0-9_]+)`\].*/\1/p' "$1/docs/ops.md")
printf 'op table: good\n'
