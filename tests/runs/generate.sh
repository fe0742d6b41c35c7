#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program generate: the sample of the run that saved the model, seeds, bad input.
# Usage: generate.sh PROGRAM
set -euo pipefail
data=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../data/pretrained" && pwd)
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"
train=$(dirname -- "$program")/train_transformer

for ((i = 0; i < 60; ++i)); do echo "the early bird catches the worm"; done > text.txt
"$train" --data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 60 --quiet --sample 0 \
  --save model.safetensors > /dev/null

"$program" model.safetensors --prompt "the " --tokens 40 --seed 3 > first.txt
"$program" model.safetensors --prompt "the " --tokens 40 --seed 3 --threads 1 > again.txt
"$program" model.safetensors --prompt "the " --tokens 40 --seed 4 --temperature 2 > other.txt
cmp -s first.txt again.txt || fail 'the same seed writes another text'
! cmp -s first.txt other.txt || fail 'another seed and temperature write the same text'
grep -q '^the ' first.txt || fail 'the prompt is not in front'
[[ $(wc -m < first.txt) == 45 ]] || fail "$(wc -m < first.txt) characters instead of 4 + 40 and a line's end"

# A model of other tokens keeps its tokeniser. Its prompt may be any bytes.
"$train" --data text.txt --tokens bpe:270 --width 16 --depth 1 --heads 2 --seq 8 --batch 4 --steps 20 --quiet \
  --sample 0 --save pairs.safetensors > /dev/null
"$program" pairs.safetensors --prompt $'the \xff' --tokens 10 > pairs.txt || fail 'a model of byte pairs writes no text'
grep -qa '^the ' pairs.txt || fail 'the prompt is not in front'

# shellcheck disable=SC2034
silent=yes
bad 'safetensors: none.safetensors' none.safetensors
bad "vocabulary: character 'X' .* is not among the" model.safetensors --prompt X
bad 'generate: the prompt is empty' model.safetensors --prompt ''
bad 'generate: temperature is -1; expected 0 or more' model.safetensors --temperature -1
bad 'checkpoint: .*/gpt2/model.safetensors: holds published weights; the program pretrained runs them' \
  "$data/gpt2/model.safetensors"
bad 'checkpoint: .*/bert.safetensors: holds BERT.s weights, and BERT does not write text; expected a model of train_' \
  "$data/../bert.safetensors"
head -c 2000 model.safetensors > cut.safetensors
bad 'safetensors: cut.safetensors' cut.safetensors

((failures == 0)) || exit 1
echo "generate: all checks passed"
