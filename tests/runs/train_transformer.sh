#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program train_transformer: exit codes, one line on stderr for bad input, the result line, the log.
# Usage: train_transformer.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

# bad <exit code> <pattern of stderr> <argument>...: expects nothing on stdout, one line on stderr and no log
bad() {
  local want=$1 pattern=$2 code=0
  shift 2
  timeout 60 "$program" "$@" > out.txt 2> err.txt || code=$?
  [[ $code == "$want" ]] || fail "exit code $code instead of $want: $*: $(cat err.txt)"
  [[ ! -s out.txt ]] || fail "wrote to stdout: $*: $(head -n 1 out.txt)"
  [[ $(wc -l < err.txt) == 1 ]] || fail "not one line on stderr: $*: $(cat err.txt)"
  grep -qE -- "^train_transformer: .*$pattern" err.txt || fail "no '$pattern' on stderr: $*: $(cat err.txt)"
  [[ ! -e bad.jsonl ]] || fail "a log was begun: $*"
  rm -f bad.jsonl
}

write_text
small=(--width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 6 --sample 20)
bad_run=(--data text.txt --log bad.jsonl)

bad 2 '--placement: is after; expected pre, post or none$' "${bad_run[@]}" --placement after
bad 2 "recipe: unknown name 'fp7'; expected one of fp32, fp16, fp16-loss-scaled, " "${bad_run[@]}" --recipe fp7
bad 2 '--heads: width 128 is not divisible by 3 heads$' "${bad_run[@]}" --heads 3
for size in width depth heads seq batch steps micro-batches threads; do
  bad 2 "--$size: is 0; expected at least 1\$" "${bad_run[@]}" "--$size" 0
  bad 2 "--$size: is -1; expected a whole number, not negative\$" "${bad_run[@]}" "--$size" -1
  bad 2 "--$size" "${bad_run[@]}" "--$size" many
done
bad 2 '--depth: is 5000000000; expected at most 1000000000$' "${bad_run[@]}" --depth 5000000000
bad 2 '--micro-batches: batch 16 is not divisible by 3' "${bad_run[@]}" --micro-batches 3
bad 2 '--lr: is 0; expected a positive number$' "${bad_run[@]}" --lr 0
bad 2 '--warmup: 501 steps are more than the run.s 500$' "${bad_run[@]}" --warmup 501
bad 2 "shape: unknown name 'gpt'; expected one of gpt-111m, gpt-256m, " "${bad_run[@]}" --shape gpt
bad 2 '--hidden: is -1; expected a whole number, not negative$' "${bad_run[@]}" --hidden -1
bad 2 '--epsilon: is -1; expected 0 or more$' "${bad_run[@]}" --epsilon -1
bad 2 '--top-k: is -1; expected a whole number, not negative$' "${bad_run[@]}" --top-k -1
bad 2 '--top-k: is 5000000000; expected at most 1000000000$' "${bad_run[@]}" --top-k 5000000000
bad 2 'speed' "${bad_run[@]}" --speed
bad 2 "recipe: unknown key 'products.0.gradien'; expected one of kind, pattern, activation, weight, gradient" \
  "${bad_run[@]}" --set matmul.gradien=e5m2
bad 2 "recipe: 'scaling'; expected key=value$" "${bad_run[@]}" --set scaling
bad 2 'recipe: none.json cannot be read$' "${bad_run[@]}" --recipe none.json
bad 2 '--tokens: is bpe:200; expected bpe:N with N from 256 to 2\^24$' "${bad_run[@]}" --tokens bpe:200
bad 2 '--tokens: is none.json; expected characters, bytes, bpe:N or a file that is there$' "${bad_run[@]}" \
  --tokens none.json
