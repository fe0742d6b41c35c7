#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds bench_products_product (Release) and runs it: GFLOP/s of the product kernel in every precision, beside Eigen, OpenBLAS and oneDNN.
# Usage: bash bench/matmul.sh [--blas] [--quick] [--threads N] [--rounds N] [--seconds S] [--only TEXT] [--isa NAME] [--json FILE]
# --blas, first: built with UNITSCALE_BLAS, and a row of products by the BLAS.
# Build directory: build/bench or build/bench-blas, or UNITSCALE_BENCH_BUILD. ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 holds oneDNN back from AMX.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/bench options=()
if [[ ${1:-} == --blas ]]; then
  build=$root/build/bench-blas options=(-D UNITSCALE_BLAS=ON)
  shift
fi
build=${UNITSCALE_BENCH_BUILD:-$build}
cmake -S "$root" -B "$build" -D CMAKE_BUILD_TYPE=Release -D UNITSCALE_TESTS=OFF -D UNITSCALE_EXAMPLES=OFF "${options[@]}" > /dev/null
cmake --build "$build" --target bench_matmul > "$build/bench_matmul.log" || { cat "$build/bench_matmul.log" >&2; exit 1; }
exec "$build/bench/bench_products_product" "$@"
