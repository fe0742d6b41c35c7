#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes values and gradients of two context layers in double, with which tests/nn compares ours.

Usage: python3 bench/peers/context_layers.py tests/data/context_layers.safetensors   (Debian: python3-torch)

The layers are the recurrent and the convolutional one of the Unit Scaling experiments (arXiv:2303.11257, section 6.1).
Each is written here from its formula, for the standard model and for the unit-scaled one. The unit-scaled model has
explicit factors, joined by the geometric mean. cases.py names the tensors.
"""
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

from cases import run, write

BATCH = 2


class Scale(torch.autograd.Function):
    """y = forward x, dx = backward dy."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_factor = backward
        return forward * x

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_factor * gradient, None, None


def scale(x, forward=1.0, backward=1.0):
    return Scale.apply(x, forward, backward)


class Highway(nn.Module):
    """[t, u] = W [x; h] + b, h' = (1 - s) h + s tanh(t), s = sigmoid(u - shift); the first h is trained."""

    def __init__(self, inputs, hidden, shift, unit):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * hidden, inputs + hidden))
        self.bias = nn.Parameter(torch.empty(2 * hidden))
        self.first_state = nn.Parameter(torch.empty(hidden))
        self.shift, self.unit = shift, unit

    def forward(self, x):
        batch, length, _ = x.shape
        hidden = len(self.first_state)
        weight, bias, first, alpha = self.weight, self.bias, self.first_state, 1.0
        if self.unit:
            alpha = (weight.shape[0] * weight.shape[1]) ** -0.25
            weight = scale(weight, backward=(batch * length) ** -0.5)
            bias = scale(bias, backward=(batch * length) ** -0.5)
            first = scale(first, backward=batch ** -0.5)
        h = first.repeat(batch, 1)
        states = []
        for t in range(length):
            row = scale(torch.cat([x[:, t], h], 1), backward=alpha)
            sums = scale(row @ weight.t(), forward=alpha) + bias
            gate = torch.sigmoid(sums[:, hidden:] - self.shift)
            h = (1 - gate) * h + gate * torch.tanh(sums[:, :hidden])
            states.append(h)
        return torch.stack(states, 1)


class Convolution(nn.Module):
    """relu of a causal convolution in groups, position by position."""

    def __init__(self, inputs, outputs, kernel, groups, unit):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, kernel))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.groups, self.unit = groups, unit

    def forward(self, x):
        batch, length, inputs = x.shape
        outputs, group_inputs, kernel = self.weight.shape
        weight, bias, alpha = self.weight, self.bias, 1.0
        if self.unit:
            alpha = (kernel * group_inputs * kernel * outputs / self.groups) ** -0.25
            weight = scale(weight, backward=(batch * length) ** -0.5)
            bias = scale(bias, backward=(batch * length) ** -0.5)
        padded = F.pad(scale(x, backward=alpha), (0, 0, kernel - 1, 0)).reshape(batch, -1, self.groups, group_inputs)
        weight = weight.reshape(self.groups, outputs // self.groups, group_inputs, kernel)
        sums = [torch.einsum("bkgi,goik->bgo", padded[:, t:t + kernel], weight) for t in range(length)]
        y = scale(torch.stack(sums, 1).reshape(batch, length, outputs), forward=alpha) + bias
        if not self.unit:
            return torch.relu(y)
        variance, passed = (1 - 1 / math.pi) / 2, 0.5  # of relu's value and of its derivative's square
        factor = (variance * passed) ** -0.25
        return scale(torch.relu(scale(y, backward=factor)), forward=factor)


for kind, unit in ("standard", False), ("unit", True):
    torch.manual_seed(1)  # equal numbers for both
    run(f"highway_{kind}", Highway(8, 10, 1.0, unit), torch.randn(BATCH, 5, 8))
    run(f"convolution_{kind}", Convolution(16, 20, 4, 4, unit), torch.randn(BATCH, 6, 16))
# The published kernel and number of groups. In a residual layer the planner joins the factors.
run("residual", Convolution(16, 16, 7, 16, True), torch.randn(BATCH, 9, 16), call=lambda module, x: x + module(x))
write(sys.argv[1])
