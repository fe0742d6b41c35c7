#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program scale_report: exit codes, one line on stderr for bad input, a page that is complete or absent.
# Usage: scale_report.sh PROGRAM
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

write_text
small=(--data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 6)

given=("${small[@]}")
begun='*.html*'
bad "recipe: unknown name 'fp7'; expected one of " --recipe fp7
bad "format: unknown name 'e9m9'; expected " --value-format e9m9
bad "tracker: pattern 'foo\*' matched no tensor; the model's tensors begin decoder/" --track 'foo*'
bad '--out: none/page.html cannot be written$' --out none/page.html
bad '--lr-factor: is 0; expected a positive number$' --lr-factor 0
bad '--steps: is -1; expected a whole number, not negative$' --steps -1
bad '--model: is bert; expected gpt, llama or unit-scaling$' --model bert
bad '--head-size: width 16 is not divisible by heads of size 5$' --head-size 5
bad 'data: missing.txt does not exist$' --data missing.txt
bad 'speed' --speed

"$program" "${small[@]}" --recipe unit-fp8 --recipe fp32 --out page.html --json lines.jsonl > out.txt 2> err.txt ||
  fail "exit code $?: $(cat err.txt)"
[[ ! -s err.txt ]] || fail "wrote to stderr: $(cat err.txt)"
[[ $(grep -cE '^result recipe=(unit-fp8|fp32) steps=6 ' out.txt) == 2 ]] || fail "no result lines: $(cat out.txt)"
[[ $(head -c 15 page.html) == '<!DOCTYPE html>' && $(tail -n 1 page.html) == *'</html>' ]] ||
  fail "the page is not whole"
! grep -qE 'https?:|src=|url\(' page.html || fail "the page asks for something"
grep -q '"path":"decoder/block0/ffn/up/linear"' lines.jsonl || fail "no line about a linear layer"
! grep -qv '^{.*}$' lines.jsonl || fail "a line is no object"
"$program" "${small[@]}" --recipe unit-fp8 --recipe fp32 --out again.html --threads 2 > /dev/null ||
  fail "2 threads: exit code $?"
grep -q '^<p class="soft source">data: .*; date: 20[0-9-]*; command: .* --out page.html' page.html ||
  fail "the page does not name data, date and command"
without_source() { grep -v 'class="soft source"' "$1"; }  # the command lines differ
cmp -s <(without_source page.html) <(without_source again.html) || fail "2 threads give another page"
"$program" "${small[@]}" --model llama --head-size 4 --kv-heads 2 --recipe umup-fp8 --out llama.html > llama.txt ||
  fail "llama: exit code $?"
[[ $(grep -cE '^decoder/(block0/attention/out/linear|block0/ffn/down/linear|readout/readout) ' llama.txt) == 3 ]] ||
  fail "no table of products left in high precision: $(cat llama.txt)"
"$program" --help > help.txt || fail "--help: exit code $?"
grep -q -- '--lr-factor' help.txt || fail "--help names no options"

((failures == 0)) || exit 1
echo "scale_report: all checks passed"
