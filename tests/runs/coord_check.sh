#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program coord_check: exit codes, one line on stderr for bad input, a page that is complete or absent, the
# verdict as the last line.
# Usage: coord_check.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

write_text
small=(--data text.txt --depth 1 --head-size 8 --seq 16 --batch 4 --seeds 2)

given=("${small[@]}")
begun='*.html*'
bad "--parametrisation: unknown 'np'; expected one of standard, unit, mup, umup$" --parametrisation np
bad '--widths: 1 width; a trend needs at least 2, such as 64,128,256,512$' --widths 64
bad '--widths: 100 is not divisible by the head size 8$' --widths 64,100
bad '--widths: 64 is given twice$' --widths 64,64
bad '--widths: is -64; expected a whole number, not negative$' --widths=-64,128
bad '--steps: is 0; expected at least 1$' --steps 0
bad '--steps: is -1; expected a whole number, not negative$' --steps -1
bad "recipe: unknown name 'fp7'; expected one of " --recipe fp7
bad 'excludes' --recipe fp32 --parametrisation mup
bad '--out: none/page.html cannot be written$' --out none/page.html
bad 'data: missing.txt does not exist$' --data missing.txt
bad 'speed' --speed

# verdict <expected: a pattern> <argument>...
verdict() {
  local expected=$1
  shift
  "$program" "${small[@]}" "$@" > out.txt 2> err.txt || fail "exit code $?: $*: $(cat err.txt)"
  [[ ! -s err.txt ]] || fail "wrote to stderr: $(cat err.txt)"
  tail -n 1 out.txt | grep -qE "^verdict: ($expected)$" ||
    fail "the last line is not verdict: $expected: $*: $(cat out.txt)"
  [[ $(head -c 15 page.html) == '<!DOCTYPE html>' && $(tail -n 1 page.html) == *'</html>' ]] ||
    fail "the page is not whole"
  ! grep -qE 'https:|src=|url\(' page.html || fail "the page asks for something"
}
# Small widths and few steps give the expected verdicts, too.
verdict growing --parametrisation standard --lr 0.001 --widths 32,64,128 --steps 4 --out page.html
verdict flat --parametrisation mup --lr 0.001 --widths 32,64,128 --steps 4 --out page.html
verdict flat --parametrisation umup --widths 32,64,128 --steps 4 --out page.html
mv page.html first.html
"$program" "${small[@]}" --parametrisation umup --widths 128,32,64 --steps 4 --out page.html --threads 2 > again.txt ||
  fail "2 threads: exit code $?"
grep -q '^<p class="soft source">data: .*; date: 20[0-9-]*; command: .* --out page.html' page.html ||
  fail "the page does not name data, date and command"
without_source() { grep -v 'class="soft source"' "$1"; }  # the command lines differ
cmp -s <(without_source page.html) <(without_source first.html) ||
  fail "2 threads, or widths in another order, give another page"
verdict 'flat|growing|shrinking' --recipe umup-fp8 --set hyperparameters.alpha_attn=2 --model gpt --widths 16,32 \
  --steps 1 --out page.html
"$program" --help > help.txt || fail "--help: exit code $?"
grep -q -- '--parametrisation' help.txt || fail "--help names no options"

((failures == 0)) || exit 1
echo "coord_check: all checks passed"
