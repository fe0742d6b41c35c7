# SPDX-License-Identifier: MIT
"""Low-precision linear layers, emulated in PyTorch by passes of element-wise operations.

Blocks: each operand of each product is rounded to MXFP8 in blocks of 32 along the contraction, then multiplied in FP32.
Microsoft's microxcaling works this way; the formula is section 6.3 of the OCP Microscaling specification 1.0.
Limited sums: operands are rounded to FP8, and after every product the sum is rounded to a format, as mptorch does.
The code is written from these formulas. check() compares it with loops over Python's numbers.
"""
import bisect
import ctypes
import math
from typing import NamedTuple

import torch

BLOCK = 32


class Format(NamedTuple):
    mantissa_bits: int
    min_exponent: int
    max_exponent: int
    largest: float


E4M3 = Format(3, -6, 8, 448.0)
E5M2 = Format(2, -14, 15, 57344.0)
E6M5 = Format(5, -30, 31, 2.0**31 * (2.0 - 2.0**-5))  # an accumulator of 12 bits


def round_elements(x, element):
    """x to the nearest numbers of a format, ties to even; beyond the largest number, to the largest."""
    least = math.ldexp(1, element.min_exponent)
    exponent = torch.floor(torch.log2(x.abs().clamp_min(least))).clamp_min(element.min_exponent)
    step = torch.exp2(exponent - element.mantissa_bits)
    return (torch.round(x / step) * step).clamp(-element.largest, element.largest)


