#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes values and gradients of attention with relative positions in double, for
tests/nn/relative_attention_test.cpp.

Usage: python3 bench/peers/relative_attention.py tests/data/relative_attention.safetensors   (Debian: python3-torch)

The formulas are the published ones: position logits are gathered by distance, from a product for all distances. The
case `standard` is the model without factors. The case `unit` states every factor of the recipe us-fp32, whose rule
joins the factors of the linear layers by the geometric mean. The loss is sum(y dy) + sum(x dz).
"""
import math
import sys

import tensor_file
import torch

torch.manual_seed(2)
torch.set_default_dtype(torch.float64)
tensors = {}


class Scaled(torch.autograd.Function):
    """The value times alpha, and the gradient times beta."""

    @staticmethod
    def forward(context, x, alpha, beta):
        context.beta = beta
        return alpha * x

    @staticmethod
    def backward(context, gradient):
        return context.beta * gradient, None, None


def value_times(x, alpha):
    return Scaled.apply(x, alpha, 1.0)


def gradient_times(x, beta):
    return Scaled.apply(x, 1.0, beta)


def features(length, frequencies, amplitude):
    f = torch.arange(frequencies)
    w = math.pi * (2 / 1024) ** (torch.div(f, 2, rounding_mode="floor") / (frequencies // 2 - 1))
    phase = torch.where(f % 2 == 0, torch.tensor(0.0), torch.tensor(math.pi / 2))
    return amplitude * torch.sin(w * torch.arange(length)[:, None] + phase)


def attention(x, p, heads, unit):
    batch, length, width = x.shape
    columns = len(p["query_bias"])
    d = columns // heads
    frequencies = p["positions"].shape[1]
    factor = dict.fromkeys(("qkv", "qkv_w", "query_b", "r", "r_w", "logits", "beta_r", "p", "p_v", "out", "out_w",
                            "out_b"), 1.0)
    multiplier = 1 / math.sqrt(d)  # of plain logits
    if unit:
        rows = (batch * length) ** -0.5
        s = length
        deviation = math.sqrt(2)  # of plain logits times the multiplier
        share = 1 / (1 + 4 / deviation**2)
        peaked_to_flat = math.sqrt(math.log(s) / s) ** (1 - share)  # standard deviation of the average over v
        size = deviation ** (1 - share / 2)  # of the gradients of queries and keys
        factor.update(qkv=(width * 3 * columns) ** -0.25, qkv_w=rows, query_b=rows, r=frequencies**-0.5,
                      r_w=length**-0.5, logits=(2 * d) ** -0.5, beta_r=1 / (math.sqrt(d * batch) * size),
                      p=math.sqrt(s) / peaked_to_flat, p_v=s**-0.5, out=(columns * width) ** -0.25, out_w=rows,
                      out_b=rows)
        multiplier /= factor["logits"]

    def product(equation, a, b, alpha, beta_a, beta_b):
        return value_times(torch.einsum(equation, gradient_times(a, beta_a), gradient_times(b, beta_b)), alpha)

    qkv = product("bti,oi->bto", x, p["qkv"], factor["qkv"], factor["qkv"], factor["qkv_w"])
    q, k, v = qkv.chunk(3, dim=-1)
    q = q + gradient_times(p["query_bias"], factor["query_b"])
    q, k, v = (part.reshape(batch, length, heads, d) for part in (q, k, v))
    e = features(length, frequencies, math.sqrt(2) if unit else 1.0)
    r = product("sf,of->so", e, p["positions"], factor["r"], 1.0, factor["r_w"]).reshape(length, heads, d)

    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    content = product("bihd,bjhd->bhij", q, k, *[factor["logits"]] * 3)
    by_distance = product("bihd,shd->bhis", q, r, factor["logits"], factor["logits"], factor["beta_r"])
    place = distance.clamp(min=0).expand(batch, heads, length, length)
    logits = content + torch.gather(by_distance, 3, place)
    logits = logits.masked_fill(distance < 0, -math.inf)
    weights = value_times(torch.softmax(multiplier * gradient_times(logits, factor["p"]), dim=-1), factor["p"])
    mixed = product("bhij,bjhd->bihd", weights, v, *[factor["p_v"]] * 3).reshape(batch, length, columns)
    y = product("bti,oi->bto", mixed, p["out"], factor["out"], factor["out"], factor["out_w"])
    return y + gradient_times(p["out_bias"], factor["out_b"])


def run(case, unit, batch, length, width, heads, d, frequencies):
    size = 0.7 if unit else 0.5
    columns = heads * d
    shapes = {"qkv": (3 * columns, width), "query_bias": (columns,), "positions": (columns, frequencies),
              "out": (width, columns), "out_bias": (width,)}
    leaves = {name: size * torch.randn(shape) for name, shape in shapes.items()}
    leaves["x"] = torch.randn(batch, length, width)
    for leaf in leaves.values():
        leaf.requires_grad_()
    y = attention(leaves["x"], leaves, heads, unit)
    dy, dz = torch.randn_like(y), torch.randn_like(y)
    ((y * dy).sum() + (leaves["x"] * dz).sum()).backward()
    tensors.update({f"{case}.{name}": leaf.detach() for name, leaf in leaves.items()})
    tensors.update({f"{case}.d{name}": leaf.grad for name, leaf in leaves.items()})
    tensors.update({f"{case}.y": y.detach(), f"{case}.dy": dy, f"{case}.dz": dz})


run("standard", False, batch=2, length=6, width=8, heads=2, d=4, frequencies=8)
run("unit", True, batch=2, length=7, width=8, heads=2, d=3, frequencies=10)
tensor_file.write(sys.argv[1], tensors)
