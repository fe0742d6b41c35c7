#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The innermost loops of FP32 tiles read each vector of B once. GCC with -mtune=znver3 repeated the loads in
# each multiply-add, which took a third of the speed and no test saw it. A tile's function has as many multiply-adds
# for gamma C, which do read memory, as for a step of the loop, which do not: at most half of them may read memory.
# Broadcast elements of A, {1to16}, do not count.   Usage: tile_loads.sh OBJDUMP PROGRAM
set -euo pipefail
"$1" -d -C --no-show-raw-insn "$2" | awk '
  /^[0-9a-f]+ <.*>:$/ { name = ""; if (match($0, /tile_product_avx[0-9]+<[^>]*>/)) name = substr($0, RSTART, RLENGTH) }
  name != "" && /vfmadd[0-9]+p[sd]/ { ++all[name]; if (/\(/ && !/1to/) ++reading[name] }
  END {
    for (name in all) {
      ++tiles
      if (2 * reading[name] <= all[name]) continue
      printf "%s: %d of %d multiply-adds read memory; expected at most half\n", name, reading[name], all[name]
      failed = 1
    }
    if (tiles != 9) { printf "found %d functions of tiles; expected 9\n", tiles; failed = 1 }
    if (!failed) printf "tile_loads: %d functions of tiles are good\n", tiles
    exit failed
  }'
