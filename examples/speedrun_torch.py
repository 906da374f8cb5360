#!/usr/bin/python3
"""examples/speedrun.c's MNIST run in PyTorch: the same net, settings, schedule and shifts, for the time and the accuracy beside it.

    /usr/bin/python3 examples/speedrun_torch.py [--seeds N] [--threads T] [--layout nchw|channels-last] [--images N]
                                                                               (Debian: python3-torch, python3-numpy)

Batch norm is over the whole batch, which is faster there than groups of 16 images; a batch is shifted by one gather. Seconds are training alone,
from the first step to the last, with shifts and normalising, as speedrun counts them; the first steps, in which PyTorch sets itself up, are
taken before on another net. MNIST as IDX files from the folders of examples/baseline_torch.py, whose reader this is.
"""
import argparse
import os
import statistics
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from baseline_torch import read_idx  # noqa: E402

BATCH, LR, MOMENTUM, DECAY, SHIFT, EPOCHS = 96, 0.4, 0.8, 0.001, 1, 1  # examples/speedrun.c, recipes[0]


def block(channels, out, kernel, padding):
    return [nn.Conv2d(channels, out, kernel, padding=padding, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


def build(layout):
    net = nn.Sequential(*block(1, 12, 5, 0), *block(12, 24, 5, 0), *block(24, 64, 3, 1), nn.Flatten(), nn.Linear(256, 10))
    return net.to(memory_format=torch.channels_last) if layout == 'channels-last' else net


def rate(step, steps):
    rising = steps // 5
    return LR * (0.1 + 0.9 * step / rising) if step < rising else LR * (1 - (step - rising) / (steps - rising))


def shifted(pixels, rows, columns):
    """Each image of the padded bytes (N, H+2S, W+2S) cut out where its own shift says: (N, H, W)."""
    n, height, width = len(rows), pixels.shape[1] - 2 * SHIFT, pixels.shape[2] - 2 * SHIFT
    r = rows[:, None, None] + torch.arange(height)[None, :, None]
    c = columns[:, None, None] + torch.arange(width)[None, None, :]
    return pixels[torch.arange(n)[:, None, None], r, c]


def train(images, labels, seed, layout, most_steps=None):
    torch.manual_seed(seed)
    net, n = build(layout), len(images)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY)
    steps, step = (n + BATCH - 1) // BATCH * EPOCHS, 0
    began = time.perf_counter()
    for _ in range(EPOCHS):
        order = torch.randperm(n)
        rows, columns = torch.randint(2 * SHIFT + 1, (n,)), torch.randint(2 * SHIFT + 1, (n,))
        for at in range(0, n, BATCH):
            index = order[at:at + BATCH]
            x = (shifted(images[index], rows[index], columns[index]).float() - 255 * 0.1307) / (255 * 0.3081)
            for group in optimizer.param_groups:
                group['lr'] = rate(step, steps)
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(net(x.unsqueeze(1)), labels[index]).backward()
            optimizer.step()
            step += 1
            if step == most_steps:
                return net, time.perf_counter() - began
    return net, time.perf_counter() - began


def score(net, images, labels):
    net.eval()
    right = 0
    with torch.no_grad():
        for i in range(0, len(images), 1000):
            x = (images[i:i + 1000].float() - 255 * 0.1307) / (255 * 0.3081)
            right += int((net(x.unsqueeze(1)).argmax(1) == labels[i:i + 1000]).sum())
    return 100.0 * right / len(images)


def load(part):
    pixels = torch.from_numpy(read_idx(part + '-images-idx3-ubyte').copy())
    return pixels, torch.from_numpy(read_idx(part + '-labels-idx1-ubyte').astype(np.int64))


def main():
    parser = argparse.ArgumentParser(description="The speedrun's net in PyTorch: seconds and accuracy to hold dtrain against.")
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--images', type=int, default=0)
    parser.add_argument('--layout', choices=['nchw', 'channels-last'], default='nchw')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images, labels = load('train')
    if args.images:
        images, labels = images[:args.images], labels[:args.images]
    padded = F.pad(images, (SHIFT,) * 4)
    test = load('t10k')
    train(padded, labels, 0, args.layout, 20)
    seconds, accuracy = [], []
    for seed in range(1, args.seeds + 1):
        net, took = train(padded, labels, seed, args.layout)
        seconds.append(took)
        accuracy.append(score(net, *test))
        print('seed %3d   accuracy %.2f %%   %.3f s' % (seed, accuracy[-1], took), flush=True)
    print('PyTorch %s, %d thread%s, %s: accuracy %.3f %%, %.2f to %.2f; %.3f s, the median; %.3f to %.3f' % (
        torch.__version__, args.threads, 's' * (args.threads > 1), args.layout, statistics.mean(accuracy), min(accuracy), max(accuracy),
        statistics.median(seconds), min(seconds), max(seconds)))


if __name__ == '__main__':
    main()
