# SPDX-License-Identifier: MIT
"""Training steps of the transformer that bench_training measures, in PyTorch: prints one JSON object.

The model is model.py's, the update AdamW's. Modes (bench/peers.sh runs them all):
  fp32, autocast                  PyTorch as it is; bfloat16 autocast
  compile, compile-autocast       the model and the loss by torch.compile
  mxfp8, limited                  linear layers but the readout by emulation.py: MXFP8 blocks; FP8 with limited sums
With --serve the process warms up, prints a line {"ready": true}, and measures once for each line of standard input.
A mode that does not run here gives {"missing": REASON}. --check compares the emulations with loops over numbers.
"""
import argparse
import json
import resource
import statistics
import sys
import time

MODES = {"fp32": "FP32", "autocast": "bf16 autocast", "compile": "compiled, FP32",
         "compile-autocast": "compiled, bf16 autocast", "mxfp8": "MXFP8 emulated", "limited": "limited sums emulated"}
parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
parser.add_argument("--mode", choices=MODES, default="fp32")
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--depth", type=int, default=4)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--warmup", type=int, default=3)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--serve", action="store_true", help="measure for each line of standard input")
parser.add_argument("--check", action="store_true", help="check the emulations and stop")
options = parser.parse_args()


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024e-6


sys.dont_write_bytecode = True  # the modules beside this file

import torch  # noqa: E402  (the empty process, for memory, is one that has loaded the library)
from torch.nn import functional as F  # noqa: E402

import emulation  # noqa: E402
from model import Decoder  # noqa: E402

if options.check:
    emulation.check()
    sys.exit()

torch.set_num_threads(options.threads)
torch.manual_seed(1)
empty_megabytes = peak_megabytes()
VOCABULARY = 256

model = Decoder(VOCABULARY, options.width, options.depth, options.heads, options.seq)
ids = torch.randint(0, VOCABULARY, (options.batch, options.seq))
labels = torch.randint(0, VOCABULARY, (options.batch, options.seq))


def adamw():
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.01}
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **settings)  # the fastest; from PyTorch 2.4 on
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(model.parameters(), **settings)


def loss_of_step():
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in options.mode):
        logits = model(ids)
        return F.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.view(-1))


def step():
    optimiser.zero_grad(set_to_none=True)
    loss_of_step().backward()
    optimiser.step()


def measure():
    times = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    say({"mode": options.mode, "threads": options.threads, "step_seconds": seconds,
         "tokens_per_s": options.batch * options.seq / seconds, "peak_megabytes": peak_megabytes(),
         "above_empty_megabytes": peak_megabytes() - empty_megabytes})


def say(fields):
    print(json.dumps({"peer": f"PyTorch {torch.__version__} {MODES[options.mode]}", **fields}), flush=True)


optimiser = adamw()
try:
    if options.mode.startswith("compile"):
        if not hasattr(torch, "compile"):
            raise RuntimeError("this PyTorch has no torch.compile")
        loss_of_step = torch.compile(loss_of_step)
    if options.mode == "mxfp8":
        emulation.emulate(model.blocks.modules(), emulation.BlockLinear)
    if options.mode == "limited":
        emulation.emulate(model.blocks.modules(), emulation.LimitedLinear)
    for _ in range(options.warmup):
        step()
except Exception as error:  # a missing compiler has a type of its own in every version
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    say({"missing": f"{type(error).__name__}: {lines[0]}"[:200]})
    sys.exit(0)
if not options.serve:
    measure()
    sys.exit()
say({"ready": True})
for _ in sys.stdin:
    measure()
