# SPDX-License-Identifier: MIT
"""A linear layer in MXFP8, emulated in PyTorch: prints one JSON object.

Emulators of this kind quantise each operand in passes of PyTorch's element-wise operations, then multiply in FP32. The
layer's forward and backward pass are timed beside those of a plain FP32 layer, in turn. Arguments: see --help.
"""
import argparse
import json
import math
import statistics
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=2048)
parser.add_argument("--inputs", type=int, default=256)
parser.add_argument("--outputs", type=int, default=1024)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--rounds", type=int, default=7)
options = parser.parse_args()

BLOCK = 32
MANTISSA_BITS, LARGEST, MIN_EXPONENT, MAX_EXPONENT = 3, 448.0, -6, 8  # E4M3


def quantise(x, dimension):
    """x in blocks of 32 along a dimension, under a power of two for each (rounded down), to nearest even."""
    lines = x.transpose(dimension, -1)
    blocks = lines.reshape(*lines.shape[:-1], -1, BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.floor(torch.log2(torch.where(amax > 0, amax, torch.ones_like(amax)))) - MAX_EXPONENT
    scale = torch.exp2(exponent.clamp(-127, 127))
    scaled = blocks / scale
    magnitude = scaled.abs()
    step_exponent = torch.floor(torch.log2(magnitude.clamp_min(math.ldexp(1, MIN_EXPONENT)))).clamp_min(MIN_EXPONENT)
    step = torch.exp2(step_exponent - MANTISSA_BITS)
    rounded = (torch.round(scaled / step) * step).clamp(-LARGEST, LARGEST)
    return (rounded * scale).reshape(lines.shape).transpose(dimension, -1)


class Emulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return quantise(x, -1) @ quantise(weight, -1).t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        dx = quantise(gradient, -1) @ quantise(weight, 0)
        dweight = quantise(gradient, 0).t() @ quantise(x, 0)
        return dx, dweight


def seconds(layer, x, weight, gradient):
    begin = time.perf_counter()
    layer(x, weight).backward(gradient)
    return time.perf_counter() - begin


torch.set_num_threads(options.threads)
torch.manual_seed(1)
x = torch.randn(options.rows, options.inputs, requires_grad=True)
weight = torch.randn(options.outputs, options.inputs, requires_grad=True)
gradient = torch.randn(options.rows, options.outputs)
layers = {"emulated": Emulated.apply, "fp32": lambda a, b: a @ b.t()}
times = {name: [] for name in layers}
for _ in range(options.rounds + 1):  # the first round warms up
    for name, layer in layers.items():
        x.grad = weight.grad = None
        times[name].append(seconds(layer, x, weight, gradient))
operations = 6 * options.rows * options.inputs * options.outputs
gflops = {name: 1e-9 * operations / statistics.median(runs[1:]) for name, runs in times.items()}
print(json.dumps({"peer": f"PyTorch {torch.__version__}", "rows": options.rows, "inputs": options.inputs,
                  "outputs": options.outputs, "threads": options.threads,
                  "emulated_gflops": round(gflops["emulated"], 2), "fp32_gflops": round(gflops["fp32"], 2)}))
