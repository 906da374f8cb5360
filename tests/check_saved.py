#!/usr/bin/env python3
"""check_saved.py FILE FOLDER: loads ch12's --save FILE strictly into the net of chapter 12 in PyTorch, scores the test
images in FOLDER, and prints the accuracy as ch12's CSV does. Ends with 77 if PyTorch is not installed."""
import json
import struct
import sys

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit(77)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 10, 5)
        self.conv2 = torch.nn.Conv2d(10, 20, 5)
        self.fc1 = torch.nn.Linear(80, 50)
        self.fc2 = torch.nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.max_pool2d(F.relu(F.max_pool2d(self.conv2(x), 2)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def tensors(path):
    raw = open(path, "rb").read()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    assert sum(e["data_offsets"][1] - e["data_offsets"][0] for e in header.values()) == len(data)
    result = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        begin, end = entry["data_offsets"]
        result[name] = torch.from_numpy(np.frombuffer(data[begin:end], "<f4").copy()).reshape(entry["shape"])
    return result


def main():
    path, folder = sys.argv[1:]
    images = np.fromfile(folder + "/t10k-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 1, 28, 28)
    labels = np.fromfile(folder + "/t10k-labels-idx1-ubyte", np.uint8)[8:]
    net = Net().eval()
    net.load_state_dict(tensors(path), strict=True)
    with torch.no_grad():
        guess = net((torch.from_numpy(images).float() / 255 - 0.1307) / 0.3081).argmax(1).numpy()
    print("%.4f" % (guess == labels).mean())


main()
