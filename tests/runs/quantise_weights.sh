#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program quantise_weights: smaller files that load, in every format; rounded activations and their
# calibration; size and loss before and after; bad input.
# Usage: quantise_weights.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"
train=$(dirname -- "$program")/train_transformer

write_text
shape=(--data text.txt --width 32 --depth 1 --heads 2 --seq 16 --batch 4 --steps 60 --quiet --sample 0 --threads 1)
"$train" "${shape[@]}" --recipe fp32 --save model.safetensors > run.txt
"$train" "${shape[@]}" --recipe fp8-amax --save fp8.safetensors > /dev/null
"$train" "${shape[@]}" --recipe fp32 --tokens bytes --save bytes.safetensors > bytes.txt
before=$(sed -E 's/.*valid_bpc=([0-9.]+).*/\1/' run.txt)

# small <most %> <argument>...: makes small.safetensors of model.safetensors. The loss rises by that many % at most, and
# the figures are those of the file.
small() {
  local most=$1 after
  shift
  rm -f small.safetensors
  "$program" model.safetensors --data text.txt --batch 4 --out small.safetensors "$@" > out.txt ||
    { fail "exit code $?: $*"; return; }
  [[ $(sed -n 1p out.txt) == "validation $before bits/char, $before bits/byte before" ]] ||
    fail "loss before: $*: $(cat out.txt)"
  sed -n 2p out.txt | grep -qE '^validation [0-9.]+ bits/char, [0-9.]+ bits/byte after \([-+][0-9.]+ %\)$' ||
    fail "loss after: $*: $(cat out.txt)"
  sed -n 3p out.txt |
    grep -qE "^small.safetensors: $(wc -c < small.safetensors) bytes \\([0-9.]+ % of .*\\), [0-9.]+ bits per coded" ||
    fail "size: $*: $(cat out.txt)"
  after=$(sed -nE '2s/^validation ([0-9.]+) .*/\1/p' out.txt)
  awk -v a="$after" -v b="$before" -v m="$most" 'BEGIN { exit !(a < (1 + m / 100) * b) }' ||
    fail "ends at $after, from $before: $*"
}
bits() { sed -nE '3s/.*, ([0-9.]+) bits per coded weight$/\1/p' out.txt; }
# bits_are <least> <most>: of the last file
bits_are() {
  awk -v b="$(bits)" -v l="$1" -v m="$2" 'BEGIN { exit !(b >= l && b <= m) }' || fail "$(bits) bits: $(cat out.txt)"
}

small 2
bits_are 8 8.05
(($(wc -c < small.safetensors) * 3 < $(wc -c < model.safetensors))) || fail 'the file is not smaller'
for tensor in table.e4m3 decoder/block0/ffn/up/weight.scale decoder/block0/ffn/up/weight.block; do
  grep -qaF "\"$tensor\":" small.safetensors || fail "numpy lacks $tensor"
done
for format in e5m2 e4m3fnuz mxfp8_e4m3 mxfp8_e5m2 fp8_tile mxint8; do small 10 --format "$format"; bits_are 8 9.1; done
for format in mxfp6_e3m2 mxfp6_e2m3 e3m2; do small 10 --format "$format"; bits_are 8 8.3; done
for format in e2m1 mxfp4 mxfp4_even nvfp4 nvfp4_torchao; do small 30 --format "$format"; bits_are 4 4.6; done
for format in bf16 fp16; do small 1 --format "$format"; bits_are 16 16; done
small 5 --margin 2
small 30 --format mxfp4 --tables e4m3
bits_are 4.3 7
# loads: whether the last file does
loads() {
  "$(dirname -- "$program")/generate" small.safetensors --prompt "the " > out.txt 2> err.txt ||
    fail "$1: $(cat err.txt)"
}
loads 'the file does not load'

# The tokeniser of other tokens goes along.
"$train" --data text.txt --width 16 --depth 1 --heads 2 --seq 8 --batch 4 --steps 20 --quiet --sample 0 --recipe fp32 \
  --tokens bpe:270 --save pairs.safetensors > run.txt
