# SPDX-License-Identifier: MIT
"""Tokens per second of the Python package transformers: a GPT-2 with random weights and a key-value cache.

Usage: python bench/peers/generate.py [--dtype float32|bfloat16] [--tokens N] [--threads N]
The shape is that of `bench_train_generate --gpt2`. Prints the median of three texts.
"""
import argparse
import time

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--threads", type=int, default=1)
arguments = parser.parse_args()
torch.set_num_threads(arguments.threads)
torch.manual_seed(0)
config = transformers.GPT2Config()
model = transformers.GPT2LMHeadModel(config).to(getattr(torch, arguments.dtype)).eval()
prompt = torch.arange(8).reshape(1, 8)
rates = []
with torch.inference_mode():
    for _ in range(4):
        start = time.perf_counter()
        past, ids = None, prompt
        for _ in range(arguments.tokens):
            result = model(ids, past_key_values=past, use_cache=True)
            past = result.past_key_values
            ids = result.logits[:, -1:].argmax(-1)
        rates.append(arguments.tokens / (time.perf_counter() - start))
rates = sorted(rates[1:])
print(f"transformers {transformers.__version__}, torch {torch.__version__}, {arguments.dtype}, "
      f"{arguments.threads} threads: {rates[1]:.1f} tokens/s")
