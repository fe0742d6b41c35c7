# SPDX-License-Identifier: MIT
"""Training steps of this library and of PyTorch, in turn: a table, and a JSON file on request. bench/peers.sh calls it.

Usage: python rounds.py --program bench_train_training [--rounds N] [--widths N,N] [--threads N,N] [--steps N]
                        [--json FILE] [--svg FILE]

A round measures every contender once. Ours are processes that end; PyTorch's wait between their turns, because a start
and torch.compile take longer than steps. They wait in memory, so a width needs the memory of all of them.
"""
import argparse
import json
import os
import pathlib
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # figure.py's, beside the sources

import figure  # noqa: E402

START_SECONDS = 400  # within which a peer must have compiled and warmed up
# FP8 operands, whose sums are rounded to 12 bits after each product, as emulation.py has them.
SUMS = {"accumulate": {"sums": {"exponent_bits": 6, "mantissa_bits": 5, "bias": 31}, "overflow": "saturate"}}
LIMITED = {"base": "unit-fp8", "products": [
    {"kind": "linear", "activation": "e4m3", "weight": "e4m3", "gradient": "e5m2",
     "forward": SUMS, "input_gradient": SUMS, "weight_gradient": SUMS}]}
# name: what the table calls it
OURS = {"unit-fp8": "unitscale unit-fp8", "fp32": "unitscale fp32", "mxfp8": "unitscale mxfp8",
        "limited": "unitscale FP8, sums E6M5"}
# mode of transformer.py: our contenders that it is compared with
PEERS = {"fp32": ("unit-fp8", "fp32"), "compile": ("unit-fp8", "fp32"), "autocast": ("unit-fp8",),
         "compile-autocast": ("unit-fp8",), "mxfp8": ("unit-fp8", "mxfp8"), "limited": ("limited",)}


def sizes(width, limited=False):
    """Depth and batch keep a step of FP32 near a second. A width that 64 does not divide has one head."""
    heads = width // 64 if width % 64 == 0 else 1
    depth, batch, seq, steps = 4, 8, 256, 3
    if limited:
        depth, batch, steps = 1, 1, 1
    elif width > 256:
        depth, batch, steps = (2, 4, 1) if width <= 1024 else (1, 2, 1)
    return {"width": width, "depth": depth, "heads": heads, "batch": batch, "seq": seq, "steps": steps}


class Ours:
    def __init__(self, name, size, program, recipe):
        self.title, self.missing = OURS[name], None
        self.command = [program, "--json", "--plain", "--recipe", recipe, "--warmup", "2"] + arguments(size)

    def measure(self):
        return json.loads(subprocess.run(self.command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    def stop(self):
        pass


class Peer:
    """A process of transformer.py that waits for its turns."""

    def __init__(self, mode, size):
        script = pathlib.Path(__file__).with_name("transformer.py")
        warmup = "1" if mode == "limited" else "2"
        command = [sys.executable, "-W", "ignore", str(script), "--serve", "--mode", mode, "--warmup", warmup]
        self.process = subprocess.Popen(command + arguments(size), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)  # stop() ends its compilers too
        self.title, self.missing = f"PyTorch {mode}", None
        self.title = self.read(START_SECONDS).get("peer", self.title)

    def read(self, limit=None):
        """A line of the process. If there is none, or it says so, the peer is missing."""
        if not select.select([self.process.stdout], [], [], limit)[0]:
            answer = {"missing": f"not ready after {limit} s"}
        else:
            line = self.process.stdout.readline()
            answer = json.loads(line) if line else {"missing": f"ended with code {self.process.wait()}"}
        self.missing = answer.get("missing")
        if self.missing:
            self.stop()  # now: it would disturb the others
        return answer

    def measure(self):
        try:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:  # the answer below says how it ended
            pass
        return self.read()

    def stop(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(0 if self.missing else 10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def arguments(size):
    return [text for key, value in size.items() for text in ("--" + key, str(value))]


def run(size, threads, limited, options, recipe_file):
    """The results of all contenders at a width: medians, and medians of the ratios within rounds."""
    size = {**size, "threads": threads}
    contenders = {}
    try:
        for name in OURS:
            if (name == "limited") == limited:
                contenders["ours", name] = Ours(name, size, options.program, recipe_file if limited else name)
        for mode in PEERS:
            if (mode == "limited") == limited:
                progress(f"width {size['width']}, threads {threads}: PyTorch {mode} starts")
                contenders["peer", mode] = Peer(mode, size)
        runs = {key: [] for key in contenders}
        for i in range(options.rounds):
            for key, contender in contenders.items():
                progress(f"width {size['width']}, threads {threads}: round {i + 1} of {options.rounds}: "
                         f"{contender.title}")
                if contender.missing is None:
                    runs[key].append(contender.measure())
    finally:
        for contender in contenders.values():
            contender.stop()
    progress("")
    results = []
    for (side, name), contender in contenders.items():
        result = {"side": side, "contender": name, "title": contender.title,
                  **{key: value for key, value in size.items() if key != "steps"}}
        if contender.missing is not None:
            results.append({**result, "missing": contender.missing})
            continue
        for field in "step_seconds", "tokens_per_s", "peak_megabytes", "above_empty_megabytes":
            result[field] = statistics.median(run[field] for run in runs[side, name])
        result["round_seconds"] = [run["step_seconds"] for run in runs[side, name]]
        if side == "peer":
            result["ratios"] = {
                ours: statistics.median(peer["step_seconds"] / our["step_seconds"]
                                        for peer, our in zip(runs[side, name], runs["ours", ours]))
                for ours in PEERS[name]}
        results.append(result)
    return results


def progress(text):
    if sys.stderr.isatty():
        print("\r\033[K" + text, end="", file=sys.stderr, flush=True)


def show(results):
    first = results[0]
    heading = (f"width {first['width']}, depth {first['depth']}, {first['batch']} x {first['seq']} tokens, "
               f"{first['threads']} thread" + "s"[: first["threads"] > 1])
    print(f"\n{heading:<44} {'ms/step':>9} {'tokens/s':>9} {'peak_MB':>8} {'above_empty':>11}  times as fast is")
    for result in results:
        if "missing" in result:
            print(f"{result['title']:<44} not possible here: {result['missing']}")
            continue
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in result.get("ratios", {}).items())
        print(f"{result['title']:<44} {1e3 * result['step_seconds']:9.1f} {result['tokens_per_s']:9.0f} "
              f"{result['peak_megabytes']:8.0f} {result['above_empty_megabytes']:11.0f}  {ratios}".rstrip())
    sys.stdout.flush()


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--widths", type=numbers, default=[128, 256, 768, 2048])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--json")
    parser.add_argument("--svg")
    options = parser.parse_args()
    for path in options.json, options.svg:
        if path:
            open(path, "a").close()  # an error now, not after half an hour
    results = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)  # compiled now, gone afterwards
        recipe_file = str(pathlib.Path(folder, "limited.json"))
        pathlib.Path(recipe_file).write_text(json.dumps(LIMITED))
        for width in options.widths:
            for threads in options.threads:
                for limited in (False, True) if width <= 256 else (False,):
                    size = sizes(width, limited)
                    if options.steps:
                        size["steps"] = options.steps
                    some = run(size, threads, limited, options, recipe_file)
                    show(some)
                    results += some
    print("\ntimes as fast: a peer's time over our time, the median of the ratios within rounds")
    report = {"processor": processor(), "rounds": options.rounds, "results": results}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if options.svg:
        pathlib.Path(options.svg).write_text(figure.svg(report))


if __name__ == "__main__":
    main()
