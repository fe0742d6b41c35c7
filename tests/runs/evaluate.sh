#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program evaluate: the table, its figures against chance and against a broken format, threads, bad input.
# Usage: evaluate.sh PROGRAM
set -euo pipefail
data=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../data" && pwd)
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"
train=$(dirname -- "$program")/train_transformer

# The first eight words of a sentence end with a place, and the place determines the next eight. So a trained model can
# tell the true rest from rests of other places. All rests have equal lengths, and differ by the number at their end.
names=(anna bert carl dora) verbs=(walked sailed drove went) places=(mill lake hill port)
ends=('where the old grey stones lie in rows' 'and the deep blue water was very cold'
  'up there in the wind and summer rains' 'to see some big ships which sail away')
for ((i = 0; i < 1200; ++i)); do
  n=$((i * 7 % 11 % 4)) v=$((i * 5 % 13 % 4)) p=$((i * 3 % 7 % 4))
  echo "once more ${names[n]} ${verbs[v]} slowly to the ${places[p]} ${ends[p]} $((100 + i * 37 % 311))."
done > text.txt
shape=(--data text.txt --width 64 --depth 1 --heads 2 --seq 48 --batch 8 --steps 200 --quiet --sample 0 --threads 1)
"$train" "${shape[@]}" --recipe fp32 --lr 0.01 --save model.safetensors > /dev/null
"$train" "${shape[@]}" --recipe unit-fp8 --save unit.safetensors > /dev/null

# accuracy <file> <number>: the accuracy of a row of the table, counted from 1, in thousandths
accuracy() {
  grep -E '^[a-z]+\.safetensors +' "$1" | sed -n "$2p" | sed -E 's/^\S+ +\S+ +\S+ +([0-9]+)\.([0-9]).*/\1\2/'
}

given=(--model model.safetensors)
"$program" "${given[@]}" --data text.txt --questions 60 --recipes fp32,fp16,fp8-amax --biases -8..8 --threads 1 \
  --save-task task.jsonl --json rows.jsonl > out.txt 2> err.txt || fail "exit code $?: $(cat err.txt)"
[[ ! -s err.txt ]] || fail "wrote to stderr: $(cat err.txt)"
grep -qxF 'task continuations: 60 questions, the last tenth of the text; blind choice is right for 25.0 %' out.txt ||
  fail "no line about the task: $(cat out.txt)"
figure='[0-9]+\.[0-9] \[[0-9]+\.[0-9], [0-9]+\.[0-9]\]'
[[ $(grep -cE "^model.safetensors +(fp32|fp16|fp8-amax) +- +$figure +$figure\$" out.txt) == 3 ]] ||
  fail "not three recipes: $(cat out.txt)"
[[ $(grep -cE "^model.safetensors +fp8-cscale +-?[0-8] +$figure +$figure\$" out.txt) == 17 ]] ||
  fail "not 17 biases: $(cat out.txt)"
ranges='(-?[0-9]+(\.\.-?[0-9]+)?,?)+'
kept="^biases that keep 99.5 % of fp32's accuracy, model.safetensors, continuations"
grep -qE "$kept: $ranges; normalised: $ranges\$" out.txt || fail "no biases are kept: $(cat out.txt)"
line='^result recipe=fp32 task=continuations questions=60 skipped=0 chance=25.0% accuracy=[0-9.]+% normalised=[0-9.]+% '
tail -n 1 out.txt | grep -qE "${line}rows=20 kept=$ranges kept_normalised=$ranges\$" || fail "$(tail -n 1 out.txt)"

# Rests of the right place are chosen: 2/3 of the answers can be right, as the number cannot be told. Formats that keep
# the weights keep this accuracy. A bias that makes every operand zero brings it down to chance.
(($(accuracy out.txt 1) >= 500)) || fail "fp32 has $(accuracy out.txt 1) of 1000"
for row in 2 3 12; do
  (($(accuracy out.txt "$row") >= $(accuracy out.txt 1) - 50)) || fail "row $row has $(accuracy out.txt "$row")"
done
"$program" "${given[@]}" --task task.jsonl --recipes fp32 --biases -20..-20 > broken.txt
[[ $(accuracy broken.txt 1) == $(accuracy out.txt 1) ]] || fail 'the saved task gives another accuracy'
(($(accuracy broken.txt 2) <= 450)) || fail "operands of zero have $(accuracy broken.txt 2) of 1000"
grep -qE ': none; normalised: none$' broken.txt || fail "a bias of -20 is kept: $(cat broken.txt)"

