#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program pretrained: next tokens of the Python package transformers, arguments instead of a config.json,
# fine-tuning under recipes of every storage, tuned weights that load again as a file and as a folder, bad input.
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

# Fine-tuning. save_ids <type> <bytes of an element> <file> <id>...: a .npy file, for ids below 256.
save_ids() {
  local zeros='' text i
  for ((i = 1; i < $2; ++i)); do zeros+='\\x00'; done
  text="{'descr': '$1', 'fortran_order': False, 'shape': ($(($# - 3)),), }"
  {
    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "$text"
    # shellcheck disable=SC2059
    printf '%b' "$(printf "\\\\x%02x$zeros" "${@:4}")"
  } > "$3"
}
ids=()
for ((i = 0; i < 600; ++i)); do ids+=($((i * i % 12 * 2 + i % 4))); done
save_ids '<i4' 4 ids.npy "${ids[@]}"
save_ids '<i8' 8 wide.npy "${ids[@]}"
parts=(--batch 4 --micro-batches 2 --seq 12)
short=(--steps 20 "${parts[@]}")
value() { sed -nE "s/^result .* $1=([0-9.]+).*/\1/p" "$2"; }
for family in gpt2 llama; do
  for recipe in fp32 fp8-amax fp16-auto-loss-scaled scalify-fp16-1; do
    "$program" "$data/$family/model.safetensors" --fine-tune ids.npy "${short[@]}" --lr 0.02 --recipe $recipe \
      --save tuned.safetensors > out.txt 2> err.txt || fail "$family, $recipe: exit code $?: $(cat err.txt)"
    number='[0-9]+\.[0-9]{4}' line="^result recipe=$recipe steps=20"
    for name in before_nats before_bits after_nats after_bits; do line+=" $name=$number"; done
    tail -n 1 out.txt | grep -qE "$line skipped=[0-9]+ tokens_per_s=[0-9]+\$" ||
      fail "$family, $recipe: no result line: $(tail -n 1 out.txt)"
    grep -qE "^before      $number nats, $number bits per token$" out.txt || fail "$recipe: no loss before"
    grep -q 'step 20/20 .* bits/token .* left$' err.txt || fail "$recipe: no progress: $(cat err.txt)"
    awk -v before="$(value before_nats out.txt)" -v after="$(value after_nats out.txt)" \
      'BEGIN { exit !(after > 0 && after < before - 0.5) }' ||
      fail "$family, $recipe: learns nothing: $(tail -n 1 out.txt)"
    # The file has its settings, so that it needs no config.json.
    "$program" tuned.safetensors --fine-tune ids.npy --steps 1 "${parts[@]}" --recipe $recipe \
      > again.txt 2> err.txt || fail "$family, $recipe: the tuned file: exit code $?: $(cat err.txt)"
    [[ $(value after_nats out.txt) == "$(value before_nats again.txt)" ]] ||
      fail "$family, $recipe: the tuned file has another loss: $(tail -n 1 out.txt), $(tail -n 1 again.txt)"
    "$program" tuned.safetensors --ids $prompt --top 1 --recipe $recipe > out.txt 2> err.txt ||
      fail "$family, $recipe: the tuned file has no next tokens: $(cat err.txt)"
  done
done
# A folder for the package: settings, tokeniser and all.
for name in gpt2 llama3 qwen2; do
  "$program" "$data/$name" --fine-tune ids.npy "${short[@]}" --lr 0.01 --save folder/ > out.txt 2> err.txt ||
    fail "$name: exit code $?: $(cat err.txt)"
  "$program" folder --fine-tune ids.npy --steps 1 "${parts[@]}" > again.txt 2> err.txt ||
    fail "$name: the tuned folder: exit code $?: $(cat err.txt)"
  [[ $(value after_nats out.txt) == "$(value before_nats again.txt)" ]] ||
    fail "$name: the tuned folder has another loss: $(tail -n 1 out.txt), $(tail -n 1 again.txt)"
  [[ $name == gpt2 ]] || cmp folder/tokenizer.json "$data/$name/tokenizer.json" || fail "$name: another tokeniser"
  [[ $(compgen -G 'folder*') == folder ]] || fail "$name: files are left: $(compgen -G 'folder*')"
  rm -r folder
