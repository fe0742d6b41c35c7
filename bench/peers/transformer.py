# SPDX-License-Identifier: MIT
"""Training steps of the transformer that bench_training measures, in PyTorch: prints one JSON object.

The same model: learned positions, pre-norm RMSNorm without gains, gelu feed-forward of ratio 4, no biases, untied readout,
causal attention (the library's own fused one where it has it), AdamW. Arguments: see --help; bench/peers.sh calls it.
"""
import argparse
import json
import math
import resource
import statistics
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


import torch  # noqa: E402  (the empty process, for memory, is one that has loaded the library)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

torch.set_num_threads(options.threads)
torch.manual_seed(1)
empty_megabytes = peak_megabytes()
VOCABULARY = 256


def rms_norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


if hasattr(F, "rms_norm"):
    def rms_norm(x):  # noqa: F811
        return F.rms_norm(x, (x.shape[-1],), eps=1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        w = options.width
        self.query, self.key, self.value, self.out = (nn.Linear(w, w, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(w, 4 * w, bias=False), nn.Linear(4 * w, w, bias=False)

    def attention(self, x):
        b, t, w = x.shape
        q, k, v = (layer(x).view(b, t, options.heads, w // options.heads).transpose(1, 2)
                   for layer in (self.query, self.key, self.value))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(w // options.heads)
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, w))

    def forward(self, x):
        x = x + self.attention(rms_norm(x))
        return x + self.down(F.gelu(self.up(rms_norm(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, options.width)
        self.positions = nn.Embedding(options.seq, options.width)
        self.blocks = nn.ModuleList(Block() for _ in range(options.depth))
        self.readout = nn.Linear(options.width, VOCABULARY, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.readout(rms_norm(x))


model = Decoder()
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