def round_blocks(x, dimension, element=E4M3):
    """x in blocks of 32 along a dimension, under a power of two for each: amax's power over the format's largest."""
    lines = x.transpose(dimension, -1)
    blocks = lines.reshape(*lines.shape[:-1], -1, BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.floor(torch.log2(torch.where(amax > 0, amax, torch.ones_like(amax)))) - element.max_exponent
    scale = torch.exp2(exponent.clamp(-127, 127))
    return (round_elements(blocks / scale, element) * scale).reshape(lines.shape).transpose(dimension, -1)


class BlockLinear(torch.autograd.Function):
    """y = x w^T, dx = dy w, dw = dy^T x for x [m,k], w [n,k]; both operands of each in blocks of E4M3."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return round_blocks(x, -1) @ round_blocks(weight, -1).t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        dx = round_blocks(gradient, -1) @ round_blocks(weight, 0)
        dweight = round_blocks(gradient, 0).t() @ round_blocks(x, 0)
        return dx, dweight


def limited_product(a, b, sums=E6M5):
    """a [m,k] times b [k,n]. After each of the k products the sum is rounded: nearest even, saturating."""
    total = torch.zeros(a.shape[0], b.shape[1])
    magic = torch.empty_like(total)
    words = total.view(torch.int32), magic.view(torch.int32)
    least = (sums.min_exponent + 127) << 23
    up = ((23 - sums.mantissa_bits) << 23) + (1 << 22)
    for p in range(a.shape[1]):
        total.addcmul_(a[:, p : p + 1], b[p : p + 1])
        # 1.5 2^(e + 23 - mantissa bits) for a sum in [2^e, 2^(e+1)): a float whose last bit is worth the sum's last bit.
        torch.bitwise_and(words[0], 0x7F800000, out=words[1])
        words[1].clamp_min_(least).add_(up)
        total += magic
        total -= magic
        total.clamp_(-sums.largest, sums.largest)
    return total


class LimitedLinear(torch.autograd.Function):
    """The products of BlockLinear with limited sums; x and w in E4M3, dy in E5M2, without scales."""

    @staticmethod
    def forward(ctx, x, weight):
        x, weight = round_elements(x, E4M3), round_elements(weight, E4M3)
        ctx.save_for_backward(x, weight)
        return limited_product(x, weight.t().contiguous())

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient = round_elements(gradient, E5M2)
        return limited_product(gradient, weight), limited_product(gradient.t().contiguous(), x)


def emulate(modules, function):
    """The linear layers among the modules, which have no biases, compute by `function` from now on."""
    for module in modules:
        if isinstance(module, torch.nn.Linear):
            module.forward = lambda x, layer=module: function.apply(
                x.reshape(-1, x.shape[-1]), layer.weight).view(*x.shape[:-1], -1)


def all_values(element):
    """The format's numbers from zero up: a number's place has the parity of its code."""
    least, bits = element.min_exponent, element.mantissa_bits
    values = [math.ldexp(m, least - bits) for m in range(2**bits)]
    for e in range(least, element.max_exponent + 1):
        values += [math.ldexp(2**bits + m, e - bits) for m in range(2**bits)]
    return [value for value in values if value <= element.largest]


def nearest(values, x):
    magnitude = min(abs(x), values[-1])
    above = bisect.bisect_left(values, magnitude)
    if values[above] != magnitude:
        low, high = magnitude - values[above - 1], values[above] - magnitude
        above -= low < high or (low == high and above % 2 == 1)
    return math.copysign(values[above], x)


def check_equal(what, found, expected):
    found = found.detach().tolist()
    if found != expected:
        raise SystemExit(f"emulation: {what} differs from the loops over Python's numbers")
    print(f"{what}: equal")


def check():
    """Compares both layers with loops over Python's numbers; these find a rounded number in a list of all."""
    torch.manual_seed(3)
    m, n, k = 32, 64, 96
    for element, count, least in (E4M3, 127, 2.0**-9), (E5M2, 124, 2.0**-16), (E6M5, 63 * 32, 2.0**-35):
        assert (len(all_values(element)), all_values(element)[1]) == (count, least)
    x, gradient = torch.randn(m, k), torch.randn(m, n)
    weight = torch.randint(-63, 64, (n, k)) * 0.125  # many lie halfway between two numbers of E4M3
    x *= torch.exp2(torch.randint(-12, 12, (m, 1)).float())  # scales of both signs, and elements that underflow
    x[:, ::5] *= 2.0**-11
    x[3, :BLOCK] = 0.0
    values = all_values(E4M3)

    def rounded_line(line):
        result = []
        for begin in range(0, len(line), BLOCK):
            block = line[begin : begin + BLOCK]
            amax = max(map(abs, block))
            scale = math.ldexp(1, math.frexp(amax)[1] - 1 - E4M3.max_exponent) if amax > 0 else 1.0
            result += [nearest(values, v / scale) * scale for v in block]
        return result

    def columns(matrix):
        return [list(column) for column in zip(*matrix)]

    def loops(rows, others):
        """The sums over p of rows[i][p] others[j][p], both rounded along p."""
        rows, others = [rounded_line(r) for r in rows], [rounded_line(o) for o in others]
        return [[math.fsum(a * b for a, b in zip(r, o)) for o in others] for r in rows]

    lists = {"x": x.tolist(), "w": weight.tolist(), "dy": gradient.tolist()}
    for name, tensor in ("x", x), ("w", weight), ("dy", gradient):
        check_equal(f"MXFP8 {name} along rows", round_blocks(tensor, -1), [rounded_line(r) for r in lists[name]])
        check_equal(f"MXFP8 {name} along columns", round_blocks(tensor, 0),
                    columns([rounded_line(c) for c in columns(lists[name])]))
    x.requires_grad_(), weight.requires_grad_()
    y = BlockLinear.apply(x, weight)
    y.backward(gradient)
    for name, found, expected in (
            ("y", y, loops(lists["x"], lists["w"])),
            ("dx", x.grad, loops(lists["dy"], columns(lists["w"]))),
            ("dw", weight.grad, loops(columns(lists["dy"]), columns(lists["x"])))):
        expected = torch.tensor(expected)
        error = float((found.detach() - expected).norm() / expected.norm())
        if not error < 1e-6:  # float sums
            raise SystemExit(f"emulation: MXFP8 {name} differs from the loops over Python's numbers: {error:g}")
        print(f"MXFP8 {name}: relative error {error:.1e}")

    def limited_loops(rows, others, sums=all_values(E6M5)):
        result = [[0.0] * len(others) for _ in rows]
        for i, row in enumerate(rows):
            for j, other in enumerate(others):
                for a, b in zip(row, other):
                    result[i][j] = nearest(sums, ctypes.c_float(result[i][j] + a * b).value)
        return result

    x = 2.0 ** torch.linspace(-14, 12, 40) * torch.randn(7, 40)
    weight, gradient = 8 * torch.randn(6, 40), 2.0 ** torch.randint(-20, 15, (7, 6)) * torch.randn(7, 6)
    x_values = [[nearest(values, v) for v in row] for row in x.tolist()]
    w_values = [[nearest(values, v) for v in row] for row in weight.tolist()]
    dy_values = [[nearest(all_values(E5M2), v) for v in row] for row in gradient.tolist()]
    x.requires_grad_(), weight.requires_grad_()
    y = LimitedLinear.apply(x, weight)
    y.backward(gradient)
    check_equal("limited sums y", y, limited_loops(x_values, w_values))
    check_equal("limited sums dx", x.grad, limited_loops(dy_values, columns(w_values)))
    check_equal("limited sums dw", weight.grad, limited_loops(columns(dy_values), columns(x_values)))
    huge = torch.full((1, 3), 57344.0 * 2.0**10)
    check_equal("limited sums that saturate", limited_product(huge, huge.t()), [[E6M5.largest]])
