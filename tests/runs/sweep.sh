#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program sweep: exit codes, one line on stderr for bad input, tables, page and plot, continuation after a
# kill.
# Usage: sweep.sh PROGRAM [MPIRUN]      Without MPIRUN the program was built without MPI.
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

write_text
small=(--data text.txt --depth 1 --head-size 8 --seq 16 --batch 4)
short=("${small[@]}" --steps 6)

given=(--data text.txt)
begun='sweep.*'
bad '--axis: none given; without one a sweep has no points$'
names='lr, lr_factor, alpha_attn, alpha_ffn_act, alpha_res, .*, width, depth, .*, recipe'
bad "--axis: unknown hyperparameter 'beta'; expected one of $names\$" --axis beta=1
bad '--axis lr: 4:0.25:x2 has no points$' --axis lr=4:0.25:x2
bad '--axis lr: has no points$' --axis lr=
bad "--axis lr: is '0.5x'; expected a positive number, such as 0.25 or 2\^-2\$" --axis lr=1,0.5x
bad '--axis lr: is given twice$' --axis lr=1,2 --axis lr=3
bad '--axis lr: is an interval, which random search draws from; expected values, such as 0.25:4:x2$' --axis lr=0.25:4
bad '--points: is 0; expected a number from 1 to 100000$' --axis lr=0.25:4 --strategy random --points 0
bad "--strategy: is 'best'; expected one of grid, line, random, independent, upwards\$" --axis lr=1,2 --strategy best
bad '--strategy: an independent search begins with the learning rate; expected --axis lr=...$' \
  --axis alpha_res=1,2 --strategy independent
bad '--strategy: an upward search tries learning rates only; --axis alpha_res is neither one nor a condition: width, ' \
  --axis lr=1,2 --axis alpha_res=1,2 --strategy upwards
bad '--worse-by: is -1; expected 0 or more$' --axis lr=1,2 --strategy upwards --worse-by -1
bad '--placement: is after; expected pre, post or none$' --axis lr=1,2 --axis placement=pre,after
bad '--heads: width 96 is not divisible by 5 heads$' --axis width=80,96 --heads 5
bad '--head-size: width 40 is not divisible by heads of size 16$' --axis width=32,40 --head-size 16
bad "recipe: unknown name 'fp7'; expected one of " --recipes fp32,fp7 --axis lr=1,2
bad '--axis recipe: fp32 is given twice$' --recipes fp32,fp32 --axis lr=1,2
bad "recipe: unknown key 'speed'" --axis lr=1,2 --set speed=1
bad '--seeds: is 0; expected a number from 1 to 1000$' --axis lr=1,2 --seeds 0
bad '--jobs: is 0; expected a number from 1 to 1000$' --axis lr=1,2 --jobs 0
bad "--tokens: is 2047; expected one batch of 16 x 128 characters at least, and " --axis lr=1,2 --tokens 2047
no_scale='no operand of the recipe fp32 has a constant scale; expected one, as fp8-cscale has'
bad "--axis constant_bias: $no_scale\$" --recipes fp8-cscale,fp32 --axis constant_bias=-1..1
bad "--axis constant_bias: is '-1:1'; expected a whole number from -64 to 64, or a range, such as -8..8\$" \
  --recipe fp8-cscale --axis constant_bias=-1:1
bad '--axis steps: --tokens sets the steps$' --axis steps=10,20 --tokens 100000
bad '--steps excludes --tokens$' --axis lr=1,2 --tokens 100000 --steps 10
bad '--tokens: is -1; expected a whole number, not negative$' --axis lr=1,2 --tokens -1
bad "--rate: is 'query'; expected PATTERN=FACTOR, such as \*query\*=0.5, " --axis lr=1,2 --rate query
bad "--rate: group pattern '\*gate\*' matches none of the [0-9]* parameters\$" --axis lr=1,2 --rate '*gate*=1'
bad "--rate: group pattern '\*gate\*' matches none of the [0-9]* parameters\$" --axis 'rate:*gate*=1,2'
bad "--axis rate:: has no pattern of parameters' names; expected one, " --axis rate:=1,2
bad '--steps: is -1; expected a whole number, not negative$' --axis lr=1,2 --steps -1
bad '--out: none/page.html cannot be written$' --axis lr=1,2 --out none/page.html
bad '--plot: none/a.svg cannot be written$' --axis lr=1,2 --plot none/a.svg
bad 'data: missing.txt does not exist$' --axis lr=1,2 --data missing.txt
bad 'speed' --speed

