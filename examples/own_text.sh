#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Writes this repository's own prose, the text that examples train on by default: the doc comments of the headers, then
# the documents without the rows of their tables, which are numbers.   Usage: own_text.sh SOURCE_DIRECTORY OUTPUT_FILE
set -euo pipefail
export LC_ALL=C
cd -- "$1"
{
  find include -name '*.hpp' | sort | xargs grep -hE '^ *///' | sed -E 's|^ */// ?||; s|^< ?||'
  find docs -name '*.md' | sort | xargs cat README.md | grep -v '^ *|'
} > "$2.part"
mv -- "$2.part" "$2"