done
gpt2=("$data/gpt2/model.safetensors")
short+=(--lr 0.02)
"$program" "${gpt2[@]}" --fine-tune ids.npy "${short[@]}" --threads 1 --save one.safetensors > one.txt 2> err.txt
"$program" "${gpt2[@]}" --fine-tune ids.npy "${short[@]}" --threads 2 --save two.safetensors > two.txt 2> err.txt
cmp one.safetensors two.safetensors || fail "two threads give other weights"
"$program" "${gpt2[@]}" --fine-tune wide.npy "${short[@]}" --recompute --save wide.safetensors > wide.txt 2> err.txt
cmp one.safetensors wide.safetensors || fail "ids of eight bytes, or --recompute, give other weights"
"$program" "${gpt2[@]}" --fine-tune ids.npy --steps 1 > out.txt 2> err.txt || fail "the defaults: $(cat err.txt)"
usual='1 steps of 512 x 20 tokens in 512 parts, learning rate 2e-05, AdamW \(0.9, 0.999\), epsilon 1e-05, weight decay'
grep -qE "^training    $usual 0.01, " out.txt || fail "no line with the defaults: $(cat out.txt)"

begun='bad.safetensors*'
given=("${gpt2[@]}" --save bad.safetensors --batch 4 --fine-tune)
save_ids '<f4' 4 floats.npy 0 0
save_ids '<i4' 4 above.npy 1 32 "${ids[@]}"
save_ids '<i4' 4 few.npy "${ids[@]:0:100}"
bad "npy: floats.npy holds elements of type '<f4'; expected whole numbers, such as '<i4'$" floats.npy
bad 'npy: above.npy: id 1 is 32; expected a number in \[0,32\)$' above.npy
bad 'data: 100 tokens are too few; sequences of 20 need at least 201, so that the last tenth holds one$' few.npy
bad 'npy: .*/ids.npy has shape \[2,20\]; expected \[N\] token ids$' "$data/gpt2/ids.npy"
bad 'npy: none.npy does not exist or is not a file$' none.npy
bad 'npy: gpt2.safetensors is not a .npy file' gpt2.safetensors
bad '--recipe: unit-fp8 multiplies by factors' ids.npy --recipe unit-fp8
bad '--recipe: mup-fp32 multiplies by factors' ids.npy --recipe mup-fp32
bad '--seq: is 21; expected at most the model.s 20 positions$' ids.npy --seq 21
bad '--micro-batches: batch 4 is not divisible by 3 micro-batches$' ids.npy --micro-batches 3
bad '--steps: is 0; expected at least 1$' ids.npy --steps 0
bad '--steps: is -1; expected a whole number, not negative$' ids.npy --steps -1
bad '--lr: is 0; expected a positive number$' ids.npy --lr 0
bad '--ids excludes --fine-tune$' ids.npy --ids 1
bad '--tokens excludes --fine-tune$' ids.npy --tokens 3
given=("${gpt2[@]}")
bad '--save requires --fine-tune$' --ids 1 --save bad.safetensors
bad '--ids: is absent; expected token ids, or --fine-tune with a file of them$'
bad '--save: none/tuned.safetensors cannot be written$' --fine-tune ids.npy --save none/tuned.safetensors
bad '--save: none/tuned cannot be written: No such file or directory$' --fine-tune ids.npy --save none/tuned
mkdir full && touch full/file
bad '--save: full exists; expected no or an empty folder$' --fine-tune ids.npy --save full
bad '--save: ids.npy is not a folder$' --fine-tune ids.npy --save ids.npy
given=(one.safetensors --ids 1)
bad 'one.safetensors: holds all settings of its model; expected none beside it$' --heads 4
code=0
"$program" "${gpt2[@]}" --fine-tune ids.npy "${parts[@]}" --lr 1e30 --save bad.safetensors > out.txt 2> err.txt ||
  code=$?
[[ $code == 1 && $(tail -n 1 err.txt) == *'try a lower --lr (it is 1e+30)' ]] ||
  fail "exit code $code of a run that failed: $(tail -n 1 err.txt)"
[[ ! -e bad.safetensors ]] || fail "a run that failed has saved weights"

((failures == 0)) || exit 1
echo "pretrained: all checks passed"
