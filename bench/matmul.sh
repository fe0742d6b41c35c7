#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds bench_products_product (Release) and runs it.
# It prints GFLOP/s of the product kernel in every precision, beside Eigen, OpenBLAS and oneDNN.
# Usage: bash bench/matmul.sh [--blas] [--native] [--quick] [--threads N] [--rounds N] [--seconds S] [--only TEXT]
#                             [--isa NAME] [--json FILE]
# These come before all other arguments:
# --blas: the program is built with UNITSCALE_BLAS, and prints a row of products by the BLAS.
# --native: the program is built with -march=native, as the examples are.
# Build directory: build/bench, build/bench-blas, build/bench-native, or UNITSCALE_BENCH_BUILD.
# ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 keeps oneDNN from using AMX.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/bench options=()
while [[ ${1:-} == --blas || ${1:-} == --native ]]; do
  build+=-${1#--}
  case $1 in
    --blas) options+=(-D UNITSCALE_BLAS=ON) ;;
    --native) options+=(-D UNITSCALE_BENCH_NATIVE=ON) ;;
  esac
  shift
done
build=${UNITSCALE_BENCH_BUILD:-$build}
options+=(-D UNITSCALE_BENCH=ON -D UNITSCALE_TESTS=OFF -D UNITSCALE_EXAMPLES=OFF)
cmake --preset release -S "$root" -B "$build" "${options[@]}" > /dev/null
log=$build/bench_matmul.log
cmake --build "$build" --target bench_matmul > "$log" || { cat "$log" >&2; exit 1; }
exec "$build/bench/bench_products_product" "$@"
