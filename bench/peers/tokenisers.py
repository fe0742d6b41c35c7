#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains small tokenisers in the published layouts with the packages tokenizers and sentencepiece, and writes the ids
that these packages give to texts: the files of tests/data/tokenisers.

usage: python tokenisers.py make TEXT FOLDER     the tokenisers, and ids of samples, from a text such as tinyshakespeare
       python tokenisers.py ids TOKENISER FILE   the ids of every text of FILE (texts end in a zero byte), a line each
"""
import json
import os
import random
import sys

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

SIZE = 1000
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(text, pattern=None, normaliser=None, special=(), ignore_merges=False):
    """Byte-level BPE: the pattern of GPT-2, or another one in front."""
    tokeniser = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        level = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level])
    tokeniser.pre_tokenizer = level
    if normaliser is not None:
        tokeniser.normalizer = normaliser
    tokeniser.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokeniser.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokeniser


def with_byte_fallback(text, metaspace):
    """Llama 2's layout: characters, and bytes for those that are no token. Two ways to write its spaces."""
    tokeniser = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        tokeniser.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
    else:
        tokeniser.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special, show_progress=False)
    # Without cuts at spaces words are trained apart, as SentencePiece does.
    tokeniser.train_from_iterator((word for line in text.splitlines() for word in line.split(" ")), trainer)
    file = json.loads(tokeniser.to_str())
    file["added_tokens"] = file["added_tokens"][:3]
    tokeniser = Tokenizer.from_str(json.dumps(file))
    tokeniser.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokeniser.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                             special_tokens=[("<s>", 1)])
    return tokeniser


def samples(text, count):
    """Lines of the text, and random strings of Unicode."""
    rng = random.Random(21)
    lines = [line for line in text.splitlines(keepends=True)]
    texts = ["", " ", "  a", "a  b", "it's IT'S we'Ll 12345 1,000", "\r\n\n \t x\n", "\u2581\u2581 a", "e\u0301 \u00e9 \ufb01",
             "a<|endoftext|>b <s>c</s>", "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
             "   \u00a0\u2003x\u3000\u0085y\u180ez"]
    texts += rng.sample(lines, count // 4)
    ranges = [(0x20, 0x7E), (0x80, 0x24F), (0x300, 0x52F), (0x590, 0xDFF), (0x2000, 0x2BFF), (0x3000, 0x9FFF),
              (0x1F300, 0x1FAFF)]
    while len(texts) < count:
        wide = rng.random() < 0.3
        string = ""
        for _ in range(rng.randint(1, 30)):
            low, high = (0, 0x10FFFF) if wide else rng.choice(ranges)
            point = rng.choice([rng.randint(low, high), 0x20, ord(rng.choice("etaoin\n'"))])
            string += chr(point) if not 0xD800 <= point < 0xE000 and point != 0 else "x"
        texts.append(string)
    return texts


def tokenisers_of(text):
    llama3 = byte_level(text, LLAMA3, special=["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True)
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                      special_tokens=[("<|begin_of_text|>", 0)])])
    qwen2 = byte_level(text, QWEN2, normalizers.NFC(), special=["<|endoftext|>"])
    qwen2.add_special_tokens([AddedToken("<|im_start|>", normalized=False)])
    return {"gpt2": byte_level(text, special=["<|endoftext|>"]), "llama3": llama3, "qwen2": qwen2,
            "llama2": with_byte_fallback(text, False), "metaspace": with_byte_fallback(text, True)}


def ids_of(path, texts):
    if path.endswith(".model"):
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        return [model.encode(text) for text in texts]
    tokeniser = Tokenizer.from_file(path)
    return [tokeniser.encode(text, add_special_tokens=False).ids for text in texts]


def make(source, folder):
    with open(source, encoding="utf-8") as file:
        text = file.read()
    os.makedirs(folder, exist_ok=True)
    texts = samples(text, 200)
    with open(os.path.join(folder, "samples.json"), "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(json.dumps(sample) for sample in texts) + "\n]\n")
    paths = []
    for name, tokeniser in tokenisers_of(text).items():
        paths.append(os.path.join(folder, name + ".json"))
        with open(paths[-1], "w", encoding="ascii") as file:
            json.dump(json.loads(tokeniser.to_str()), file, separators=(",", ":"))
            file.write("\n")
    for kind in ("unigram", "bpe"):
        prefix = os.path.join(folder, "sentencepiece_" + kind)
        sentencepiece.SentencePieceTrainer.train(input=source, model_prefix=prefix, vocab_size=600, model_type=kind,
                                                 byte_fallback=kind == "bpe", character_coverage=1.0,
                                                 normalization_rule_name="identity",
                                                 minloglevel=2, num_threads=1)
        os.remove(prefix + ".vocab")
        paths.append(prefix + ".model")
    for path in paths:
        with open(path.rsplit(".", 1)[0] + "_ids.json", "w", encoding="ascii") as file:
            rows = [json.dumps(ids, separators=(",", ":")) for ids in ids_of(path, texts)]
            file.write("[\n" + ",\n".join(rows) + "\n]\n")


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("make", "ids"):
        sys.exit(__doc__)
    if sys.argv[1] == "make":
        return make(sys.argv[2], sys.argv[3])
    with open(sys.argv[3], encoding="utf-8", newline="") as file:
        texts = file.read().split("\0")[:-1]
    for ids in ids_of(sys.argv[2], texts):
        print(*ids)


if __name__ == "__main__":
    main()