# The biases of recipes that measure them, by layer and role. A recipe without measured scales has one line.
"$program" "${given[@]}" --data text.txt --task task.jsonl --questions 40 --recipes fp32,fp8-amax --biases 0..0 \
  --show-biases --json biases.jsonl > biases.txt 2> err.txt || fail "exit code $?: $(cat err.txt)"
[[ ! -s err.txt ]] || fail "wrote to stderr: $(cat err.txt)"
for task in continuations task; do
  title="biases of model.safetensors under fp8-amax, $task: the most frequent over 40 questions, and its share of them"
  sed -n "/^$title\$/,/^\$/p" biases.txt > table.txt
  [[ $(sed -n 2p table.txt) =~ ^layer\ +role\ +bias\ +share\ +least\ +largest$ ]] || fail "no table: $(cat biases.txt)"
  for role in activation weight; do
    figures='-?[0-9]+ +[0-9]+\.[0-9] % +-?[0-9]+ +-?[0-9]+'
    [[ $role != weight ]] || figures='(-?[0-9]+) +100\.0 % +\1 +\1'
    rows=$(grep -cE "^decoder/block0/[a-z_/]+/linear +$role +$figures\$" table.txt || true)
    ((rows >= 4 && rows == $(grep -c " $role " table.txt))) || fail "the role $role: $(cat table.txt)"
  done
  ! grep -q gradient table.txt || fail "gradients were measured: $(cat table.txt)"
done
none='none is measured, as no operand has the scale amax or delayed by tensor'
[[ $(grep "none is measured" biases.txt) == "biases of model.safetensors under fp32: $none" ]] ||
  fail "not one line about fp32: $(cat biases.txt)"
[[ $(grep -c '"biases":' biases.jsonl) == 2 ]] || fail "not two objects with biases: $(cat biases.jsonl)"
grep -qE '"recipe":"fp8-amax".*"biases":\{.*"decoder/block0/[a-z_/]+/linear\|weight":\{"-?[0-9]+":40\}' biases.jsonl ||
  fail "no counts: $(cat biases.jsonl)"
tail -n 1 biases.txt | grep -q '^result ' || fail "$(tail -n 1 biases.txt)"
! grep -q '^biases of ' out.txt || fail 'biases without --show-biases'

# The lines of JSON have the table's figures.
[[ $(wc -l < rows.jsonl) == 20 ]] || fail "not 20 lines of JSON: $(cat rows.jsonl)"
begin='^\{"model":"model.safetensors","recipe":"fp8-cscale","bias":-8,"task":"continuations","questions":60,'
grep -qE "$begin.*\"accuracy\":[0-9.]+,\"accuracy_low\":[0-9.]+,\"accuracy_high\":[0-9.]+,\"normalised\":" rows.jsonl ||
  fail "no JSON of a bias: $(cat rows.jsonl)"

# A terminal has a bar, whose unit is a question in a row.
if command -v script > /dev/null; then
  script -qec "'$program' --model model.safetensors --task task.jsonl --recipes fp32,fp16" bar.txt > /dev/null \
    < /dev/null || fail "exit code $? on a terminal"
  grep -qE '\[#{24}\] question 120/120  [01]\.[0-9]{3} right  [0-9]+ questions/s  0:00 left' bar.txt ||
    fail "no bar: $(cat bar.txt)"
fi

# Results depend on the seed, and not on the number of threads.
short=(--data text.txt --questions 20 --recipes fp16 --recipes fp8-amax)
"$program" "${given[@]}" "${short[@]}" --threads 1 > one.txt
"$program" "${given[@]}" "${short[@]}" --threads 2 > two.txt
"$program" "${given[@]}" "${short[@]}" --seed 2 --save-task other.jsonl > other.txt
cmp -s one.txt two.txt || fail 'one thread and two give other results'
! cmp -s one.txt other.txt || fail 'another seed gives equal results'

# Several models and tasks; each model has its own recipe; --set changes a field.
"$program" --model model.safetensors unit.safetensors --data text.txt --task task.jsonl --questions 20 > models.txt
[[ $(grep -cE "^(model.safetensors +fp32|unit.safetensors +unit-fp8) +- +($figure +){3}$figure\$" models.txt) == 2 ]] ||
  fail "not two models with two tasks: $(cat models.txt)"
