# SPDX-License-Identifier: MIT
"""Writes tensors in double to a safetensors file, for the scripts that compute numbers to compare ours with."""
import json
import struct


def write(path, tensors):
    """Writes the tensors {name: tensor of float64}, and prints how many there are."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = 8 * tensor.numel()
        header[name] = {"dtype": "F64", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.numpy().tobytes())
    print(f"{len(tensors)} tensors, {offset} bytes")