bad 2 '--save-every: is 3, but --save names no file$' "${bad_run[@]}" --save-every 3
bad 2 '--switch-at: is 4, but --switch-to names no recipe$' "${bad_run[@]}" --switch-at 4
bad 2 '--switch-to: is bf16, but --switch-at names no step$' "${bad_run[@]}" --switch-to bf16
for at in 0 6 7; do
  bad 2 "--switch-at: is $at; expected at least 1, and less than the run's 6 steps\$" "${bad_run[@]}" "${small[@]}" \
    --switch-to bf16 --switch-at "$at"
done
bad 2 '--switch-at: is -1; expected a whole number, not negative$' "${bad_run[@]}" --switch-to bf16 --switch-at -1
bad 2 "--switch-to: recipe: unknown name 'fp7'; expected one of fp32, " "${bad_run[@]}" --switch-at 4 --switch-to fp7
bad 2 '--switch-to: bf16 has scaling none; expected unit, as unit-fp8 has$' "${bad_run[@]}" --recipe unit-fp8 \
  --switch-at 4 --switch-to bf16
bad 2 'checkpoint: none/run.safetensors cannot be written$' --data text.txt "${small[@]}" --save none/run.safetensors
bad 2 'safetensors: text.txt: ' --data text.txt "${small[@]}" --resume text.txt
bad 2 'safetensors: none.safetensors' --data text.txt "${small[@]}" --weights none.safetensors
bad 2 'data: missing.txt does not exist$' --log bad.jsonl --data missing.txt
: > empty.txt
bad 2 'data: empty.txt is empty$' --log bad.jsonl --data empty.txt
head -c 100 text.txt > short.txt
bad 2 'data: 100 characters are too few; sequences of 128 need at least 1281' --log bad.jsonl --data short.txt
printf 'caf\351 au lait\n' > latin.txt
bad 2 'data: latin.txt is not UTF-8: byte 0xe9 at offset 3$' --log bad.jsonl --data latin.txt
mkdir pictures
: > pictures/sun.png
bad 2 'data: folder pictures holds no text' --log bad.jsonl --data pictures
bad 2 'log: none/log.jsonl cannot be opened for writing$' --data text.txt "${small[@]}" --log none/log.jsonl
bad 2 '--report: .*none/page.html' "${bad_run[@]}" "${small[@]}" --report none/page.html
bad 1 'train: the loss is -?(nan|inf) at step [2-6]; try a lower --lr' \
  --data text.txt "${small[@]}" --recipe fp32 --warmup 1 --lr 3e38 --quiet

# The audit prints a table and a verdict, and makes no step.
"$program" --data text.txt "${small[@]}" --recipe unit-fp8 --audit > audit.txt 2> err.txt ||
  fail "the audit says no: $(tail -n 3 audit.txt)"
grep -q '^gradients: valid' audit.txt || fail 'no verdict in the audit'
grep -q '^decoder/block0/ffn/up/linear .* 0.25 =' audit.txt || fail 'no line for an op in the audit'
[[ ! -s err.txt ]] || fail "the audit wrote to stderr: $(cat err.txt)"

# The table of parameters has a line for each, with the learning rate of the first step: a quarter of the peak.
"$program" --data text.txt "${small[@]}" --model llama --recipe umup-fp8 --lr 2 --warmup 4 --print-parameters \
  > parameters.txt 2> err.txt || fail "no parameters: $(cat err.txt)"
grep -qE '^decoder/block0/ffn/up/weight +\[44,16\] +weight +1 +0\.25 +0\.25 +0\.125 +none$' parameters.txt ||
  fail "no line for a parameter: $(cat parameters.txt)"
grep -qE '^9 parameters of [0-9]+ values$' parameters.txt ||
  fail "the parameters are not counted: $(tail -n 1 parameters.txt)"
"$program" --data text.txt "${small[@]}" --recipe us-fp16 --placement post --final-norm --readout-bias \
  --print-parameters > parameters.txt 2> err.txt || fail "no parameters of us-fp16: $(cat err.txt)"
grep -qE '^decoder/readout/bias +\[[0-9]+\] +bias +zeros +- +0\.25 +' parameters.txt ||
  fail "no bias of the readout, at width^-1/2 times the rate: $(cat parameters.txt)"
