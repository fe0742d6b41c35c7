#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Training steps of a transformer of width 128, 256 and 512 with 1 and 2 threads: time, tokens per second, peak memory
# and allocations. It also prints a profile of the time at width 256. It builds its programs in build/bench.
# Usage: bash bench/training.sh [--json FILE] [--steps N] [--recipe NAME]...
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
steps=10 json=/dev/null recipes=()
while (($# > 0)); do
  case $1 in
    --json) json=$2 && shift ;;
    --steps) steps=$2 && shift ;;
    --recipe) recipes+=("$2") && shift ;;
    *)
      printf "bench/training.sh: unknown argument '%s'; known: --json FILE, --steps N, --recipe NAME\n" "$1" >&2
      exit 2
      ;;
  esac
  shift
done
((${#recipes[@]} > 0)) || recipes=(unit-fp8 unit-fp32 fp32)
# shellcheck source=tests/support/install.sh
source "$root/tests/support/install.sh"
need g++ cmake ninja-build libeigen3-dev libxtensor-dev nlohmann-json3-dev libcli11-dev libbenchmark-dev
set_parallel_level
cd -- "$root"
cmake --preset release -B build/bench -DUNITSCALE_BENCH=ON -DUNITSCALE_TESTS=OFF -DUNITSCALE_EXAMPLES=OFF > /dev/null
cmake --build build/bench --target bench_training

grep -m 1 'model name' /proc/cpuinfo || true
: > "$json"
printf '\n%-10s %5s %7s %9s %10s %8s %12s %11s\n' recipe width threads ms/step tokens/s peak_MB above_empty allocations
for width in 128 256 512; do
  for recipe in "${recipes[@]}"; do
    for threads in 1 2; do
      line=$(build/bench/bench/bench_train_training --json --recipe "$recipe" --width "$width" \
        --heads $((width / 64)) --threads "$threads" --steps "$steps")
      printf '%s\n' "$line" >> "$json"
      field() { sed -E "s/.*\"$1\":([^,}]*).*/\1/" <<< "$line"; }
      LC_ALL=C printf '%-10s %5d %7d %9.1f %10.0f %8.0f %12.0f %11s\n' "$recipe" "$width" "$threads" \
        "$(LC_ALL=C awk -v s="$(field step_seconds)" 'BEGIN { print 1e3 * s }')" "$(field tokens_per_s)" \
        "$(field peak_megabytes)" "$(field above_empty_megabytes)" "$(field allocations)"
    done
  done
done
printf '\n'
# Threads that sleep as soon as they wait show how many of them work.
OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} build/bench/bench/bench_train_training --steps "$steps"