grep -qxF 'task task: 20 questions, the first 20 of 60 in task.jsonl; blind choice is right for 25.0 %' models.txt ||
  fail "no line about the file: $(cat models.txt)"
(($(accuracy models.txt 2) >= 500)) || fail "unit-fp8 has $(accuracy models.txt 2) of 1000"
"$program" "${given[@]}" "${short[@]}" --set matmul.activation=e2m1 --set matmul.weight=e2m1 > set.txt
! cmp -s one.txt set.txt || fail '--set changes nothing'

# Questions with characters that the model lacks are counted.
{
  cat task.jsonl
  echo '{"question": "anna went to the \u00e9", "choices": [" and", " or"], "answer": 0}'
} > foreign.jsonl
"$program" "${given[@]}" --task foreign.jsonl > foreign.txt
skipped="task foreign: 1 more are skipped, with characters that a vocabulary lacks, such as 'é' (U+00E9)"
grep -qxF "$skipped" foreign.txt || fail "no skipped question: $(cat foreign.txt)"
tail -n 1 foreign.txt | grep -qE '^result .* questions=60 skipped=1 ' || fail "$(tail -n 1 foreign.txt)"
tail -n 1 foreign.jsonl > only.jsonl

# shellcheck disable=SC2034
silent=yes
bad '--data, --task: none given$'
bad '--save-task: writes the questions of --data, which is not given$' --task task.jsonl --save-task x.jsonl
bad "task only: a model's vocabulary lacks characters of every question, such as 'é' \\(U\\+00E9\\)\$" --task only.jsonl
bad 'data: none.txt does not exist$' --data none.txt
bad 'data: none.jsonl does not exist$' --task none.jsonl
bad "recipe: unknown name 'fp7'; expected one of " --task task.jsonl --recipes fp7
other='checkpoint: model.safetensors: another model: '
bad "${other}unit-fp8 has scaling unit; expected none, as fp32 has\$" --task task.jsonl --recipes fp32,unit-fp8
bad "${other}scalify-fp8-3 has scaling propagate; expected none, as fp32 has\$" --task task.jsonl \
  --recipes scalify-fp8-3
bad "--biases: is '3'; expected LOWEST..HIGHEST within -64..64, such as -8..8\$" --task task.jsonl --biases 3
bad '--questions: .*is -1; expected a whole number, not negative' --task task.jsonl --questions -1
bad 'continuation questions: 1 choices; expected at least 2$' --data text.txt --choices 1
bad 'log: none/rows.jsonl cannot be opened for writing$' --task task.jsonl --json none/rows.jsonl
bad 'data: none/task.jsonl cannot be written' --data text.txt --save-task none/task.jsonl
printf '{"question": "anna", "choices": ["%080d", "b"], "answer": 0}\n' 1 > long.jsonl
bad "question 'anna': choice_scores: choices\\[0\\] has 80 tokens; expected 1 to 48, the positions of the model\$" \
  --task long.jsonl
while IFS='|' read -r line pattern; do
  printf '{"question": "a", "choices": ["a", "b"], "answer": 0}\n%b\n' "$line" > bad.jsonl
  bad "data: bad.jsonl: line 2$pattern\$" --task bad.jsonl
done <<'LINES'
{"question"| is not JSON
{"question": "\xff"}| is not UTF-8: byte 0xff at offset 14
{"choices": ["a", "b"], "answer": 0}| has no key 'question'
{"question": "a", "choices": ["a"], "answer": 0}|: choices has 1 entry; expected at least 2
{"question": "a", "choices": ["a", ""], "answer": 0}|: choices\[1\] is empty
{"question": "a", "choices": ["a", "b"], "answer": 2}|: answer is 2; expected a whole number below 2, .*
LINES
: > empty.jsonl
bad 'data: empty.jsonl has no questions$' --task empty.jsonl
given=()
bad '--model is required$' --task task.jsonl
bad 'safetensors: none.safetensors' --model none.safetensors --task task.jsonl
bad 'checkpoint: .*/gpt2/model.safetensors: has no recipe$' --model "$data/pretrained/gpt2/model.safetensors" \
  --task task.jsonl
head -c 2000 model.safetensors > cut.safetensors
bad 'safetensors: cut.safetensors' --model cut.safetensors --task task.jsonl

((failures == 0)) || exit 1
echo "evaluate: all checks passed"
