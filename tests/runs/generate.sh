#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program generate: the sample of the run that saved the model, seeds, the texts of the Python package
# transformers, stop strings, bad input.
# Usage: generate.sh PROGRAM
set -euo pipefail
data=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../data/pretrained" && pwd)
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"
train=$(dirname -- "$program")/train_transformer

write_text
"$train" --data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 4 --steps 60 --quiet --sample 0 \
  --save model.safetensors > /dev/null

"$program" model.safetensors --prompt "the " --tokens 40 --seed 3 > first.txt 2> err.txt
"$program" model.safetensors --prompt "the " --tokens 40 --seed 3 --threads 1 > again.txt 2> err.txt
"$program" model.safetensors --prompt "the " --tokens 40 --seed 4 --temperature 2 > other.txt 2> err.txt
cmp -s first.txt again.txt || fail 'the same seed writes another text'
! cmp -s first.txt other.txt || fail 'another seed and temperature write the same text'
grep -q '^the ' first.txt || fail 'the prompt is not in front'
[[ $(wc -m < first.txt) == 45 ]] || fail "$(wc -m < first.txt) characters instead of 4 + 40 and a line's end"
speed='^prompt 4 tokens, [0-9]+ tokens/s; text 39 tokens, [0-9.]+ tokens/s; peak memory [1-9][0-9]* MB$'
grep -qE "$speed" err.txt || fail "no line of speeds: $(cat err.txt)"

# Published models: the texts of generated.json are the package's. The name of a special token is that token.
generate() { "$program" --model "$data/$1" --temperature 0 "${@:2}" > out.txt 2> err.txt || fail "$*: $(cat err.txt)"; }
bytes() { od -An -v -tx1 "$1" | tr -d ' \n'; }
generate gpt2_text --prompt 'The early bird' --tokens 24
r=efbfbd text=546865206561726c792062697264
for ((i = 0; i < 18; ++i)); do text+=$r; done
text+=4f${r}4f4f4f${r}0a
[[ $(bytes out.txt) == "$text" ]] || fail "gpt2_text: wrote $(cat out.txt)"
generate llama3 --prompt 'The early bird' --tokens 24
text=546865206561726c7920626972646a${r}${r}203a${r}6a${r}576865${r}20${r}${r}ef8e8e${r}09${r}${r}68${r}0d0a
[[ $(bytes out.txt) == "$text" ]] || fail "llama3: wrote $(cat out.txt)"
generate qwen2 --prompt 'The early bird' --tokens 24
text=546865206561726c792062697264${r}${r}16${r}20${r}${r}${r}${r}19204949494949494949494949490a
[[ $(bytes out.txt) == "$text" ]] || fail "qwen2: wrote $(cat out.txt)"
# Without --tokens the text ends where the model's positions end.
generate gpt2_text --prompt 'The early bird'
grep -qE '^prompt 7 tokens, .*; text 40 tokens, ' err.txt || fail "not all positions are used: $(cat err.txt)"
# No part of a stop string is shown, whatever the tokens are.
generate llama3 --prompt 'The early bird' --stop he --stop never
text=546865206561726c7920626972646a${r}${r}203a${r}6a${r}570a
[[ $(bytes out.txt) == "$text" ]] || fail "a stop string: wrote $(cat out.txt)"
for recipe in fp8-amax bf16 scalify-fp16-1; do
  generate llama3 --prompt 'The early bird' --tokens 9 --recipe $recipe --cache fp16 --top-p 0.9 --top-k 5
  grep -q '^The early bird' out.txt || fail "$recipe: wrote $(cat out.txt)"
done
draw=(--model "$data/qwen2" --prompt a --tokens 30 --temperature 1 --seed 7)
"$program" "${draw[@]}" > first.txt 2> err.txt
"$program" "${draw[@]}" --threads 1 > again.txt 2> err.txt
"$program" "${draw[@]}" --repetition-penalty 3 > other.txt 2> err.txt
cmp -s first.txt again.txt || fail 'two threads write another text'
! cmp -s first.txt other.txt || fail 'a repetition penalty changes nothing'

# SentencePiece's tokenizer.model in place of tokenizer.json: the text of generated_pieces.json.
tokens=$data/../tokenisers
pieces=(--model pieces --prompt 'The early bird catches' --tokens 24 --temperature 0)
cp -r "$data/llama3" pieces && rm pieces/tokenizer.json
if "$program" "${pieces[@]}" > out.txt 2> err.txt; then
  text=546865206561726c7920626972642063617463686573${r}74c29f${r}7b${r}${r}14${r}74c29f05${r}dab0352546
  text+=73c29f${r}0a
  [[ $(bytes out.txt) == "$text" ]] || fail "pieces: wrote $(cat out.txt)"
  grep -q '^prompt 21 tokens, ' err.txt || fail "no begin of text: $(cat err.txt)"
  # Spaces, and line breaks, which are byte pieces.
  "$train" --data text.txt --tokens "$tokens/sentencepiece_bpe.model" --width 32 --depth 1 --heads 2 --seq 32 \
    --batch 8 --steps 150 --lr 0.02 --quiet --sample 0 --save pieces.safetensors > /dev/null
  "$program" pieces.safetensors --prompt 'the early' --tokens 60 --temperature 0 > out.txt 2> err.txt
  sed -n 2p out.txt | grep -qx 'the early bird catches the worm' || fail "pieces of a text: wrote $(cat out.txt)"
