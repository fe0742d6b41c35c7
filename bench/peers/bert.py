#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a small BERT's weights, values and gradients in double, with which tests/nn/bert_test.cpp compares nn::Bert.

Usage: python3 bench/peers/bert.py tests/data   (Debian: python3-torch)

bert.safetensors holds the weights under the names of the Python package transformers. bert_expected.safetensors holds
inputs, logits, losses, and the gradient d.NAME of the sum of the losses for each weight NAME. The model is written out
in functions of PyTorch.
"""
import json
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS, POSITIONS, EPSILON = 19, 8, 2, 12, 2, 9, 1e-12
weights = {}


def parameter(name, *shape):
    gain = len(shape) == 1 and name.endswith("LayerNorm.weight")
    value = 0.5 * torch.randn(*shape) + (1.0 if gain else 0.0)
    weights[name] = value.float().double().requires_grad_()  # stored in float, as published weights are


def layer(name, columns, rows):
    parameter(name + ".weight", rows, columns)
    parameter(name + ".bias", rows)


def norm(name):
    parameter(name + ".weight", WIDTH)
    parameter(name + ".bias", WIDTH)


for table, rows in ("word", VOCABULARY), ("token_type", 2), ("position", POSITIONS):
    parameter(f"bert.embeddings.{table}_embeddings.weight", rows, WIDTH)
norm("bert.embeddings.LayerNorm")
for i in range(LAYERS):
    at = f"bert.encoder.layer.{i}."
    for part in "query", "key", "value":
        layer(at + "attention.self." + part, WIDTH, WIDTH)
    layer(at + "attention.output.dense", WIDTH, WIDTH)
    norm(at + "attention.output.LayerNorm")
    layer(at + "intermediate.dense", WIDTH, HIDDEN)
    layer(at + "output.dense", HIDDEN, WIDTH)
    norm(at + "output.LayerNorm")
layer("bert.pooler.dense", WIDTH, WIDTH)
layer("cls.predictions.transform.dense", WIDTH, WIDTH)
norm("cls.predictions.transform.LayerNorm")
parameter("cls.predictions.bias", VOCABULARY)
layer("cls.seq_relationship", WIDTH, 2)
layer("qa_outputs", WIDTH, 2)

lengths = torch.tensor([7, 5, 3])
BATCH, LENGTH = 3, 7
ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
segments = (torch.arange(LENGTH)[None, :] >= torch.tensor([3, 2, 2])[:, None]).long()
rows = torch.tensor([1, 4, 8, 15, 11])
labels = torch.randint(0, VOCABULARY, (len(rows),))
next_labels, starts, ends = torch.tensor([0, 1, 1]), torch.tensor([2, 1, 0]), torch.tensor([6, 3, 2])
padding = torch.arange(LENGTH)[None, :] >= lengths[:, None]


def linear(name, x):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def normed(name, x):
    return F.layer_norm(x, (WIDTH,), weights[name + ".weight"], weights[name + ".bias"], EPSILON)


def heads(x):
    return x.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2)


x = weights["bert.embeddings.word_embeddings.weight"][ids]
x = x + weights["bert.embeddings.token_type_embeddings.weight"][segments]
x = x + weights["bert.embeddings.position_embeddings.weight"][torch.arange(LENGTH)]
x = normed("bert.embeddings.LayerNorm", x)
for i in range(LAYERS):
    at = f"bert.encoder.layer.{i}."
    q, k, v = (heads(linear(at + "attention.self." + part, x)) for part in ("query", "key", "value"))
    scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
    scores = scores.masked_fill(padding[:, None, None, :], -torch.inf)
    y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
    x = normed(at + "attention.output.LayerNorm", x + linear(at + "attention.output.dense", y))
    y = linear(at + "output.dense", F.gelu(linear(at + "intermediate.dense", x)))
    x = normed(at + "output.LayerNorm", x + y)
pooled = torch.tanh(linear("bert.pooler.dense", x[:, 0]))
y = normed("cls.predictions.transform.LayerNorm",
           F.gelu(linear("cls.predictions.transform.dense", x.reshape(-1, WIDTH)[rows])))
masked = y @ weights["bert.embeddings.word_embeddings.weight"].T + weights["cls.predictions.bias"]
next_sentence = linear("cls.seq_relationship", pooled)
start, end = linear("qa_outputs", x).masked_fill(padding[:, :, None], -torch.inf).unbind(-1)
pretraining = F.cross_entropy(masked, labels) + F.cross_entropy(next_sentence, next_labels)
spans = F.cross_entropy(start, starts) + F.cross_entropy(end, ends)
(pretraining + spans).backward()

expected = {"ids": ids, "segments": segments, "rows": rows, "labels": labels, "next_labels": next_labels,
            "starts": starts, "ends": ends, "hidden": x, "masked": masked, "pooled": pooled, "next": next_sentence,
            "start": start, "end": end, "losses": torch.stack([pretraining, spans])}
expected.update({"d." + name: weight.grad for name, weight in weights.items()})


TYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}


def save(path, tensors):
    header, offset = {}, 0
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        size = tensor.element_size() * tensor.numel()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.numpy().tobytes())
    print(path, len(tensors), "tensors,", 8 + len(text) + offset, "bytes")


folder = pathlib.Path(sys.argv[1])
save(folder / "bert.safetensors", {name: weight.detach().float() for name, weight in weights.items()})
save(folder / "bert_expected.safetensors", expected)