# Recipes and widths over learning rates: the tables, the page and the plot are written, and no other file is left.
# A rate at which training fails is a point like others.
grid=(--recipes 'umup-fp32,fp32' --axis 'width=16,32' --axis lr_factor=0.5:2:x2)
"$program" "${short[@]}" "${grid[@]}" --seeds 2 --out page.html --plot rates.svg > out.txt 2> err.txt ||
  fail "exit code $?: $(cat err.txt)"
[[ ! -s err.txt ]] || fail "something on stderr: $(cat err.txt)"
grep -qE '^24 runs, of which 0 are done$' out.txt || fail "not 24 runs: $(cat out.txt)"
grep -qE '^\[24/24\] fp32, width 32, lr_factor 2, seed 2: [0-9.]+ bits/char, ' out.txt ||
  fail "no last run: $(cat out.txt)"
for recipe in umup-fp32 fp32; do
  for width in 16 32; do
    grep -qE "^$recipe, width $width +[0-9.]+ +[0-9.]+ +[0-9.]+ +([0-9.]+|-) +0 +6\$" out.txt ||
      fail "no best point of $recipe, $width: $(cat out.txt)"
  done
  row="^$recipe +lr_factor +width +[+-][0-9.]+.* at 16, [+-][0-9.]+.* at 32 +(unknown|(at least )?[0-9.]+)\$"
  grep -qE "$row" out.txt || fail "no movement of $recipe: $(cat out.txt)"
  grep -qE "^$recipe +width +lr_factor +[0-9.]+\$" out.txt || fail "no transfer error of $recipe: $(cat out.txt)"
done
[[ $(head -c 15 page.html) == '<!DOCTYPE html>' && $(tail -n 1 page.html) == *'</html>' ]] ||
  fail "the page is not whole"
! sed 's@http://www.w3.org/2000/svg@@g' page.html | grep -qE 'https?:|src=|url\(' || fail "the page asks for something"
grep -q '^<p class="soft source">data: text.txt; date: 20[0-9-]*; command: .* --plot rates.svg</p>$' page.html ||
  fail "the page does not name data, date and command"
grep -q '<desc>data: text.txt; ' rates.svg || fail "the plot does not name its data"
[[ $(grep -c 'class="heat"' page.html) == 2 ]] || fail "not two maps on the page"
[[ $(head -c 5 rates.svg) == '<svg ' && $(tail -n 1 rates.svg) == '</svg>' ]] || fail "the plot is not whole"
files=(*)
[[ ${files[*]} == 'err.txt out.txt page.html page.jsonl rates.svg text.txt' ]] || fail "files are left: ${files[*]}"
[[ $(wc -l < page.jsonl) == 25 ]] || fail "not 25 lines"

# Finished runs are not repeated. A further value and a further seed add runs.
"$program" "${short[@]}" "${grid[@]/16,32/16,32,48}" --seeds 3 --out page.html > out.txt 2> err.txt ||
  fail "exit code $?: $(cat err.txt)"
grep -qE '^54 runs, of which 24 are done$' out.txt || fail "not 24 of 54 runs were done: $(cat out.txt)"

