#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program compare_recipes: exit codes, one line on stderr for bad input, tables, page, continuation after a
# kill.
# Usage: compare_recipes.sh PROGRAM [MPIRUN]      Without MPIRUN the program was built without MPI.
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

write_text
small=(--data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 6)

given=(--data text.txt)
begun='recipes.*'
bad "recipe: unknown name 'fp7'; expected one of " --recipes fp32,fp7
bad '--recipes: fp32 is given twice$' --recipes fp32,fp32
bad '--out: none/page.html cannot be written$' --out none/page.html
bad '--plot: none/a.svg cannot be written$' --plot none/a.svg
bad '--lr: is 0; expected a positive number$' --lr 1e-3,0
bad '--lr excludes --lr-factor$' --lr 1e-3 --lr-factor 2
bad '--steps: is -1; expected a whole number, not negative$' --steps -1
bad '--seeds: is 0; expected a number from 1 to 1000$' --seeds 0
bad '--jobs: is 0; expected a number from 1 to 1000$' --jobs 0
bad '--heads: width 128 is not divisible by 3 heads$' --heads 3
bad "--window: is '8'; expected LOWEST..HIGHEST within -64..64, such as -8..8\$" --window 8
bad '--window: the weights are those of fp32, which --recipes does not name$' --recipes unit-fp8 --window -1..1
bad 'data: missing.txt does not exist$' --data missing.txt
bad 'speed' --speed

# The tables and the page are written, and no other file is left.
"$program" "${small[@]}" --recipes fp32,fp8-amax,unit-fp8 --seeds 2 --window -8..8 --out page.html --plot losses.svg \
  > out.txt 2> err.txt || fail "exit code $?: $(cat err.txt)"
[[ $(head -c 5 losses.svg) == '<svg ' && $(tail -n 1 losses.svg) == '</svg>' ]] || fail "the plot is not whole"
[[ $(grep -oE '<title>[^<]*' losses.svg | tr '\n' ' ') == '<title>fp32 <title>fp8-amax <title>unit-fp8 ' ]] ||
  fail "the plot has not a curve for each recipe"
grep -qE '^6 runs, of which 0 are done$' out.txt || fail "not 6 runs: $(cat out.txt)"
for recipe in fp32 fp8-amax unit-fp8; do
  row="^$recipe +[0-9.]+ +[0-9]\.[0-9]{4} +[0-9]\.[0-9]{4} +[+-][0-9.]+ % +0 of 2 +0"
  row+=" +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+\$"
  grep -qE "$row" out.txt || fail "no row for $recipe: $(cat out.txt)"
done
[[ $(grep -cE '^-?[0-8] +[0-9.]+ +[+-][0-9.]+ % +(yes|no)$' out.txt) == 17 ]] || fail "not 17 biases: $(cat out.txt)"
[[ $(head -c 15 page.html) == '<!DOCTYPE html>' && $(tail -n 1 page.html) == *'</html>' ]] ||
  fail "the page is not whole"
! sed 's@http://www.w3.org/2000/svg@@g' page.html | grep -qE 'https?:|src=|url\(' || fail "the page asks for something"
grep -q '^<p class="soft source">data: text.txt; date: 20[0-9-]*; command: .* --plot losses.svg</p>$' page.html ||
  fail "the page does not name data, date and command"
grep -q '<desc>data: text.txt; ' losses.svg || fail "the plot does not name its data"
grep -q 'fp8-amax: biases over training, by layer and role' page.html || fail "no biases on the page"
files=(*)
[[ ${files[*]} == 'err.txt losses.svg out.txt page.html page.jsonl text.txt' ]] || fail "files are left: ${files[*]}"
[[ $(wc -l < page.jsonl) == 8 ]] || fail "not 8 records"

# The file of another comparison is not changed.
cp page.jsonl before.jsonl
code=0
"$program" "${small[@]/16/32}" --out page.html > out.txt 2> err.txt || code=$?
other='compare_recipes: comparison: page.jsonl is of another comparison: its width is 16, not 32; choose another --out'
[[ $code == 2 && $(cat err.txt) == "$other" ]] || fail "another comparison: $code $(cat err.txt)"
cmp -s page.jsonl before.jsonl || fail "another comparison's file was changed"

# Runs that are killed again and again end with the losses of runs that were not killed. No finished run is repeated.
long=(--data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 300
  --recipes 'fp32,fp8-delayed' --save-every 20)
survives_kills "${long[@]}"

# Runs that processes of MPI share: the records of one process.
shares_runs "${2:-}" "${long[@]/300/1500}" --window -1..1

"$program" --help > help.txt || fail "--help: exit code $?"
grep -q -- '--window' help.txt || fail "--help names no options"

((failures == 0)) || exit 1
echo "compare_recipes: all checks passed"