"$program" --data text.txt "${small[@]}" --recipe umup-fp8 --weight-decay 0.0625 --print-parameters \
  > parameters.txt 2> err.txt || fail "no parameters with weight decay: $(cat err.txt)"
grep -qE '^decoder/block0/ffn/up/weight .* 0\.0625$' parameters.txt || fail "no weight decay: $(cat parameters.txt)"
[[ ! -s err.txt ]] || fail "the parameters wrote to stderr: $(cat err.txt)"

# A published shape sets all sizes but those that are given, before it or behind it.
"$program" --data text.txt --depth 1 --shape llama2-70b --width 32 --heads 16 --hidden 24 --seq 16 --recipe fp32 \
  --print-parameters > parameters.txt 2> err.txt || fail "no parameters of a shape: $(cat err.txt)"
grep -qE '^decoder/block0/ffn/gate/weight +\[24,32\] ' parameters.txt || fail "another shape: $(cat parameters.txt)"
grep -qE '^decoder/block0/attention/key/weight +\[16,32\] ' parameters.txt || fail "other heads: $(cat parameters.txt)"

# The report is one complete page, also if the run fails.
"$program" --data text.txt "${small[@]}" --recipe unit-fp8 --report page.html --quiet > /dev/null
grep -q '</html>' page.html || fail 'the report is not whole'
grep -q '^<p class="soft source">data: text.txt; date: 20[0-9-]*; command: ' page.html ||
  fail 'the report does not name data, date and command'
grep -qE '; processor: kernels [a-z0-9]+, caches [0-9]+k, [0-9]+[km]' page.html ||
  fail 'the report does not name kernels and caches'
grep -q 'decoder/block0/ffn/up/linear' page.html || fail 'the report does not name a tensor'
code=0
"$program" --data text.txt "${small[@]}" --recipe fp32 --warmup 1 --lr 3e38 --quiet --report failed.html \
  > /dev/null 2> err.txt || code=$?
[[ $code == 1 ]] || fail "exit code $code of a run that failed"
grep -q 'step [2-6]: the ' failed.html || fail 'the report does not explain the failure'

# Runs that succeed.
for recipe in fp32 fp16 fp16-loss-scaled fp16-auto-loss-scaled fp16-histogram-loss-scaled fp16-log-normal-loss-scaled \
  bf16 unit-fp32 unit-fp16 scalify-fp16-1 scalify-fp16-2 scalify-fp8-3 scalify-fp8-4 fp8-amax fp8-cscale fp8-delayed \
  unit-fp8; do
  "$program" --data text.txt "${small[@]}" --recipe "$recipe" --log "$recipe.jsonl" > out.txt 2> err.txt ||
    fail "$recipe: exit code $?: $(tail -n 1 err.txt)"
  result="^result recipe=$recipe steps=6 train_bpc=[0-9.]+ valid_bpc=[0-9.]+"
  result+=" tokens_per_s=[0-9]+ peak_rss_mb=[0-9]+ seconds=[0-9.]+\$"
  tail -n 1 out.txt | grep -qE "$result" || fail "$recipe: no result line: $(tail -n 1 out.txt)"
  grep -q '^sample$' out.txt || fail "$recipe: no sample"
  grep -qE "of the sample's [0-9]+ words of three and more letters occur" out.txt ||
    fail "$recipe: words are not counted"
  grep -q 'step 6/6' err.txt || fail "$recipe: no progress"
  [[ $(wc -l < "$recipe.jsonl") == 6 ]] || fail "$recipe: the log has not one line per step"
  ! grep -qvE '^\{"step":[1-6],"train_bpc":.*\}$' "$recipe.jsonl" || fail "$recipe: a log line is no object"
  "$program" --list-recipes > list.txt
  grep -qE "^$recipe +.*learning rate" list.txt || fail "$recipe is not listed"