# The file of another sweep is an error and is not changed. This holds for other settings and for other axes.
cp page.jsonl before.jsonl
code=0
"$program" "${small[@]}" --steps 7 "${grid[@]}" --out page.html > out.txt 2> err.txt || code=$?
other='sweep: sweep: page.jsonl is of another sweep: its steps is 6, not 7; choose another --out'
[[ $code == 2 && $(cat err.txt) == "$other" ]] || fail "another sweep: $code $(cat err.txt)"
"$program" "${short[@]}" --recipe fp32 --axis lr=1,2 --out page.html > out.txt 2> err.txt &&
  fail "other axes were accepted"
axes='its axes is \["lr_factor","recipe","width"\], not \["lr"\]'
grep -qE "^sweep: sweep: page.jsonl is of another sweep: $axes; choose another --out\$" err.txt ||
  fail "other axes: $(cat err.txt)"
cmp -s page.jsonl before.jsonl || fail "another sweep's file was changed"

# A run that fails is a point with the reason of the failure.
"$program" "${short[@]}" --width 16 --recipe fp32 --axis lr=0.01,1e30 --out failing.html > out.txt 2> err.txt ||
  fail "exit code $?: $(cat err.txt)"
grep -qE '^fp32 +[0-9.]+\* +failed ' out.txt || fail "no failed point: $(cat out.txt)"
grep -qE '^lr 1e\+30, seed 1: failed: the (loss|gradient norm|validation loss) is ' out.txt ||
  fail "no reason: $(cat out.txt)"

# An independent search in three stages, and a random search.
"$program" "${short[@]}" --width 16 --recipe umup-fp32 --axis lr=0.5,1 --axis alpha_attn=0.5,1,2 \
  --axis alpha_res=0.5,2 --strategy independent --out independent.html > out.txt 2> err.txt ||
  fail "exit code $?: $(cat err.txt)"
grep -qE '^2 runs, of which 0 are done$' out.txt || fail "the first stage is not 2 runs: $(cat out.txt)"
grep -qE '^6 runs, of which 2 are done$' out.txt || fail "the second stage is not 4 runs: $(cat out.txt)"
grep -qE '^umup-fp32 +[0-9.]+ +[0-9.]+ +[+-][0-9.]+ % +lr [0-9.]+, alpha_attn [0-9.]+, alpha_res [0-9.]+$' out.txt ||
  fail "no result: $(cat out.txt)"
"$program" "${short[@]}" --width 16 --recipe umup-fp32 --axis lr=0.25:4 --axis alpha_attn=1,2 --strategy random \
  --points 5 --out random.html > out.txt 2> err.txt || fail "exit code $?: $(cat err.txt)"
grep -qE '^5 runs, of which 0 are done$' out.txt || fail "not 5 random points: $(cat out.txt)"
grep -q 'Best loss so far' random.html || fail "no best loss so far"
grep -qE '^points +umup-fp32$' out.txt || fail "no shorter searches: $(cat out.txt)"
[[ $(grep -cE '^(1|2|4|5) +[0-9.]+$' out.txt) == 4 ]] || fail "not four lengths of searches: $(cat out.txt)"
grep -q 'shorter searches' random.html || fail "no shorter searches on the page"

# Batches at equal tokens, rates of parameters as axes, and root mean squares.
"$program" "${small[@]}" --width 16 --recipe umup-fp32 --tokens 768 --axis batch=4,8 --axis 'rate:*query*=0.5,2' \
  --axis embedding_rate=1 --rate '*readout/weight=0.5' --rms --out tokens.html > out.txt 2> err.txt ||
  fail "exit code $?: $(cat err.txt)"
grep -qE 'seq 16, 768 characters in each run, heads of 8; 1 seed from 1$' out.txt || fail "no tokens: $(cat out.txt)"
grep -qE '^\[4/4\] batch 8, rate:\*query\* 2, embedding_rate 1, seed 1: ' out.txt || fail "no rates: $(cat out.txt)"
grep -qE '^batch 8 +down +[0-9.]+ +[0-9.]+ +[0-9.e-]+ +[0-9.e-]+$' out.txt || fail "no rms: $(cat out.txt)"
grep -qE '^umup-fp32 +batch +down( +[+-][0-9.]+){4}$' out.txt || fail "no growth of the rms: $(cat out.txt)"
grep -q 'root mean squares at the end, at the best point' tokens.html || fail "no rms on the page"

