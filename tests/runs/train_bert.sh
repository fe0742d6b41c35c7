#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program train_bert: exit codes, one line on stderr for bad input, runs under recipes of every scaling whose
# loss of masked words falls, equal results for any number of threads, weights and vocabulary that it writes.
# Usage: train_bert.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

for ((i = 0; i < 80; ++i)); do
  echo "The early bird catches the worm. The worm is late. A bird in the hand is worth two. Birds sing at dawn."
done > text.txt
small=(--data text.txt --width 32 --depth 2 --eval-batches 4)
sizes=(--vocabulary-size 60 --batch 8 --lengths 16,24 --steps 300,100 --eval-every 200)

given=("${small[@]}")
begun='*.safetensors'
silent=1
bad '--lengths: 1 phases, and --steps 2; expected one number of each for every phase$' --lengths 16
bad '--lr: 1 rates; expected one for each of 2 phases$' --lr 0.1
bad '--heads: width 32 is not divisible by 3 heads$' --heads 3
bad '--batch: is 0; expected at least 1$' --batch 0
bad '--eval-every: is 0; expected at least 1$' --eval-every 0
bad '--batch: is -1; expected a whole number, not negative$' --batch -1
bad "optimiser: unknown kind 'adagrad'; expected one of adam, sgd, lamb$" --optimiser adagrad
bad "recipe: unknown name 'fp7'; expected one of " --recipe fp7
bad 'missing.txt' --vocabulary missing.txt
bad 'WordPiece: a vocabulary of 10; expected at least ' --vocabulary-size 10
given=()
bad 'data: missing.txt does not exist$' --data missing.txt
silent=
given=("${small[@]}" --vocabulary-size 60)
bad 'masked batch: rows of 4 tokens; expected at least 5' --lengths 4,8
small+=("${sizes[@]}" --optimiser adam)

# The loss of masked words ends at least a tenth below that of frequencies alone.
for run in fp32:0.01 us-fp16:0.02 us-fp8:0.02 scalify-fp16-2:0.01; do
  recipe=${run%:*}
  lr=${run#*:}
  "$program" "${small[@]}" --recipe "$recipe" --lr "$lr,$lr" > out.txt 2> err.txt || fail "$run: $(cat err.txt)"
  [[ ! -s err.txt ]] || fail "$recipe wrote to stderr: $(cat err.txt)"
  numbers='masked_nats=[0-9.]+ unigram_nats=[0-9.]+ below_unigram=[1-9][0-9]\.[0-9]% next_accuracy=[0-9.]+%'
  grep -qE "^result recipe=$recipe $numbers$" out.txt || fail "$recipe: no result: $(tail -n 1 out.txt)"
  [[ $(grep -c '^step ' out.txt) == 3 ]] || fail "$recipe: not three evaluations"
done

# Results do not depend on threads; weights and vocabulary are written, and the vocabulary is read again.
"$program" "${small[@]}" --threads 1 --recipe us-fp32 --save one.safetensors --save-vocabulary vocab.txt > one.txt
"$program" "${small[@]}" --threads 2 --recipe us-fp32 --vocabulary vocab.txt --save two.safetensors > two.txt
[[ $(tail -n 1 one.txt) == "$(tail -n 1 two.txt)" ]] || fail "two threads have another result"
cmp one.safetensors two.safetensors || fail "two threads have other weights"
[[ $(head -n 1 vocab.txt) == '[PAD]' && $(wc -l < vocab.txt) == 60 ]] || fail "the vocabulary is not whole"

# A run that fails says so in one line.
code=0
"$program" "${small[@]}" --recipe fp32 --lr 1e38,1 > out.txt 2> err.txt || code=$?
[[ $code == 1 && $(wc -l < err.txt) == 1 ]] || fail "exit code $code of a run that failed: $(cat err.txt)"
grep -qE '^train_bert: the loss is .* at step [0-9]+; try a lower --lr' err.txt || fail "no reason: $(cat err.txt)"

((failures == 0)) || exit 1
echo "train_bert: all checks passed"
