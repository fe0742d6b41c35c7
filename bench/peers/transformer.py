# SPDX-License-Identifier: MIT
"""Training steps of the transformer that bench_training measures, in PyTorch: prints one JSON object.

The model is model.py's, the update AdamW's. Arguments: see --help; bench/peers.sh calls it.
"""
import argparse
import json
import resource
import statistics
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--depth", type=int, default=4)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--autocast", action="store_true", help="bfloat16 autocast")
options = parser.parse_args()


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024e-6


sys.dont_write_bytecode = True  # model.py's, beside the sources

import torch  # noqa: E402  (the empty process, for memory, is one that has loaded the library)
from torch.nn import functional as F  # noqa: E402

from model import Decoder  # noqa: E402

torch.set_num_threads(options.threads)
torch.manual_seed(1)
empty_megabytes = peak_megabytes()
VOCABULARY = 256

model = Decoder(VOCABULARY, options.width, options.depth, options.heads, options.seq)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
ids = torch.randint(0, VOCABULARY, (options.batch, options.seq))
labels = torch.randint(0, VOCABULARY, (options.batch, options.seq))


def step():
    optimiser.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.autocast):
        logits = model(ids)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.view(-1))
    loss.backward()
    optimiser.step()


for _ in range(3):
    step()
times = []
for _ in range(options.steps):
    begin = time.perf_counter()
    step()
    times.append(time.perf_counter() - begin)
print(json.dumps({
    "peer": "PyTorch " + torch.__version__ + (" bf16 autocast" if options.autocast else " FP32"),
    "threads": options.threads,
    "step_seconds": statistics.median(times),
    "tokens_per_s": options.batch * options.seq / statistics.median(times),
    "peak_megabytes": peak_megabytes(),
    "above_empty_megabytes": peak_megabytes() - empty_megabytes,
}))
