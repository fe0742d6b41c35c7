# SPDX-License-Identifier: MIT
"""Cases for tests: values and gradients of PyTorch's modules in double, in one safetensors file.

Each case NAME has the tensors NAME.x, NAME.<parameter>, NAME.y, NAME.dy (the output's gradient), NAME.dx and
NAME.d<parameter>. tests/support/peer_case.hpp reads them.
"""
import tensor_file
import torch

torch.set_default_dtype(torch.float64)
tensors = {}


def keep(case, name, tensor):
    tensors[f"{case}.{name}"] = tensor.detach().contiguous().clone()


def run(case, module, *inputs, output=lambda result: result, call=lambda module, *inputs: module(*inputs)):
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    inputs = [x.requires_grad_() for x in inputs]
    y = output(call(module, *inputs))
    dy = torch.randn_like(y)
    y.backward(dy)
    for i, x in enumerate(inputs):
        keep(case, f"x{i}" if i else "x", x)
        keep(case, f"dx{i}" if i else "dx", x.grad)
    for name, parameter in module.named_parameters():
        # PyTorch stacks the layers of query, key and value.
        parts = [(name, parameter, parameter.grad)]
        if "in_proj" in name:
            names = [name.replace("in_proj_", part) for part in ("query.", "key.", "value.")]
            parts = zip(names, parameter.chunk(3), parameter.grad.chunk(3))
        for part, value, gradient in parts:
            keep(case, part, value)
            keep(case, "d" + part, gradient)
    keep(case, "y", y)
    keep(case, "dy", dy)


def write(path):
    tensor_file.write(path, tensors)