done
grep -qE '^decoder/block0/attention/query/linear +linear +e4m3 +e4m3 +e5m2$' out.txt || fail "no table of formats"

"$program" --data text.txt "${small[@]}" --beta2 0.999 --epsilon 1e-5 --hidden 20 > out.txt 2> err.txt ||
  fail "--epsilon: exit code $?: $(tail -n 1 err.txt)"
grep -q ', Adam (0.9, 0.999), epsilon 1e-05, cosine to 0.1, ' out.txt || fail 'the settings do not name epsilon'
grep -q '^model       gpt, hidden 20, width 16, ' out.txt || fail 'the settings do not name the hidden columns'
"$program" --data text.txt "${small[@]}" --test --quiet > test.txt 2> err.txt || fail "--test: exit code $?"
grep -qE '^result recipe=[^ ]+ steps=6 train_bpc=[0-9.]+ valid_bpc=[0-9.]+ test_bpc=[0-9.]+ tokens_per_s=' test.txt ||
  fail "no test loss: $(cat test.txt)"
"$program" --data text.txt "${small[@]}" --threads 1 --quiet > quiet.txt 2> err.txt || fail "--quiet: exit code $?"
[[ $(wc -l < quiet.txt) == 1 && ! -s err.txt ]] || fail "--quiet writes more than the result line"
"$program" --data text.txt "${small[@]}" --quiet --threads 2 > again.txt
losses() { sed -E 's/ tokens_per_s.*//' "$1"; }
[[ $(losses quiet.txt) == "$(losses again.txt)" ]] || fail "2 threads give another result"
"$program" --help > help.txt || fail "--help: exit code $?"
grep -q -- '--micro-batches' help.txt || fail "--help names no options"

# Other tokens: losses are given per token and per byte, and a run that is resumed must have equal tokens.
other=(--data text.txt --width 16 --depth 1 --heads 2 --seq 8 --batch 4 --sample 20 --recipe fp32 --test)
for tokens in bytes bpe:270; do
  rm -f tokens.jsonl
  "$program" "${other[@]}" --tokens "$tokens" --steps 6 --log tokens.jsonl --save tokens.safetensors \
    > out.txt 2> err.txt || fail "$tokens: $(cat err.txt)"
  figures="train_bpt=[0-9.]+ valid_bpt=[0-9.]+ valid_bpb=[0-9.]+ test_bpt=[0-9.]+ test_bpb=[0-9.]+ tokens_per_s="
  tail -n 1 out.txt | grep -qE "^result recipe=fp32 steps=6 $figures" || fail "$tokens: $(tail -n 1 out.txt)"
  grep -q ' bits/token ' err.txt || fail "$tokens: the progress has another unit"
  grep -qE '^\{"step":6,"train_bpt":[0-9.]+,"train_bpb":[0-9.]+,' tokens.jsonl || fail "$tokens: no loss in the log"
  "$program" "${other[@]}" --tokens "$tokens" --steps 8 --resume tokens.safetensors \
    > out.txt 2> err.txt || fail "$tokens: does not resume: $(cat err.txt)"
done
grep -q '^data .* tokens to train on, .* bytes each' out.txt || fail "no bytes of a token: $(cat out.txt)"
bad 2 "checkpoint: tokens.safetensors: its model is not this run's$" "${other[@]}" --tokens bpe:260 --steps 8 \
  --resume tokens.safetensors

# Recipes from files, and changes of single fields.
echo '{"base": "fp8-amax", "name": "mine", "loss_scaling": {"kind": "automatic", "initial": 1024}}' > mine.json
"$program" --data text.txt "${small[@]}" --recipe mine.json --set matmul.gradient=bf16 --log mine.jsonl \
  > out.txt 2> err.txt || fail "a recipe of a file: $(cat err.txt)"
grep -qE '^scaling +none, parametrisation standard, loss scale automatic from 1024' out.txt ||
  fail 'no line about scaling'
