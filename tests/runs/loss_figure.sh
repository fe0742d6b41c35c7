#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program loss_figure: the picture, its curves and bands, one line on stderr and exit code 2 for bad input.
# Usage: loss_figure.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

run() {  # run <recipe> <rate> <seed> <losses after 2, 4, 6, 8 and 10 steps>
  printf '{"run":{"recipe":"%s","rate":%s,"seed":%s,"failed":false,"valid_steps":[2,4,6,8,10],"valid":[%s]}}\n' "$@"
}
{
  printf '{"comparison":{"steps":10}}\n'
  run fp32 0.1 1 5,4,3.5,3.2,3
  run fp32 0.1 2 5,4,3.5,3.4,3.2
  run fp32 0.3 1 5,4.5,4.2,4.1,4
  run fp32 0.3 2 5,4.5,4.2,4.1,4
  run unit-fp8 0.1 1 4.8,3.8,3.3,3.1,2
  printf '{"run":{"recipe":"unit-fp8","rate":0.1,"seed":2,"failed":true,"valid_steps":[2],"valid":[4.8]}}\n'
  run unit-fp8 0.3 1 5,4,3.5,3.2,3
  run unit-fp8 0.3 2 5,4,3.5,3.2,3
  printf '{"run":{"recipe":"fp16","rate":0.1,"seed":1,"failed":true,"valid_steps":[],"valid":[]}}\n'
  printf '{"window":{"biases":[0],"losses":[3]}}\n'
} > records.jsonl

begun='*.svg'
bad 'none.jsonl: cannot be read$' none.jsonl
bad '--recipes: no run of bf16$' records.jsonl --recipes bf16
bad '--recipes: every run of fp16 failed$' records.jsonl
bad 'records is required$'
bad 'speed' records.jsonl --speed
bad 'none/losses.svg' records.jsonl --recipes fp32 --out none/losses.svg
{ head -n 2 records.jsonl && echo '{"run":{"recipe":'; } > damaged.jsonl
bad 'damaged.jsonl: line 3 is no record of a comparison: ' damaged.jsonl
echo '{"sweep":{}}' > other.jsonl
bad 'other.jsonl: line 1 is no record of a comparison: ' other.jsonl
head -n 1 records.jsonl > empty.jsonl
bad 'empty.jsonl: has no run$' empty.jsonl

"$program" records.jsonl --recipes unit-fp8,fp32 --out losses.svg > out.txt 2> err.txt || fail "exit code $?: $(cat err.txt)"
[[ ! -s out.txt && ! -s err.txt ]] || fail "wrote: $(cat out.txt err.txt)"
{ grep -q '^<svg ' losses.svg && [[ $(tail -n 1 losses.svg) == '</svg>' ]]; } || fail "the picture is no SVG"
grep -q '>Validation loss, 2 seeds<' losses.svg || fail "the title does not count the seeds"
[[ $(grep -oE '<title>[^<]*' losses.svg | tr '\n' ' ') == '<title>unit-fp8 <title>fp32 ' ]] || fail "not the two recipes in order"
[[ $(grep -c 'class="band"' losses.svg) == 2 ]] || fail "not a band for each recipe"

# Losses are from 3 to 5. Their axis has a margin of 0.04 x 2 at both ends, and the frame is 380 high.
height() { awk -v loss="$1" 'BEGIN { printf "%.1f", 380 - 380 * (loss - 2.92) / (5.08 - 2.92) }'; }
# fp32 at rate 0.1 ends at the mean of 3 and 3.2; unit-fp8 is drawn at rate 0.3, where no run failed.
curve() { grep "<title>$1<" losses.svg | grep -oE 'class="curve" d="[^"]*"'; }
[[ $(curve fp32) == *"L620.0 $(height 3.1)\"" ]] || fail "fp32 does not end at 3.1: $(curve fp32)"
[[ $(curve unit-fp8) == *"L620.0 $(height 3)\"" ]] || fail "unit-fp8 does not end at 3: $(curve unit-fp8)"

"$program" --help > help.txt || fail "--help: exit code $?"
grep -q -- '--recipes' help.txt || fail "--help names no options"

((failures == 0)) || exit 1
echo "loss_figure: all checks passed"
