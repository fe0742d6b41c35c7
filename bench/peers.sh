#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Training steps of this library and of PyTorch, in one run, in turn: five rounds, medians and medians of ratios.
#   unit-fp8           against PyTorch FP32, bf16 autocast, and both under torch.compile
#   fp32               against PyTorch FP32, also compiled
#   mxfp8              against MXFP8 emulated in PyTorch, as microxcaling does
#   FP8, sums E6M5     against sums rounded after each product in PyTorch, as mptorch does; to width 256, for it is slow
# Usage: bash bench/peers.sh [--python PROGRAM] [--rounds N] [--widths N,N...] [--threads N,N...] [--steps N]
#                            [--json FILE] [--svg FILE]
# PROGRAM is a Python with torch (Debian: python3 with python3-torch; or a virtual environment's Python).
# Widths are 128, 256, 768 and 2048, threads 1 and 2. Heads have 64 columns, sequences 256 tokens. A step takes:
#   width        depth   sequences   measured steps in a round (--steps)
#   to 256       4       8           3
#   to 1024      2       4           1
#   beyond       1       2           1
#   limited sums 1       1           1
# torch.compile needs a C++ compiler. A peer that does not run here gets a line that says why. Its peak of memory
# includes compiling. All of a width's peers wait in memory: about 9 GB at width 2048.
# --json writes all figures, --svg draws them (bench/peers/figure.py draws a JSON file again).
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
build=${UNITSCALE_BENCH_BUILD:-$root/build/bench}
python=python3 options=()
known="--python PROGRAM, --rounds N, --widths N,N..., --threads N,N..., --steps N, --json FILE, --svg FILE"
stop() {
  printf 'bench/peers.sh: %s\n' "$1" >&2
  exit 2
}
while (($# > 0)); do
  case $1 in
    --python | --rounds | --steps | --widths | --threads | --json | --svg) (($# > 1)) || stop "$1 needs a value" ;;
    *) stop "unknown argument '$1'; known: $known" ;;
  esac
  case $1 in
    --python) python=$2 ;;
    --rounds | --steps) [[ $2 =~ ^[1-9][0-9]*$ ]] || stop "$1 $2 is not a number from 1 on" ;;
    --widths | --threads)
      [[ $2 =~ ^[1-9][0-9]*(,[1-9][0-9]*)*$ ]] || stop "$1 $2 is not a list of numbers such as 1,2"
      ;;
  esac
  case $1 in
    --python) ;;
    --json | --svg) options+=("$1" "$(realpath -m -- "$2")") ;;
    --widths)
      for width in ${2//,/ }; do
        ((width % 32 == 0)) || stop "--widths: $width is no multiple of 32, the length of a block"
      done
      options+=("$1" "$2")
      ;;
    *) options+=("$1" "$2") ;;
  esac
  shift 2
done
"$python" -c 'import torch' 2> /dev/null || stop "$python has no torch; name one that has with --python"
# Names of a program and of files hold from the caller's directory, until here.
[[ $python != */* ]] || python=$(cd -- "$(dirname -- "$python")" && pwd)/$(basename -- "$python")
cd -- "$root"
cmake --preset release -B "$build" -DUNITSCALE_BENCH=ON -DUNITSCALE_TESTS=OFF -DUNITSCALE_EXAMPLES=OFF > /dev/null
cmake --build "$build" --target bench_training > /dev/null
exec "$python" bench/peers/rounds.py --program "$build/bench/bench_train_training" "${options[@]}"