row='^decoder/block0/ffn/up/linear +linear +e4m3fnuz amax margin 3 +e4m3fnuz amax margin 3 +bf16 amax margin 3$'
grep -qE "$row" out.txt || fail 'the overridden format is not in the table'
tail -n 1 out.txt | grep -q '^result recipe=mine ' || fail 'the recipe has not the name of its file'
grep -q '"loss_scale":1024' mine.jsonl || fail 'the log has no loss scale'

# A run that changes its recipe says so in its output and in its log, and goes on with the same switch only.
first=(--data text.txt "${small[@]}" --recipe mxfp8)
"$program" "${first[@]}" --switch-at 4 --switch-to bf16 --log switch.jsonl --save switch.safetensors \
  > out.txt 2> err.txt || fail "a switch of recipes: $(cat err.txt)"
grep -q '^step 4: switched from mxfp8 to bf16$' out.txt || fail 'the output does not say where the recipe changes'
[[ $(grep -c '^decoder/block0/ffn/up/linear ' out.txt) == 2 ]] || fail 'not a table of formats for each recipe'
grep -q '^{"step":5,.*"switched_to":"bf16"' switch.jsonl || fail 'the log does not say where the recipe changes'
[[ $(grep -c switched_to switch.jsonl) == 1 ]] || fail 'the log says more than once where the recipe changes'
tail -n 1 out.txt | grep -q '^result recipe=mxfp8 switch_at=4 switch_to=bf16 steps=6 ' ||
  fail "no result line of a switch: $(tail -n 1 out.txt)"
bad 2 '--resume: switch.safetensors was trained with --switch-at 4, not 5$' "${first[@]}" \
  --switch-at 5 --switch-to bf16 --resume switch.safetensors
bad 2 '--resume: switch.safetensors was trained with --switch-to bf16, not fp16$' "${first[@]}" \
  --switch-at 4 --switch-to fp16 --resume switch.safetensors
bad 2 '--resume: switch.safetensors was trained with --switch-at 4 --switch-to bf16; expected both$' "${first[@]}" \
  --resume switch.safetensors
"$program" --help > help.txt || fail "--help: exit code $?"
grep -q -- '--switch-at' help.txt || fail "--help does not name --switch-at"

# Checkpoints: a run that was killed continues to the result of an uninterrupted run.
# A finished run evaluates to its result again.
long=(--data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 400 --threads 1 --quiet
  --recipe fp8-delayed --sample 0)
"$program" "${long[@]}" > whole.txt
"$program" "${long[@]}" --save run.safetensors --save-every 20 > /dev/null 2>&1 &
run=$!
for ((i = 0; i < 200; ++i)); do
  [[ ! -e run.safetensors ]] || break
  sleep 0.02
done
kill -9 "$run" 2> /dev/null || true
wait "$run" 2> /dev/null || true
"$program" "${long[@]}" --resume run.safetensors --save run.safetensors > resumed.txt 2> err.txt ||
  fail "--resume: $(cat err.txt)"
[[ $(losses whole.txt) == "$(losses resumed.txt)" ]] ||
  fail "a resumed run ends elsewhere: $(cat whole.txt resumed.txt)"
"$program" "${long[@]}" --resume run.safetensors > again.txt
[[ $(losses whole.txt) == "$(losses again.txt)" ]] || fail 'a finished run evaluates to another number'
bad 2 '--resume: run.safetensors was trained with --seed 1, not 2$' "${long[@]}" --resume run.safetensors --seed 2
bad 2 '--resume: run.safetensors is at step 400, after the run.s 5 steps$' "${long[@]/400/5}" --resume run.safetensors
bad 2 "checkpoint: run.safetensors: its model is not this run's$" "${long[@]/16/32}" --resume run.safetensors
"$program" "${small[@]}" --data text.txt --quiet --recipe unit-fp8 --weights run.safetensors \
  > /dev/null 2> err.txt || fail "--weights: $(cat err.txt)"

((failures == 0)) || exit 1
echo "train_transformer: all checks passed"
