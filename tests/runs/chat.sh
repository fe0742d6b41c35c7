#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program chat: replies of the Python package transformers, turn by turn, commands, bad input.
# Usage: chat.sh PROGRAM
set -euo pipefail
data=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../data/pretrained" && pwd)
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

# chat <lines of input> <argument>...: stdout in out.txt
chat() {
  printf '%b' "$1" | "$program" "${@:2}" --temperature 0 --tokens 12 > out.txt 2> err.txt || fail "$*: $(cat err.txt)"
}
bytes() { od -An -v -tx1 out.txt | tr -d ' \n'; }
# The package gives these replies to the templates' texts.
r=efbfbd
first=2f${r}6963650002${r}66730f${r}02730a second=5a${r}${r}${r}${r}${r}${r}69636500${r}${r}6963650a
chat 'hello\nhow are you\n/reset\nhello\n/quit\nnever\n' --model "$data/llama3" --template llama3
[[ $(bytes) == "$first$second$first" ]] || fail "llama3: wrote $(cat out.txt)"
grep -qE '^prompt [0-9]+ tokens, .*; text 33 tokens, [0-9.]+ tokens/s; peak memory' err.txt || fail "$(cat err.txt)"
# The name of a special token in a line is plain text.
chat 'hello\nhow are <|im_end|> you' --model "$data/qwen2" --template chatml --system 'Be kind.'
text=${r}111d7f1e7f7f1e6d${r}7f7f0a7f7f7f7f${r}3e${r}${r}${r}${r}${r}${r}0a
[[ $(bytes) == "$text" ]] || fail "chatml: wrote $(cat out.txt)"
chat 'hello\n' --model "$data/gpt2_text" --stop O --recipe fp8-amax --cache bf16
chat '' --model "$data/gpt2_text"
[[ ! -s out.txt ]] || fail "no input: wrote $(cat out.txt)"

# A turn that cannot be answered is one line, and the chat goes on.
chat 'a\xff\nhello\n' --model "$data/llama3" --template llama3
[[ $(bytes) == "$first" && $(head -n 1 err.txt) == 'chat: line: is not UTF-8: byte 0xff at offset 1;'* ]] ||
  fail "a line that is not UTF-8: $(cat err.txt)"
chat "$(printf '0%.0s' {1..60})\nhello\n" --model "$data/gpt2_text"
[[ $(head -n 1 err.txt) == *'more leave no position for a reply; the model has 48; /reset begins anew' ]] ||
  fail "a line that is too long: $(cat err.txt)"
[[ -s out.txt ]] || fail 'no reply behind a line that is too long'

# shellcheck disable=SC2034
silent=yes
bad '--model is required'
bad 'none' --model none
# shellcheck disable=SC2034
given=(--model "$data/gpt2_text")
bad "--template: unknown name 'alpaca'; expected one of plain, chatml, llama3" --template alpaca
bad '--template: chatml needs the token <\|im_start\|>, which the model.s tokeniser lacks' --template chatml
bad '--recipe: unit-fp8 multiplies by factors' --recipe unit-fp8
bad 'chat: temperature is -1; expected 0 or more' --temperature -1
bad '--tokens: is -1; expected a whole number, not negative' --tokens -1

((failures == 0)) || exit 1
echo "chat: all checks passed"
