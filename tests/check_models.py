#!/usr/bin/env python3
"""check_models.py FOLDER: the nets of examples/models.h, saved by tests/test_norm.c into FOLDER, in PyTorch: loaded strictly they
must give the same logits. Then the other way round: saves nets of PyTorch's there, with their logits. Ends with 77 if
PyTorch is not installed."""
import json
import struct
import sys

try:
    import numpy as np
    import torch
except ImportError:
    sys.exit(77)
import make_reference as reference

TYPES = {"F32": ("<f4", torch.float32), "I64": ("<i8", torch.int64)}


def load(path):
    raw = open(path, "rb").read()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        kind, _ = TYPES[entry["dtype"]]
        result[name] = torch.from_numpy(np.frombuffer(data[begin:end], kind).copy()).reshape(entry["shape"])
    return result


def save(path, state):
    header, data = {}, b""
    for name, tensor in state.items():
        kind = "I64" if tensor.dtype == torch.int64 else "F32"
        raw = tensor.numpy().astype(TYPES[kind][0]).tobytes()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


def logits(net):
    x, _ = reference.data(net)
    with torch.no_grad():
        return net.eval()(x[reference.rows(0)[:7]]).numpy().astype("<f4")


def main():
    folder = sys.argv[1]
    names = {"resnet9": "ResNet9", "wide": "WideResNet 16"}
    for name, make in ("resnet9", reference.ResNet9), ("wide", lambda: reference.WideResNet(16)):
        net = make()
        net.load_state_dict(load(f"{folder}/{name}.safetensors"), strict=True)
        ours, theirs = np.fromfile(f"{folder}/{name}.logits", "<f4").reshape(7, 10), logits(net)
        worst = np.abs(ours - theirs).max() / np.abs(theirs).max()
        # a row of chapters/conformance.md
        print("conformance %-24s largest difference %.1e, bound 1e-05" % (f"file to PyTorch, {names[name]}", worst), flush=True)
        assert worst < 1e-5, name
        torch.manual_seed(3)
        net = make().train()
        net(torch.rand(20, *net.image, dtype=torch.float64))
        save(f"{folder}/{name}.torch.safetensors", net.state_dict())
        # what the file holds are floats
        net.load_state_dict(load(f"{folder}/{name}.torch.safetensors"), strict=True)
        logits(net).tofile(f"{folder}/{name}.torch.logits")


main()
