#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program pretrained: next tokens of the Python package transformers, arguments instead of a config.json,
# bad input.
# Usage: pretrained.sh PROGRAM
set -euo pipefail
data=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../data/pretrained" && pwd)
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"

prompt=3,1,4,1,5,9
expect() {  # expect <line>... -- <argument>...: stdout
  local lines=()
  while [[ $1 != -- ]]; do lines+=("$1") && shift; done
  shift
  "$program" "$@" > out.txt 2> err.txt || fail "exit code $?: $*: $(cat err.txt)"
  [[ $(< out.txt) == "$(printf '%s\n' "${lines[@]}")" ]] || fail "$*: printed '$(< out.txt)'"
}
# The expected numbers are from LlamaForCausalLM and GPT2LMHeadModel in float64.
expect '8 2.0720' '25 1.7925' '31 1.1920' -- "$data/gpt2/model.safetensors" --ids $prompt --top 3
expect '3 2.0314' '2 1.9939' '21 1.9558' '3 15 15 23 22 6 23 23 28 3 ' -- \
  "$data/llama/model.safetensors" --ids $prompt --top 3 --tokens 10
cp "$data/gpt2/model.safetensors" gpt2.safetensors
expect '8 2.0720' -- gpt2.safetensors --ids $prompt --top 1 --heads 4 --epsilon 1e-5
expect '8 2.0720' -- gpt2.safetensors --ids $prompt --top 1 --config "$data/gpt2/config.json" --threads 1
for recipe in fp16 scalify-fp16-1; do
  "$program" gpt2.safetensors --config "$data/gpt2/config.json" --ids $prompt --top 1 --recipe $recipe \
    > out.txt 2> err.txt
  grep -qE '^8 2\.0[67]' out.txt || fail "$recipe: printed '$(< out.txt)'"
  grep -q 'weights were rounded' err.txt || fail "$recipe: no note on rounding: $(< err.txt)"
done

# shellcheck disable=SC2034
silent=yes
bad 'its shapes do not tell the number of heads, and no config.json is beside it' gpt2.safetensors --ids 1
bad 'is 32; expected a number in \[0,32\)' "$data/gpt2/model.safetensors" --ids 1,32
bad '21 tokens; learned positions end at 20' "$data/gpt2/model.safetensors" --ids "$(seq -s , 21)"
bad 'unit-fp8 multiplies by factors' "$data/gpt2/model.safetensors" --ids 1 --recipe unit-fp8
bad 'safetensors: none.safetensors does not exist' none.safetensors --ids 1
head -c 20000 gpt2.safetensors > cut.safetensors
bad 'safetensors: cut.safetensors' cut.safetensors --ids 1

((failures == 0)) || exit 1
echo "pretrained: all checks passed"
