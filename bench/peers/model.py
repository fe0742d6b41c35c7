# SPDX-License-Identifier: MIT
"""The transformer of this library's decoder, written in PyTorch: learned positions, pre-norm RMSNorm without gains, gelu
feed-forward of ratio 4, no biases, untied readout, causal attention (the library's own fused one where it has it). Weights,
tables and readout start normal with standard deviation 0.02, as under the recipe fp32."""
import math

import torch
from torch import nn
from torch.nn import functional as F

if hasattr(F, "rms_norm"):
    def rms_norm(x):
        return F.rms_norm(x, (x.shape[-1],), eps=1e-5)
else:
    def rms_norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def attention(self, x):
        b, t, w = x.shape
        q, k, v = (layer(x).view(b, t, self.heads, w // self.heads).transpose(1, 2)
                   for layer in (self.query, self.key, self.value))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(w // self.heads)
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, w))

    def forward(self, x):
        x = x + self.attention(rms_norm(x))
        return x + self.down(F.gelu(self.up(rms_norm(x))))


class Decoder(nn.Module):
    """ids [B,T] to logits [B,T,vocabulary]. `generator` draws the initial values; without one, PyTorch's own."""

    def __init__(self, vocabulary, width, depth, heads, length, generator=None):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.readout = nn.Linear(width, vocabulary, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0.0, 0.02, generator=generator)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.readout(rms_norm(x))
