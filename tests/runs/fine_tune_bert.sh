#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program fine_tune_bert: exit codes, one line on stderr for bad input, EM and F1 above the majority baseline
# under recipes of every scaling, questions and predictions that it writes and reads, weights with and without a head
# for spans, equal results for any number of threads.   Usage: fine_tune_bert.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

# Lines of two sentences. Each names a person and a number, at places of its own.
names=(Anna Berta Carl Dora Emil Frida Gustav Hanna Ida Jonas)
for ((i = 0; i < 400; ++i)); do
  a=${names[i * 7 % 10]} b=${names[(i * 3 + i / 10) % 10]}
  echo "In the mill old $a had $((i * 13 % 89 + 10)) bags. By the long river young $b saw $((i * 29 % 83 + 10)) birds."
done > text.txt
text=(--data text.txt --passage-words 10)
sizes=(--width 32 --depth 1)
small=("${text[@]}" "${sizes[@]}" --heads 2 --length 64 --max-question 24 --doc-stride 8 --vocabulary-size 120
  --left-out 0 --batch 8)

given=("${text[@]}" "${sizes[@]}")
begun='*.safetensors'
silent=1
bad '--train without --dev; expected both' --train text.txt
bad '--vocabulary: expected the vocabulary that the weights of --model were trained with$' --model none.safetensors
bad '--steps: is 0; expected at least 1$' --steps 0
bad '--batch: is 0; expected at least 1$' --batch 0
bad '--eval-every: is 0; expected at least 1$' --eval-every 0
bad '--max-answer: is 0; expected at least 1$' --max-answer 0
bad '--batch: is -1; expected a whole number, not negative$' --batch -1
bad "optimiser: unknown kind 'adagrad'; expected one of adam, sgd, lamb$" --optimiser adagrad
bad "recipe: unknown name 'fp7'; expected one of " --recipe fp7
bad 'WordPiece: a vocabulary of 10; expected at least ' --vocabulary-size 10
bad 'span windows: rows of 20 tokens; expected at least 52' --length 20
bad 'span windows: a stride of 0; expected at least 1$' --doc-stride 0
bad '--heads: width 32 is not divisible by 3 heads$' --heads 3
bad 'cloze questions: left_out is 2; expected a number in \[0,1\]$' --left-out 2
bad 'cannot be written$' --predictions missing/folder.json
bad 'missing.txt does not exist$' --vocabulary missing.txt
echo 'One line of one sentence.' > short.txt
echo '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "q", "question": "?", "answers": 1}]}]}]}' > bad.json
given=()
bad '--data: is absent; expected a text to make questions from, or --train and --dev$'
bad 'cloze questions: 0 for training and 0 for validation; expected ' --data short.txt
bad "squad: bad.json: question 'q': answers is 1; expected a list$" --train bad.json --dev bad.json
silent=

# above <file>: EM and F1 of its result line are more than twice the baseline's.
above() {
  awk '/^result / {
    for (i = 2; i <= NF; ++i) { split($i, part, "="); value[part[1]] = part[2] + 0 }
    exit !(value["em"] > 2 * value["baseline_em"] && value["f1"] > 2 * value["baseline_f1"] && value["baseline_em"] > 0)
  }' "$1"
}
for run in fp32:0.004 us-fp16:0.04 us-fp8:0.04 scalify-fp16-2:0.004; do
  recipe=${run%:*}
  "$program" "${small[@]}" --recipe "$recipe" --lr "${run#*:}" --steps 600 --eval-every 300 --threads 1 \
    > out.txt 2> err.txt ||
    fail "$run: $(cat err.txt)"
  [[ ! -s err.txt ]] || fail "$recipe wrote to stderr: $(cat err.txt)"
  number='[0-9]+\.[0-9]'
  numbers="em=$number% f1=$number% baseline_em=$number% baseline_f1=$number% loss=[0-9.]+"
  grep -qE "^result recipe=$recipe $numbers$" out.txt || fail "$recipe: no result: $(tail -n 1 out.txt)"
  grep -q '^random weights: no --model was given$' out.txt || fail "$recipe: does not say that weights are random"
  [[ $(grep -c '^step ' out.txt) == 2 ]] || fail "$recipe: not two evaluations"
  above out.txt || fail "$recipe is not above the baseline: $(tail -n 1 out.txt)"
done

# Results do not depend on threads. Questions that were written give the run of the text; so do the saved weights.
short=(--recipe us-fp32 --steps 20 --lr 0.01)
fixed=("${sizes[@]}" --heads 2 --length 64 --max-question 24 --doc-stride 8 --batch 8 "${short[@]}")
"$program" "${small[@]}" "${short[@]}" --threads 1 --save-train train.json --save-dev dev.json --predictions one.json \
  --save one.safetensors > one.txt
"$program" "${small[@]}" "${short[@]}" --threads 2 --predictions two.json --save two.safetensors > two.txt
[[ $(tail -n 1 one.txt) == "$(tail -n 1 two.txt)" ]] || fail "two threads have another result"
cmp one.json two.json || fail "two threads have other predictions"
cmp one.safetensors two.safetensors || fail "two threads have other weights"
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' in the mill had bags by river saw birds '##s' > vocab.txt
"$program" --train train.json --dev dev.json --vocabulary vocab.txt "${fixed[@]}" > json.txt
"$program" "${text[@]}" --left-out 0 --vocabulary vocab.txt "${fixed[@]}" > data.txt
[[ $(tail -n 1 json.txt) == "$(tail -n 1 data.txt)" ]] || fail "questions of a file give another result"

# Weights: of this program, with the head and the number of heads; the vocabulary must fit.
begun=
given=(--data text.txt --length 64 --max-question 24 --model one.safetensors)
bad '--vocabulary: has 15 tokens, but the weights of one.safetensors have [0-9]+$' --vocabulary vocab.txt
bad 'a width of 32 is not divisible by 3 heads$' --vocabulary vocab.txt --heads 3
"$program" --train train.json --dev dev.json --vocabulary vocab.txt "${fixed[@]}" --save own.safetensors > own.txt
given=(--train train.json --dev dev.json --vocabulary vocab.txt --model own.safetensors)
bad '--length: is 128; expected at most the 64 positions of own.safetensors$'
"$program" "${given[@]}" --length 64 --max-question 24 --doc-stride 8 --batch 8 --recipe us-fp32 --lr 1e-9 --steps 1 \
  > again.txt
loss() { sed -nE 's/^result .* loss=([0-9.]+)$/\1/p' "$1"; }
[[ $(loss own.txt) == "$(loss again.txt)" ]] ||
  fail "loaded weights have another loss: $(loss own.txt), $(loss again.txt)"

# A run that fails says so in one line.
code=0
"$program" "${small[@]}" --recipe fp32 --lr 1e38 --steps 20 > out.txt 2> err.txt || code=$?
[[ $code == 1 && $(wc -l < err.txt) == 1 ]] || fail "exit code $code of a run that failed: $(cat err.txt)"
grep -qE '^fine_tune_bert: the loss is .* at step [0-9]+; try a lower --lr' err.txt || fail "no reason: $(cat err.txt)"

((failures == 0)) || exit 1
echo "fine_tune_bert: all checks passed"