# An upward search over placements with a test part; and constant loss scales, with counts of zeros.
"$program" "${short[@]}" --width 16 --recipe fp32 --axis placement=pre,none --axis lr=1e30,1e32,0.01 \
  --strategy upwards --worse-by 0.2 --test --out upwards.html > out.txt 2> err.txt ||
  fail "exit code $?: $(cat err.txt)"
grep -qE '^4 runs, of which 2 are done$' out.txt || fail "not two rates for each placement: $(cat out.txt)"
grep -qE '^ +lr +bits/char +spread +test +at defaults ' out.txt || fail "no column of the test: $(cat out.txt)"
grep -qE '^placement none +0\.01 +[0-9.]+ +- +[0-9.]+ +- +1 +2$' out.txt || fail "no test loss: $(cat out.txt)"
"$program" "${short[@]}" --width 16 --recipe fp16 --axis loss_scale=1,2^14 --out scales.html > out.txt 2> err.txt ||
  fail "exit code $?: $(cat err.txt)"
grep -qE '^fp16 +16384 +[0-9.]+ +[0-9.]+ % +0$' out.txt || fail "no shares: $(cat out.txt)"
grep -q 'gradients by loss scale' scales.html || fail "no table of gradients on the page"

# Constant biases: a window of good ones, and an error for a recipe without a constant scale.
"$program" "${short[@]}" --width 16 --recipe fp8-cscale --axis constant_bias=-30,-2..0 --out biases.html \
  > out.txt 2> err.txt || fail "exit code $?: $(cat err.txt)"
grep -qE '^\[4/4\] constant_bias 0, seed 1: ' out.txt || fail "no biases: $(cat out.txt)"
grep -qE '^constant_bias +-30 +-2 +-1 +0 +optimum *$' out.txt || fail "no table by the bias: $(cat out.txt)"
grep -qE '^fp8-cscale +-?[0-9][-.,0-9]* +[0-9.]+ +-30,-2\.\.0$' out.txt || fail "no window of biases: $(cat out.txt)"
grep -q 'constant biases that train within 1 % of the best' biases.html || fail "no window on the page"
grep -q '"constant_bias":-30,' biases.jsonl || fail "no bias in the file: $(cat biases.jsonl)"
"$program" "${short[@]}" --width 16 --recipe fp8-cscale --axis constant_bias=-30,-2..0 --out biases.html \
  > out.txt 2> err.txt || fail "exit code $?: $(cat err.txt)"
grep -qxF '4 runs, of which 4 are done' out.txt || fail "runs of biases are made again: $(cat out.txt)"

# Runs that are killed again and again end with the losses of runs that were not killed. No finished run is repeated.
long=(--data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 300
  --recipe fp32 --axis lr=0.001:0.008:x2 --save-every 20)
survives_kills "${long[@]}"

