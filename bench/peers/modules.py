#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes values and gradients of PyTorch's modules in double, with which tests/runs/pytorch_test.cpp compares ours.

Usage: python3 bench/peers/modules.py tests/data/pytorch_modules.safetensors   (Debian: python3-torch)

Each case NAME has the tensors NAME.x, NAME.<parameter>, NAME.y, NAME.dy (the output's gradient), NAME.dx and
NAME.d<parameter>. BatchNorm has its running statistics after the pass, and its output in use.
"""
import json
import struct
import sys

import torch

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
tensors = {}


def keep(case, name, tensor):
    tensors[f"{case}.{name}"] = tensor.detach().contiguous().clone()


def run(case, module, *inputs, output=lambda result: result):
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    inputs = [x.requires_grad_() for x in inputs]
    y = output(module(*inputs))
    dy = torch.randn_like(y)
    y.backward(dy)
    for i, x in enumerate(inputs):
        keep(case, f"x{i}" if i else "x", x)
        keep(case, f"dx{i}" if i else "dx", x.grad)
    for name, parameter in module.named_parameters():
        keep(case, name, parameter)
        keep(case, "d" + name, parameter.grad)
    keep(case, "y", y)
    keep(case, "dy", dy)


nn = torch.nn
run("conv2d", nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
    torch.randn(2, 4, 7, 6))
run("conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), torch.randn(2, 4, 9))
run("average_pool", nn.AvgPool2d(3, stride=2, padding=1), torch.randn(2, 3, 7, 6))
run("max_pool", nn.MaxPool2d(3, stride=2, padding=1), torch.randn(2, 3, 7, 6))
run("group_norm", nn.GroupNorm(2, 6), torch.randn(3, 6, 4, 2))
batch_norm = nn.BatchNorm2d(3)
run("batch_norm", batch_norm, 2 * torch.randn(4, 3, 2, 5) + 1)
keep("batch_norm", "running_mean", batch_norm.running_mean)
keep("batch_norm", "running_var", batch_norm.running_var)
batch_norm.eval()
keep("batch_norm", "y_in_use", batch_norm(tensors["batch_norm.x"]))
first = lambda result: result[0]
run("gru", nn.GRU(4, 5, batch_first=True), torch.randn(2, 7, 4), torch.randn(1, 2, 5), output=first)
lstm = nn.LSTM(4, 5, batch_first=True)
run("lstm", lstm, torch.randn(2, 7, 4), output=first)

header, offset = {}, 0
for name, tensor in tensors.items():
    size = 8 * tensor.numel()
    header[name] = {"dtype": "F64", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
    offset += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors.values():
        file.write(tensor.numpy().tobytes())
print(f"{len(tensors)} tensors, {offset} bytes")
