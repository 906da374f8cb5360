#!/usr/bin/python3
"""Chapter 12's net and settings in PyTorch, on this machine: what the times of `make experiment` are to be held against.

    /usr/bin/python3 examples/baseline_torch.py [--ranks P] [--threads T] [--epochs E] [--layout nchw|channels-last]
                                                [--bug lost-sum]             (Debian: python3-torch)

P processes, T threads of PyTorch's own in each. Every rank takes its 1/P of each global batch of 128; gradients are summed
with torch.distributed's all_reduce (gloo), as one flat vector. `--bug lost-sum` is the slip of the lab report that the
README holds its table against: the sum is thrown away, and each rank steps with its own gradient divided by P.

MNIST as IDX files, compressed or not, from $DTRAIN_DATA, ./data or ./data/mnist. All pixels are normalised once, before the clock starts;
seconds are training alone, the slowest rank's, as ch12 counts them; evaluation comes after it.
"""
import argparse
import gzip
import os
import socket
import statistics
import struct
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def read_idx(name):
    folders = [os.environ.get('DTRAIN_DATA', ''), 'data', 'data/mnist']
    for path in [os.path.join(f, name + end) for f in folders if f for end in ('', '.gz')]:
        if os.path.exists(path):
            with (gzip.open if path.endswith('.gz') else open)(path, 'rb') as file:
                head = struct.unpack('>I', file.read(4))[0]
                shape = struct.unpack('>%dI' % (head & 255), file.read(4 * (head & 255)))
                return np.frombuffer(file.read(), dtype=np.uint8).reshape(shape)
    sys.exit('%s: not in %s; `make data` fetches it' % (name, ', '.join(f for f in folders if f)))


def load(part):
    pixels = torch.from_numpy(read_idx(part + '-images-idx3-ubyte').copy()).float() / 255
    labels = torch.from_numpy(read_idx(part + '-labels-idx1-ubyte').astype(np.int64))
    return ((pixels - 0.1307) / 0.3081).unsqueeze(1), labels


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d(0.5)
        self.fc1 = nn.Linear(80, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(self.drop(F.max_pool2d(self.conv2(x), 2)))
        x = F.relu(self.fc1(F.max_pool2d(x, 2).flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def sum_gradients(net, lost):
    """Over all ranks, as one vector; each rank's is its share of the mean over the global batch."""
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    if lost:
        flat /= dist.get_world_size()
    else:
        dist.all_reduce(flat)
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def work(rank, args, port, answers):
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    if args.ranks > 1:
        dist.init_process_group('gloo', init_method='tcp://127.0.0.1:%d' % port, rank=rank, world_size=args.ranks)
    images, labels = load('train')
    if args.layout == 'channels-last':
        images = images.to(memory_format=torch.channels_last)
    net = Net()
    if args.layout == 'channels-last':
        net = net.to(memory_format=torch.channels_last)
    step = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)
    n, batch = len(images), 128
    epochs = []
    for epoch in range(args.epochs):
        order = torch.from_numpy(np.random.RandomState(args.seed + epoch).permutation(n))
        net.train()
        if args.ranks > 1:
            dist.barrier()
        began = time.perf_counter()
        for at in range(0, n, batch):
            whole = order[at:at + batch]
            mine = whole[len(whole) * rank // args.ranks:len(whole) * (rank + 1) // args.ranks]
            step.zero_grad()
            # the mean over the global batch; the slip divides by the rank's own count, then by P
            count = len(mine) if args.bug == 'lost-sum' else len(whole)
            (F.nll_loss(net(images[mine]), labels[mine], reduction='sum') / count).backward()
            if args.ranks > 1:
                sum_gradients(net, args.bug == 'lost-sum')
            step.step()
        epochs.append(time.perf_counter() - began)
    if args.ranks > 1:
        slowest = torch.tensor(epochs, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        epochs = slowest.tolist()
    if rank == 0:
        torch.set_num_threads(os.cpu_count())
        images, labels = load('t10k')
        net.eval()
        with torch.no_grad():
            right = sum(int((net(images[i:i + 1000]).argmax(1) == labels[i:i + 1000]).sum()) for i in range(0, len(images), 1000))
        answers.put((epochs, 100.0 * right / len(images)))
    if args.ranks > 1:
        dist.barrier()


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description='The MNIST net in PyTorch: seconds and accuracy to hold dtrain against.')
    parser.add_argument('--ranks', type=int, default=1)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--seed', type=int, default=1234)
    parser.add_argument('--layout', choices=['nchw', 'channels-last'], default='nchw')
    parser.add_argument('--bug', choices=['lost-sum'])
    args = parser.parse_args()
    if min(args.ranks, args.threads, args.epochs) < 1:
        parser.error('ranks, threads and epochs are at least 1')
    context = torch.multiprocessing.get_context('spawn')
    answers = context.SimpleQueue()
    torch.multiprocessing.start_processes(work, args=(args, free_port(), answers), nprocs=args.ranks)
    epochs, accuracy = answers.get()
    print('PyTorch %s, %d rank%s of %d thread%s, %s%s: %.2f s in %d epochs, median epoch %.3f s, test accuracy %.2f %%' % (
        torch.__version__, args.ranks, 's' * (args.ranks > 1), args.threads, 's' * (args.threads > 1), args.layout,
        ', lost sum' if args.bug else '', sum(epochs), args.epochs, statistics.median(epochs), accuracy))


if __name__ == '__main__':
    main()