# Runs that processes of MPI share: the records of one process.
mpirun=${2:-}
shared=("${small[@]}" --width 16 --steps 2500 --recipe fp32 --axis lr=0.001:0.008:x2 --save-every 100)
shares_runs "$mpirun" "${shared[@]}"
if [[ -n $mpirun ]]; then
  # A process that dies ends all others. The record is whole, and the next search makes the missing runs.
  timeout 120 "$mpirun" -n 3 "$program" "${shared[@]}" --distributed --out "$folder/ended.html" > out.txt 2> err.txt &
  job=$!
  kill_one "$folder/ended.html" search
  wait_for_mpirun "$job" || true
  [[ $code != 0 ]] || fail "a search whose process was killed has exit code 0"
  for ((i = 0; i < 100; ++i)); do
    [[ -n $(processes_of "$folder/ended.html" run) ]] || break
    sleep 0.05
  done
  ((i < 100)) || fail "runs go on without their search"
  timeout 120 "$mpirun" -n 2 "$program" "${shared[@]}" --distributed --jobs 2 --out ended.html > out.txt 2> err.txt ||
    fail "after a killed process: exit code $?: $(cat err.txt)"
  [[ $(losses alone.jsonl) == "$(losses ended.jsonl)" ]] || fail "after a killed process: other records"

  # Stages that depend on each other; and an error, which ends all processes.
  stages=("${short[@]}" --width 16 --recipe umup-fp32 --axis lr=0.5,1 --axis alpha_attn=0.5,1,2 --strategy independent)
  "$program" "${stages[@]}" --out stages.html > out.txt 2>&1
  timeout 120 "$mpirun" -n 3 "$program" "${stages[@]}" --distributed --out shared_stages.html > out.txt 2> err.txt ||
    fail "stages: exit code $?: $(cat err.txt)"
  [[ $(losses stages.jsonl) == "$(losses shared_stages.jsonl)" ]] || fail "stages: other records than of one process"
  ends_by_error 60 -n 3 "$program" "${stages[@]}" --distributed --out none/page.html
  [[ $code == 2 && $(grep '^sweep: ' err.txt) == 'sweep: --out: none/page.html cannot be written' ]] ||
    fail "an error: exit code $code: $(cat err.txt)"
fi
error='{"error":"run: '"'{}'"' is not the task of a run","arguments":true}'
[[ $("$program" "${shared[@]}" --run '{}') == "$error" ]] || fail "no error of a run"
# With recovery the other processes go on. Open MPI 4 has it.
if [[ -n $mpirun && $("$mpirun" --version) == *'(Open MPI) 4.'* ]]; then
  OMPI_MCA_orte_enable_recovery=1 timeout 120 "$mpirun" -n 3 "$program" "${shared[@]}" --distributed --patience 2 \
    --out "$folder/goes_on.html" > out.txt 2> err.txt &
  job=$!
  kill_one "$folder/goes_on.html" search
  wait "$job" || fail "exit code $? of a search that goes on without a process: $(cat err.txt)"
  grep -qE ': died, is made again: process [12] has been silent for 2 s$' out.txt ||
    fail "no run was lost: $(cat out.txt)"
  [[ $(losses alone.jsonl) == "$(losses goes_on.jsonl)" ]] || fail "a search that goes on: other records"

  # Process 0 dies before it has given out a run: the others do not wait for ever. It waits for a text without an end.
  mkfifo endless.txt
  timeout 60 bash -c 'exec 3> endless.txt; touch begun; sleep 60' &
  text=$!
  OMPI_MCA_orte_enable_recovery=1 timeout 60 "$mpirun" -n 3 "$program" "${shared[@]/#text.txt/endless.txt}" \
    --distributed --patience 0.2 --out "$folder/endless.html" > out.txt 2> err.txt &
  job=$!
  for ((i = 0; i < 400; ++i)); do [[ ! -e begun ]] || break; sleep 0.05; done
  sleep 1
  for process in $(processes_of "$folder/endless.html" search); do
    grep -qxz OMPI_COMM_WORLD_RANK=0 "/proc/$process/environ" || continue
    kill -9 "$process" && first=$process
  done
  [[ -n ${first:-} ]] || fail "no process 0 to kill"
  wait_for_mpirun "$job" || true
  ((code != 124)) || fail "processes wait for ever for a process 0 that is dead"
  [[ -z $(processes_of "$folder/endless.html" search) ]] || fail "processes outlive mpirun"
  grep -qE '^sweep: rank [12]: TaskFarm: process 0 has been silent for 2 s without tasks$' err.txt ||
    fail "no line of a dead process 0: $(cat err.txt)"
  kill "$text" 2> /dev/null || true
fi

"$program" --help > help.txt || fail "--help: exit code $?"
grep -q -- '--strategy' help.txt || fail "--help names no options"

((failures == 0)) || exit 1
echo "sweep: all checks passed"
