#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program quantise_weights: a smaller file that loads, the loss before and after, bad input.
# Usage: quantise_weights.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"
train=$(dirname -- "$program")/train_transformer

for ((i = 0; i < 60; ++i)); do echo "the early bird catches the worm"; done > text.txt
"$train" --data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 60 --quiet --sample 0 --recipe fp32 \
  --save model.safetensors > run.txt
before=$(sed -E 's/.*valid_bpc=([0-9.]+).*/\1/' run.txt)
"$program" model.safetensors --data text.txt --batch 4 --out small.safetensors > out.txt
figures="^validation $before bits/char before, [0-9.]+ after \\([-+][0-9.]+ %\\); small.safetensors: [0-9]+ bytes$"
grep -qE "$figures" out.txt || fail "no figures: $(cat out.txt)"
(($(wc -c < small.safetensors) * 3 < $(wc -c < model.safetensors))) || fail 'the file is not smaller'
after=$(sed -E 's/.*before, ([0-9.]+) after.*/\1/' out.txt)
awk -v a="$after" -v b="$before" 'BEGIN { exit !(a < 1.05 * b) }' || fail "8-bit weights end at $after, from $before"
for tensor in table.e4m3 decoder/block0/ffn/up/weight.scale decoder/block0/ffn/up/weight.block; do
  grep -qaF "\"$tensor\":" small.safetensors || fail "numpy lacks $tensor"
done
"$(dirname -- "$program")/generate" small.safetensors --prompt "the " > /dev/null || fail 'the file does not load'

# The tokeniser of other tokens goes along.
"$train" --data text.txt --width 16 --depth 1 --heads 2 --seq 8 --batch 4 --steps 20 --quiet --sample 0 --recipe fp32 \
  --tokens bpe:270 --save pairs.safetensors > run.txt
before=$(sed -E 's/.*valid_bpb=([0-9.]+).*/\1/' run.txt)
"$program" pairs.safetensors --data text.txt --batch 4 --out small_pairs.safetensors > out.txt
grep -q "^validation $before bits/byte before, " out.txt || fail "no bits per byte $before: $(cat out.txt)"
"$(dirname -- "$program")/generate" small_pairs.safetensors --prompt "the " > /dev/null || fail 'byte pairs do not load'

code=0
"$program" model.safetensors --data text.txt --out none/small.safetensors > out.txt 2> err.txt || code=$?
[[ $code == 2 && ! -s out.txt && $(wc -l < err.txt) == 1 ]] || fail "a folder that is not there: $(cat err.txt)"
code=0
"$program" model.safetensors --data text.txt --out x --format e9m9 > out.txt 2> err.txt || code=$?
[[ $code == 2 && ! -e x ]] || fail "a format that is not there: $(cat err.txt)"

((failures == 0)) || exit 1
echo "quantise_weights: all checks passed"