else
  [[ $(cat err.txt) == 'generate: tokeniser: pieces/tokenizer.model needs libsentencepiece, which this '* ]] ||
    fail "without SentencePiece: $(cat err.txt)"
fi

# A model of other tokens keeps its tokeniser.
"$train" --data text.txt --tokens bpe:270 --width 16 --depth 1 --heads 2 --seq 8 --batch 4 --steps 20 --quiet \
  --sample 0 --save pairs.safetensors > /dev/null
"$program" pairs.safetensors --prompt 'the ' --tokens 10 > pairs.txt 2> err.txt ||
  fail 'a model of byte pairs writes no text'
grep -qa '^the ' pairs.txt || fail 'the prompt is not in front'

# shellcheck disable=SC2034
silent=yes
bad 'safetensors: none.safetensors' none.safetensors
bad "vocabulary: character 'X' .* is not among the" model.safetensors --prompt X
bad 'generate: the prompt is empty' model.safetensors --prompt ''
bad 'generate: temperature is -1; expected 0 or more' model.safetensors --temperature -1
bad 'checkpoint: .*/gpt2/model.safetensors: holds published weights; expected their folder as --model, or' \
  "$data/gpt2/model.safetensors"
bad 'checkpoint: .*/bert.safetensors: holds BERT.s weights, and BERT does not write text; expected a model of train_' \
  "$data/../bert.safetensors"
head -c 2000 model.safetensors > cut.safetensors
bad 'safetensors: cut.safetensors' cut.safetensors
bad '--model: is absent; expected a model.s folder, or a file of weights'
bad '--recipe requires --model' model.safetensors --recipe fp32
bad '--prompt: is not UTF-8: byte 0xff at offset 1' model.safetensors --prompt $'a\xff'
bad '--tokens: is -1; expected a whole number, not negative' model.safetensors --tokens -1

# shellcheck disable=SC2034
given=(--model "$data/gpt2_text")
bad '--prompt: is not UTF-8: byte 0xe2 at offset 2' --prompt $'a \xe2\x82'
bad '--prompt: has 60 tokens; the model has 48 positions' --prompt "$(printf '0%.0s' {1..60})"
bad '--tokens: 48 behind a prompt of 7; the model has 48 positions' --prompt 'The early bird' --tokens 48
bad '--recipe: unit-fp8 multiplies by factors' --recipe unit-fp8
bad 'generate: top_p is 2; expected a number above 0, at most 1' --top-p 2
bad 'generate: repetition_penalty is 0; expected a positive number' --repetition-penalty 0
bad '--stop: is empty; expected a text' --stop ''
bad "format: unknown name 'fp1'" --cache fp1

# Folders that are not whole.
folder() { rm -rf broken && cp -r "$data/llama3" broken; }
# shellcheck disable=SC2034
given=(--model broken)
folder
rm broken/model-00002-of-00002.safetensors
bad 'broken/model-00002-of-00002.safetensors does not exist or is not a file'
folder
head -c 9000 "$data/llama3/model-00002-of-00002.safetensors" > broken/model-00002-of-00002.safetensors
bad 'safetensors: broken/model-00002-of-00002.safetensors: tensor '
folder
sed -i 's/"lm_head.weight": "model-00002/"lm_head.weight": "model-00001/' broken/model.safetensors.index.json
bad "tensor 'lm_head.weight' belongs into 'model-00001-of-00002.safetensors', as the model's index says"
folder
sed -i 's/"lm_head.weight": "model/"lm_head.weight": "..\/model/' broken/model.safetensors.index.json
bad "the file of tensor 'lm_head.weight' is '../model.*; expected the name of a file beside the index"
folder
sed -i 's/"weight_map": {/"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors",/' \
  broken/model.safetensors.index.json
bad "names tensor 'model.norm.weight' twice"
folder
rm broken/tokenizer.json broken/tokenizer.model
bad 'tokeniser: broken has no tokenizer.json, no tokenizer.model and no vocab.json$'
folder
sed -i 's/"llama3"/"yarn"/' broken/config.json
bad 'rope_parameters.rope_type is "yarn"; expected default, linear or llama3'
folder
sed -i 's/"model_type": "llama"/"model_type": "granite"/' broken/config.json
bad 'model_type is "granite"; expected "llama" or "qwen2"'

((failures == 0)) || exit 1
echo "generate: all checks passed"
