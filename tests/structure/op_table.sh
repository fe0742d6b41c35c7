#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# docs/ops.md equals the output of docs/op_table.sh for the op headers' doc comments.
# Usage: op_table.sh SOURCE_DIRECTORY
set -euo pipefail
bash "$1/docs/op_table.sh" --check
printf 'op table: good\n'
