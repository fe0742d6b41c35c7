#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds bench_kernels_matmul (Release) and runs it: GFLOP/s of the product kernel in every precision, beside Eigen, OpenBLAS and oneDNN.
# Usage: bash bench/matmul.sh [--quick] [--threads N] [--rounds N] [--seconds S] [--only TEXT] [--isa NAME] [--json FILE]
# Build directory: build/bench, or UNITSCALE_BENCH_BUILD. ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 holds oneDNN back from AMX.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=${UNITSCALE_BENCH_BUILD:-$root/build/bench}
cmake -S "$root" -B "$build" -D CMAKE_BUILD_TYPE=Release -D UNITSCALE_TESTS=OFF -D UNITSCALE_EXAMPLES=OFF > /dev/null
cmake --build "$build" --target bench_matmul > "$build/bench_matmul.log" || { cat "$build/bench_matmul.log" >&2; exit 1; }
exec "$build/bench/bench_kernels_matmul" "$@"
