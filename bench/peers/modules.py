#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes values and gradients of PyTorch's modules in double, with which tests/runs/pytorch_test.cpp compares ours.

Usage: python3 bench/peers/modules.py tests/data/pytorch_modules.safetensors   (Debian: python3-torch)

cases.py names the tensors. BatchNorm has its running statistics after the pass, and its output in use, too.
"""
import sys

import torch

from cases import keep, run, tensors, write

torch.manual_seed(1)
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

# Attention. A boolean mask of PyTorch is true where a key is hidden.
lengths = torch.tensor([7, 4])
padding = torch.arange(7)[None, :] >= lengths[:, None]
added = torch.randn(5, 7).float().double()  # ours are float
added[0, 1] = added[3, 6] = -torch.inf
keep("attention", "added", added)
run("attention", nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=6), torch.randn(2, 5, 8),
    torch.randn(2, 7, 6), output=first,
    call=lambda module, x, z: module(x, z, z, key_padding_mask=padding, attn_mask=added))
for kind, norm_first in ("post", False), ("pre", True):
    run("encoder_" + kind, nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=norm_first),
        torch.randn(2, 7, 8), call=lambda module, x: module(x, src_key_padding_mask=padding))
causal = torch.triu(torch.full((5, 5), -torch.inf), diagonal=1)
run("decoder", nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True), torch.randn(2, 5, 8),
    torch.randn(2, 7, 8),
    call=lambda module, x, z: module(x, z, tgt_mask=causal, memory_key_padding_mask=padding))

# Ops.
for name, op in {
        "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "cumsum": lambda x: x.cumsum(1),
        "min": lambda x: x.amin(1), "prod": lambda x: x.prod(1)}.items():
    run(name, nn.Identity(), 2 * torch.randn(3, 4, 2), call=lambda module, x: op(x))
for name, op in {"maximum": torch.maximum, "minimum": torch.minimum}.items():
    run(name, nn.Identity(), torch.randn(3, 4), torch.randn(3, 4), call=lambda module, x, z: op(x, z))

write(sys.argv[1])
