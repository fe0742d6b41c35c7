# SPDX-License-Identifier: MIT
"""Trains on text, in PyTorch, the model that `train_transformer --recipe fp32` trains, in the same way; prints a JSON line per run.

The same: characters as tokens, the last tenth of the text for validation; the model and its initial standard deviation
(model.py); the mean cross-entropy of batches of windows at random places; gradients clipped to a norm of 1; AdamW (0.9, 0.95,
1e-8, no decay); a linear warm-up over a tenth of the steps, then a cosine to a tenth of the peak; validation over all whole
windows. Not the same: the random numbers. So compare medians over seeds. Losses are in bits per character.
"""
import argparse
import json
import math
import sys
import time
from pathlib import Path


def rates(text):
    return [float(part) for part in text.split(",")]


def seeds(text):
    return [int(part) for part in text.split(",")]


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", type=Path, required=True, help="a text, UTF-8")
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--depth", type=int, default=4)
parser.add_argument("--heads", type=int, default=2)
parser.add_argument("--seq", type=int, default=128)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--lr", type=rates, default=[6e-3], help="peak learning rates, as 3e-3,6e-3")
parser.add_argument("--seeds", type=seeds, default=[1], help="as 1,2,3")
parser.add_argument("--threads", type=int, default=1)
options = parser.parse_args()
if any(getattr(options, size) < 1 for size in ("width", "depth", "heads", "seq", "batch", "steps", "threads")):
    parser.error("sizes, steps and threads are at least 1")
if options.width % options.heads != 0:
    parser.error(f"--heads: width {options.width} is not divisible by {options.heads} heads")

try:
    text = options.data.read_bytes().decode("utf-8")  # as it is: line ends are characters like others
except OSError as error:
    parser.error(f"--data: {options.data}: {error.strerror}")
except UnicodeDecodeError as error:
    parser.error(f"--data: {options.data} is not UTF-8: {error.reason} at byte {error.start}")
border = int(len(text) * 0.9)
if min(border, len(text) - border) <= options.seq:
    parser.error(f"--data: {len(text)} characters are too few; the last tenth must be longer than a sequence of {options.seq}")

sys.dont_write_bytecode = True  # model.py's, beside the sources

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from model import Decoder  # noqa: E402

torch.set_num_threads(options.threads)
identity = {character: i for i, character in enumerate(sorted(set(text)))}
tokens = torch.tensor([identity[character] for character in text])
training, validation = tokens[:border], tokens[border:]


def learning_rate(step, peak):
    """Of update `step`, counted from 1: Schedule::at in optim/schedule.hpp."""
    top = max(options.steps // 10, 1)
    if step <= top:
        return peak * step / top
    progress = (step - top) / (options.steps - top)
    return peak * (0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * progress)))


def rows(source, starts):
    """Windows of the source and the characters that follow each of theirs."""
    windows = torch.stack([source[start:start + options.seq + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def cross_entropy(model, ids, labels):
    """The mean, in nats."""
    return F.cross_entropy(model(ids).reshape(-1, len(identity)), labels.reshape(-1))


@torch.no_grad()
def validate(model):
    starts = [i * options.seq for i in range((len(validation) - 1) // options.seq)]
    total = 0.0
    for first in range(0, len(starts), options.batch):
        part = starts[first:first + options.batch]
        total += len(part) * cross_entropy(model, *rows(validation, part)).item()
    return total / len(starts) / math.log(2.0)


def train(peak, seed):
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(len(identity), options.width, options.depth, options.heads, options.seq, generator)
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    begin = time.perf_counter()
    for step in range(1, options.steps + 1):
        starts = torch.randint(0, len(training) - options.seq, (options.batch,), generator=generator)
        optimiser.zero_grad(set_to_none=True)
        loss = cross_entropy(model, *rows(training, starts.tolist()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = learning_rate(step, peak)
        optimiser.step()
        losses.append(loss.item() / math.log(2.0))
    seconds = time.perf_counter() - begin
    last = losses[-max(options.steps // 10, 1):]
    valid = validate(model)
    return {
        "peer": "PyTorch " + torch.__version__,
        "rate": peak,
        "seed": seed,
        "steps": options.steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "first_loss": losses[0],  # before the first update
        "train_loss": sum(last) / len(last),
        "valid_loss": valid,
        "tokens_per_s": options.steps * options.batch * options.seq / seconds,
    }


for rate in options.lr:
    for seed in options.seeds:
        # JSON has no NaN: a run whose loss is not finite has null.
        run = {key: None if isinstance(value, float) and not math.isfinite(value) else value
               for key, value in train(rate, seed).items()}
        print(json.dumps(run), flush=True)
