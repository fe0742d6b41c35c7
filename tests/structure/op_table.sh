#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# docs/ops.md is what docs/op_table.sh makes of the op headers' doc comments.   Usage: op_table.sh SOURCE_DIRECTORY
set -euo pipefail
bash "$1/docs/op_table.sh" --check
printf 'op table: good\n'