pairs=$(sed -E 's/.*valid_bpb=([0-9.]+).*/\1/' run.txt)
"$program" pairs.safetensors --data text.txt --batch 4 --out small_pairs.safetensors > out.txt
grep -q "bits/token, $pairs bits/byte before" out.txt || fail "no bits per byte $pairs: $(cat out.txt)"
"$(dirname -- "$program")/generate" small_pairs.safetensors --prompt "the " > /dev/null || fail 'byte pairs do not load'

small 5 --activations tensor
small 5 --activations token --activation-format e5m2 --tables e4m3
grep -qaF row small.safetensors || fail 'no scale for each token in the recipe'
for calibration in amax percentile mse; do
  small 5 --activations calibrated --calibration "$calibration" --samples 8
  grep -qaF constant small.safetensors || fail "no constant bias in the recipe: $calibration"
done
loads 'the calibrated file does not load'
# The median of magnitudes saturates half of them, which costs more than nothing.
small 1000 --activations calibrated --calibration percentile --percentile 50 --samples 8
cp out.txt half.txt
small 5 --activations calibrated --calibration percentile --percentile 100 --samples 8
[[ $(sed -n 2p half.txt) != "$(sed -n 2p out.txt)" ]] || fail '--percentile changes nothing'

# The recipe of FP8 training: codes are what its products round to, so that the loss is the same.
"$program" fp8.safetensors --data text.txt --batch 4 --format recipe --out small.safetensors > out.txt
[[ $(sed -n 2p out.txt) == *' after (+0.00 %)' ]] || fail "codes of the recipe: $(cat out.txt)"
"$program" fp8.safetensors --data text.txt --batch 4 --format mxfp4 --activations token --out small.safetensors \
  > out.txt
bits_are 4.2 4.3
"$program" bytes.safetensors --data text.txt --batch 4 --out small.safetensors > out.txt
grep -qE '^validation ([0-9.]+) bits/token, \1 bits/byte before$' out.txt || fail "bytes: $(cat out.txt)"
# A whole text: the loss is another one than that of the last tenth, and one of more characters.
"$program" model.safetensors --data text.txt --test text.txt --batch 4 --out small.safetensors > out.txt
grep -qE '^test [0-9.]+ bits/char, [0-9.]+ bits/byte before$' out.txt || fail "--test: $(cat out.txt)"
[[ $(sed -nE '1s/^test ([0-9.]+) .*/\1/p' out.txt) != "$before" ]] || fail '--test: the loss of the last tenth'

"$program" model.safetensors --data text.txt --out kept.safetensors > /dev/null
cp kept.safetensors again.safetensors
given=(model.safetensors --data text.txt --batch 4 --out x) begun='x*' silent=1
bad "unknown name 'e9m9'" --format e9m9
bad "unknown name 'e9m9'" --tables e9m9
bad "unknown name 'e9m9'" --activations token --activation-format e9m9
bad 'recipe fp32 rounds no weights' --format recipe
bad '--margin: is for formats with one scale of the tensor; nvfp4 has none' --format nvfp4 --margin 1
bad '--margin: is for --format of a name' --format recipe --margin 1
bad '--activation-format: is for --activations tensor, token or calibrated' --activation-format e5m2
bad '--calibration: is for --activations calibrated' --activations token --calibration mse
bad '--samples: is for --activations calibrated' --samples 3
bad '--percentile: is for --calibration percentile' --activations calibrated --percentile 99
bad '--percentile: is 0; expected' --activations calibrated --calibration percentile --percentile 0
bad '--activations' --activations row
bad '--calibration' --activations calibrated --calibration best
bad '--samples' --activations calibrated --samples 0
given=(--data text.txt --batch 4 --out x)
bad 'is kept as codes already; expected a model with elements' kept.safetensors
bad 'gone.safetensors' gone.safetensors
given=(model.safetensors --data text.txt --batch 4) begun=''
bad 'none/small.safetensors' --out none/small.safetensors
bad 'gone.txt' --data gone.txt --out x
bad 'gone.txt' --test gone.txt --out x
printf 'ab' > short.txt
bad '--test: 2 characters are too few; sequences of 16 need at least 17' --test short.txt --out x
# An error leaves an older file as it was.
given=(kept.safetensors --data text.txt --batch 4)
bad "expected a model with elements" --out again.safetensors
cmp -s kept.safetensors again.safetensors || fail 'an error has changed the older file'

((failures == 0)) || exit 1
echo "quantise_weights: all checks passed"
