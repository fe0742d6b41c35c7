#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# unit-fp8 training steps against PyTorch's training steps of an equal model.
# They run in turn: five pairs, medians and their ratio.
# Usage: bash bench/peers.sh [--python PROGRAM] [--threads N] [--steps N]
# PROGRAM is a Python with torch (Debian: python3 with python3-torch; or a virtual environment's Python).
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=python3 threads=1 steps=5
while (($# > 0)); do
  case $1 in
    --python) python=$2 ;;
    --threads) threads=$2 ;;
    --steps) steps=$2 ;;
    *)
      printf "bench/peers.sh: unknown argument '%s'; known: --python PROGRAM, --threads N, --steps N\n" "$1" >&2
      exit 2
      ;;
  esac
  shift 2
done
"$python" -c 'import torch' 2> /dev/null || {
  printf "bench/peers.sh: %s has no torch; name one that has with --python\n" "$python" >&2
  exit 2
}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
cd -- "$root"
cmake --preset release -B build/bench -DUNITSCALE_BENCH=ON -DUNITSCALE_TESTS=OFF -DUNITSCALE_EXAMPLES=OFF > /dev/null
cmake --build build/bench --target bench_training > /dev/null
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
common=(--threads "$threads" --steps "$steps")
for _ in 1 2 3 4 5; do
  build/bench/bench/bench_train_training --json "${common[@]}" >> "$work/ours"
  "$python" bench/peers/transformer.py "${common[@]}" >> "$work/fp32"
  "$python" bench/peers/transformer.py --autocast "${common[@]}" >> "$work/autocast"
done
median() { sed -E "s/.*\"$2\": ?([0-9.e+-]+).*/\1/" "$work/$1" | sort -g | sed -n 3p; }
name() { sed -nE '1s/.*"peer": "([^"]*)".*/\1/p' "$work/$1"; }
printf '%-34s %9s %10s %8s %12s %7s\n' "width 256, depth 4, 8 x 256 tokens" ms/step tokens/s peak_MB above_empty speed
ours=$(median ours step_seconds)
for run in ours fp32 autocast; do
  title=$(name "$run")
  LC_ALL=C awk -v title="${title:-unitscale unit-fp8}" \
    -v s="$(median "$run" step_seconds)" -v t="$(median "$run" tokens_per_s)" \
    -v p="$(median "$run" peak_megabytes)" -v e="$(median "$run" above_empty_megabytes)" -v ours="$ours" \
    'BEGIN { printf "%-34s %9.1f %10.0f %8.0f %12.0f %6.2fx\n", title, 1e3 * s, t, p, e, s / ours }'
done
printf 'speed: how many times as fast unit-fp8 is\n'
