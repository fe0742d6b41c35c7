# SPDX-License-Identifier: MIT
"""A linear layer in MXFP8, emulated in PyTorch: prints one JSON object.

emulation.py has the layer: each operand is quantised in passes of PyTorch's element-wise operations, and products are
FP32. The layer's forward and backward pass are timed beside those of a plain FP32 layer, in turn. Arguments: see
--help.
"""
import argparse
import json
import statistics
import sys
import time

import torch

sys.dont_write_bytecode = True  # emulation.py's, beside the sources

from emulation import BlockLinear  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=2048)
parser.add_argument("--inputs", type=int, default=256)
parser.add_argument("--outputs", type=int, default=1024)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--rounds", type=int, default=7)
options = parser.parse_args()


def seconds(layer, x, weight, gradient):
    begin = time.perf_counter()
    layer(x, weight).backward(gradient)
    return time.perf_counter() - begin


torch.set_num_threads(options.threads)
torch.manual_seed(1)
x = torch.randn(options.rows, options.inputs, requires_grad=True)
weight = torch.randn(options.outputs, options.inputs, requires_grad=True)
gradient = torch.randn(options.rows, options.outputs)
layers = {"emulated": BlockLinear.apply, "fp32": lambda a, b: a @ b.t()}
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
