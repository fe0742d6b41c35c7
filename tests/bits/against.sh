#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks that this tree trains with the bits of another commit. Compared are losses and checkpoints under every recipe,
# values and gradients of every op (training_bits.cpp), and the kernels (kernel_bits.cpp). Each is built in both trees.
# A line that one tree lacks is no difference.
# Usage: bash tests/bits/against.sh COMMIT   (build directories: build/bits and build/bits-COMMIT)
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
if (($# != 1)) || ! commit=$(git -C "$root" rev-parse --verify --quiet "$1^{commit}"); then
  printf 'usage: against.sh COMMIT, of this repository\n' >&2
  exit 2
fi
other=$root/build/bits-$commit

build() {  # build SOURCES BUILD: prints the lines of both programs
  cmake -S "$1" -B "$2" -G Ninja -D CMAKE_BUILD_TYPE=Release \
    -D UNITSCALE_TESTS=ON -D UNITSCALE_EXAMPLES=OFF > "$2.log" 2>&1 &&
    cmake --build "$2" --target training_bits bits_light >> "$2.log" 2>&1 || { cat "$2.log" >&2; return 1; }
  "$2/tests/bits/training_bits" | sed 's/^/training: /'
  "$2/tests/bits/bits_light" | sed 's/^/kernels: /'
}
mkdir -p "$root/build"
if [[ ! -d $other/sources ]]; then
  mkdir -p "$other/sources"
  git -C "$root" archive "$commit" | tar -x -C "$other/sources"
fi
build "$other/sources" "$other/build" | LC_ALL=C sort > "$other/lines.txt"
build "$root" "$root/build/bits" | LC_ALL=C sort > "$other/own_lines.txt"

# The last word is the checksum. The words before it are the name.
LC_ALL=C awk -v commit="$1" '
  { sum = $NF; name = substr($0, 1, length($0) - length(sum) - 1) }
  NR == FNR { before[name] = sum; next }
  name in before { ++both; if (before[name] != sum) { print "differs: " name; ++differ } }
  END {
    printf "%d of %d lines differ from %s\n", differ, both, commit
    if (both == 0) print "no line is in both"
    exit differ > 0 || both == 0
  }' "$other/lines.txt" "$other/own_lines.txt"
