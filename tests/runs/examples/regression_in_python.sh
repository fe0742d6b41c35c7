#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The lines of Python in docs/own_model.md compute the answers of examples/models/regression.cpp from its weights. The
# lines are taken from the document. Exit code 77: no Python with numpy, so nothing is tested.
# Usage: regression_in_python.sh SOURCE_DIRECTORY PROGRAM
set -euo pipefail
source=$(cd -- "$1" && pwd)
program=$2
python=''
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import numpy' 2> /dev/null; then python=$candidate; break; fi
done
if [[ -z $python ]]; then
  echo "regression_in_python: skipped: no python3 with numpy"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
"$program" > printed < /dev/null
awk '/^```python/ { inside = 1; next } /^```/ { inside = 0 } inside' "$source/docs/own_model.md" > lines.py
error=$("$python" lines.py)
awk -v error="$error" 'BEGIN { exit !(error ~ /^[0-9.e-]+$/ && error + 0 < 1e-5) }' ||
  { printf 'regression_in_python: the answers differ by %s; expected less than 1e-5\n' "$error"; exit 1; }
printf 'regression_in_python: the answers differ by %s\n' "$error"
