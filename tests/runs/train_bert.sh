#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program train_bert: exit codes, one line on stderr for bad input, runs under recipes of every scaling whose
# loss of masked words falls, equal results for any number of threads, weights and vocabulary that it writes, runs that
# are resumed in each phase with equal bits, the log, and the page with the three kinds of rows.
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
bad '--next-weight: is 0; expected a positive number$' --next-weight 0
bad '--initial-stddev: is -1; expected 0, for the recipe.s, or more$' --initial-stddev -1
bad "optimiser: unknown kind 'adagrad'; expected one of adam, sgd, lamb$" --optimiser adagrad
bad "recipe: unknown name 'fp7'; expected one of " --recipe fp7
bad '--checkpoint-every: is 5; expected --checkpoint, the file to write$' --checkpoint-every 5
bad '--weights: a resumed run has weights; expected no --resume$' --weights w.safetensors --resume r.safetensors
for option in --checkpoint --report --save; do bad "$option: missing/file cannot be written$" $option missing/file; done
bad 'missing.safetensors' --resume missing.safetensors
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
  numbers='masked_nats=[0-9.]+ unigram_nats=[0-9.]+ below_unigram=[1-9][0-9]\.[0-9]% next_nats=[0-9.]+ '
  numbers+='next_accuracy=[0-9.]+% loss_scale=1 skipped=0 seconds=[0-9]+'
  grep -qE "^result recipe=$recipe $numbers$" out.txt || fail "$recipe: no result: $(tail -n 1 out.txt)"
  [[ $(grep -cE '^step [0-9]+: ' out.txt) == 3 ]] || fail "$recipe: not three evaluations"
done

result() { tail -n 1 "$1" | sed 's/ seconds=.*//'; }

# Results do not depend on threads; weights and vocabulary are written, and the vocabulary is read again.
"$program" "${small[@]}" --threads 1 --recipe us-fp32 --save one.safetensors --save-vocabulary vocab.txt > one.txt
"$program" "${small[@]}" --threads 2 --recipe us-fp32 --vocabulary vocab.txt --save two.safetensors > two.txt
[[ $(result one.txt) == "$(result two.txt)" ]] || fail "two threads have another result"
cmp one.safetensors two.safetensors || fail "two threads have other weights"
[[ $(head -n 1 vocab.txt) == '[PAD]' && $(wc -l < vocab.txt) == 60 ]] || fail "the vocabulary is not whole"

# A run that is interrupted in the first phase, at its end or in the second phase ends with the bits of the whole run:
# weights and losses. FP16 has master weights and a loss scale. The page changes nothing.
short=(--data text.txt --vocabulary vocab.txt --width 32 --depth 2 --eval-batches 2
  --batch 8 --lengths 16,24 --steps 40,20 --eval-every 20 --lr 0.01,0.01 --threads 1)
stopped() { # stopped <lines of the log> <argument>...: kills the run when its log has so many lines
  local lines=$1 run
  shift
  "$program" "$@" --log stopped.jsonl > stopped.txt 2>&1 &
  run=$!
  while kill -0 "$run" 2> /dev/null && [[ ! -e stopped.jsonl || $(wc -l < stopped.jsonl) -lt $lines ]]; do :; done
  kill -9 "$run" 2> /dev/null || true
  wait "$run" 2> /dev/null || true
}
for recipe in fp16-loss-scaled us-fp8 fp32; do
  run=("${short[@]}" --recipe "$recipe" --checkpoint-every 15)
  "$program" "${run[@]}" --checkpoint whole.ckpt --save whole.safetensors --log whole.jsonl > whole.txt
  for lines in 17 42 57; do
    rm -f stopped.jsonl part.ckpt
    stopped "$lines" "${run[@]}" --checkpoint part.ckpt
    "$program" "${run[@]}" --checkpoint part.ckpt --resume part.ckpt --save part.safetensors --log stopped.jsonl \
      > part.txt || fail "$recipe: not resumed after $lines steps"
    cmp whole.safetensors part.safetensors || fail "$recipe: stopped after $lines steps, and other weights at the end"
    [[ $(result whole.txt) == "$(result part.txt)" ]] || fail "$recipe: stopped after $lines steps, and another result"
    [[ $(losses stopped.jsonl | uniq) == "$(losses whole.jsonl)" ]] ||
      fail "$recipe: stopped after $lines steps, and other losses"
  done
done
[[ $(wc -l < whole.jsonl) == 60 && $(grep -c '"masked_nats":' whole.jsonl) == 3 ]] || fail "the log is not whole"
begun='' given=("${short[@]:0:10}" --resume part.ckpt --lengths 16,24 --steps 40,20 --lr 0.01,0.01)
bad '--batch: part.ckpt was trained with 8; here it is 4$' --recipe fp32 --batch 4
given+=(--batch 8)
bad '--recipe: part.ckpt was trained under fp32 with other fields than us-fp16 here$' --recipe us-fp16
tac vocab.txt | head -n 50 | tac > other.txt
head -n 5 vocab.txt | cat - other.txt > other_vocab.txt
given[3]=other_vocab.txt
bad 'checkpoint: part.ckpt: its [a-z]+ is not this run.s$' --recipe fp32
given=()

# A run can begin with weights of another one, and a page shows the last block's rows by kind.
run=("${short[@]}" --recipe fp32 --weights whole.safetensors)
"$program" "${run[@]}" --report page.html --save tracked.safetensors > page.txt
"$program" "${run[@]}" --save plain.safetensors > plain.txt
cmp plain.safetensors tracked.safetensors || fail "the page has changed the weights"
[[ $(tail -n 1 page.html) == *'</html>' ]] || fail "the page is not whole"
grep -q '"name":"fp32, phase 2"' page.html || fail "the page has no second phase"
for kind in first masked other; do
  grep -q "{\"name\":\"$kind rows\",\"value\":" page.html || fail "the page has no $kind rows"
done

# A run that fails says so in one line, and has its page.
code=0
"$program" "${small[@]}" --recipe fp32 --lr 1e38,1 --report failed.html > out.txt 2> err.txt || code=$?
[[ $code == 1 && $(wc -l < err.txt) == 1 ]] || fail "exit code $code of a run that failed: $(cat err.txt)"
grep -qE '^train_bert: the loss is .* at step [0-9]+; try a lower --lr' err.txt || fail "no reason: $(cat err.txt)"
[[ $(tail -n 1 failed.html) == *'</html>' ]] || fail "a run that failed has no page"

((failures == 0)) || exit 1
echo "train_bert: all checks passed"
