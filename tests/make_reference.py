#!/usr/bin/env python3
"""Writes what PyTorch computes for small cases that the tests repeat: tests/data/reference.bin (tests/test_net.c) and
tests/data/steps.bin (tests/test_steps.c), tests/data/norm.bin (tests/test_norm.c).

    /usr/bin/python3 tests/make_reference.py [reference|steps|norm ...]          (Debian: python3-torch; made with torch 1.13)

Inputs and initial values are not in the file: both sides draw them from the generator below. PyTorch computes in double
precision, so that its numbers are the better ones of the two. Each file is a sequence of records, all little-endian:

    name (24 bytes, zeros behind)   u32 count   count floats
"""
import os
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


class Numbers:
    """x = x*1664525 + 1013904223 mod 2^32; the high bits are used."""

    def __init__(self, seed):
        self.x = seed

    def next(self):
        self.x = (self.x * 1664525 + 1013904223) % 2**32
        return self.x

    def byte(self):
        return self.next() >> 24

    def weights(self, shape, fan_in):
        bound = np.float32(1.0) / np.sqrt(np.float32(fan_in))
        u = np.array([self.next() >> 8 for _ in range(int(np.prod(shape)))], dtype=np.float32) * np.float32(2.0**-24)
        return torch.from_numpy(((np.float32(2) * u - np.float32(1)) * bound).astype(np.float64)).reshape(shape)


class S0Net(torch.nn.Module):
    """The MNIST net, dropout left out."""

    shapes = [(10, 1, 5, 5), (10,), (20, 10, 5, 5), (20,), (50, 80), (50,), (10, 50), (10,)]
    fan_in = [25, 25, 250, 250, 80, 80, 50, 50]
    image = (1, 28, 28)
    classes = 10

    def forward(self, x, w):
        x = F.relu(F.max_pool2d(F.conv2d(x, w[0], w[1]), 2))
        x = F.max_pool2d(F.relu(F.max_pool2d(F.conv2d(x, w[2], w[3]), 2)), 2)
        x = F.relu(F.linear(x.flatten(1), w[4], w[5]))
        return F.linear(x, w[6], w[7])


class OddNet(torch.nn.Module):
    """Strides, padding, no bias, odd sizes, three colours."""

    shapes = [(7, 3, 3, 3), (9, 7, 3, 3), (9,), (12, 18), (12,), (5, 12), (5,)]
    fan_in = [27, 63, 63, 18, 18, 12, 12]
    image = (3, 17, 13)
    classes = 5

    def forward(self, x, w):
        x = F.relu(F.conv2d(x, w[0], None, stride=2, padding=1))        # 9 x 7
        x = F.max_pool2d(F.conv2d(x, w[1], w[2], padding=2), 5)         # 11 x 9 -> 2 x 1
        x = F.relu(F.linear(x.flatten(1), w[3], w[4]))
        return F.linear(x, w[5], w[6])


IMAGES, BATCH = 48, 37


def data(net):
    n = Numbers(7)
    pixels = np.array([n.byte() for _ in range(IMAGES * int(np.prod(net.image)))], dtype=np.float64).reshape((IMAGES,) + net.image)
    labels = np.array([n.byte() % net.classes for _ in range(IMAGES)])
    mean, std = float(np.float32(0.45)), float(np.float32(0.3))
    return torch.from_numpy((pixels / 255 - mean) / std), torch.from_numpy(labels)


def start(net):
    n = Numbers(1)
    return [n.weights(s, f).requires_grad_() for s, f in zip(net.shapes, net.fan_in)]


def rows(step):
    return torch.tensor([(step * 7 + i * 5) % IMAGES for i in range(BATCH)])


def loss_of(net, w, x, y, step):
    return F.nll_loss(F.log_softmax(net.forward(x[rows(step)], w), 1), y[rows(step)])


def record(out, name, values):
    values = np.asarray(values, dtype="<f4").ravel()
    out.write(name.encode().ljust(24, b"\0") + struct.pack("<I", len(values)) + values.tobytes())


def gradients(out, name, net):
    x, y = data(net)
    w = start(net)
    loss = loss_of(net, w, x, y, 0)
    loss.backward()
    record(out, name + " loss", [loss.item()])
    for i, p in enumerate(w):
        g = p.grad.numpy().ravel()
        record(out, f"{name} grad {i}", g)


def training(out, name, net, make):
    """Ten steps; the loss before each, then every 7th parameter."""
    x, y = data(net)
    w = start(net)
    opt = make(w)
    losses = []
    for step in range(10):
        opt.zero_grad()
        loss = loss_of(net, w, x, y, step)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    record(out, name + " losses", losses)
    flat = np.concatenate([p.detach().numpy().ravel() for p in w])
    record(out, name + " values", flat[::7])


def reference(out):
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    gradients(out, "s0", S0Net())
    gradients(out, "odd", OddNet())
    training(out, "sgd", S0Net(), lambda w: sgd(w, lr=0.05))
    training(out, "momentum", S0Net(), lambda w: sgd(w, lr=0.01, momentum=0.5))
    training(out, "nesterov", S0Net(), lambda w: sgd(w, lr=0.01, momentum=0.9, weight_decay=1e-2, nesterov=True))
    training(out, "dampening", S0Net(), lambda w: sgd(w, lr=0.02, momentum=0.8, dampening=0.3, weight_decay=1e-3))
    training(out, "adam", S0Net(), lambda w: adam(w, lr=1e-3))
    training(out, "adam decay", S0Net(), lambda w: adam(w, lr=2e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=1e-2))


# ---- tests/test_steps.c: small layers, losses, optimizers over a hundred steps, schedules.


class NovoGrad(torch.optim.Optimizer):
    """Ginsburg et al. 2019, which torch does not have; one v a tensor, no bias correction."""

    def __init__(self, params, lr=1e-3, betas=(0.95, 0.0), eps=1e-8, weight_decay=0.0, averaging=False):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, averaging=averaging))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state, square = self.state[p], p.grad.pow(2).sum()
                state["v"] = b2 * state["v"] + (1 - b2) * square if "v" in state else square
                g = p.grad / (state["v"].sqrt() + group["eps"]) + group["weight_decay"] * p
                if group["averaging"]:
                    g = g * (1 - b1)
                state["m"] = b1 * state["m"] + g if "m" in state else g
                p -= group["lr"] * state["m"]


def hundred_steps(out, name, make, most=None):
    """Every third parameter after a hundred steps; most: the norm that gradients are clipped to."""
    net = OddNet()
    x, y = data(net)
    w = start(net)
    opt = make(w)
    for step in range(100):
        opt.zero_grad()
        loss_of(net, w, x, y, step).backward()
        if most:
            torch.nn.utils.clip_grad_norm_(w, most)
        opt.step()
    flat = np.concatenate([p.detach().numpy().ravel() for p in w])
    record(out, name, flat[::3])


class OneLayer(torch.nn.Module):
    """A layer between a convolution and a linear one."""

    image = (3, 17, 13)
    classes = 5

    def __init__(self, layer):
        self.layer = layer
        inputs = self.layer(torch.zeros(1, 4, 15, 11)).numel()
        self.shapes = [(4, 3, 3, 3), (4,), (5, inputs), (5,)]
        self.fan_in = [27, 27, inputs, inputs]

    def forward(self, x, w):
        return F.linear(self.layer(F.conv2d(x, w[0], w[1])).flatten(1), w[2], w[3])


def layer_case(out, name, layer):
    """All logits of one batch; every third gradient."""
    net = OneLayer(layer)
    x, y = data(net)
    w = start(net)
    z = net.forward(x[rows(0)], w)
    F.cross_entropy(z, y[rows(0)]).backward()
    record(out, name + " y", z.detach().numpy())
    record(out, name + " g", np.concatenate([p.grad.numpy().ravel() for p in w])[::3])


def targets(low, high):
    """A row of five for each image."""
    n = Numbers(11)
    unit = [np.float32(n.byte()) / np.float32(255) for _ in range(IMAGES * 5)]
    return torch.from_numpy((np.float32(low) + np.float32(high - low) * np.array(unit, dtype=np.float32)).astype(np.float64)).reshape(IMAGES, 5)


def loss_case(out, name, loss):
    """The loss of one batch; every third gradient. loss(logits, labels, rows of the targets)"""
    net = OneLayer(torch.tanh)
    x, y = data(net)
    w = start(net)
    value = loss(net.forward(x[rows(0)], w), y[rows(0)], rows(0))
    value.backward()
    record(out, name + " l", [value.item()])
    record(out, name + " g", np.concatenate([p.grad.numpy().ravel() for p in w])[::3])


def rates(out, name, make):
    """The learning rate at t = 0..39, from 0.1 on."""
    opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule, seen = make(opt), []
    for _ in range(40):
        seen.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    record(out, name, seen)


def schedules(out):
    s = torch.optim.lr_scheduler
    rates(out, "constant", lambda opt: s.ConstantLR(opt, factor=1.0))
    rates(out, "warm-up", lambda opt: s.LinearLR(opt))
    rates(out, "linear", lambda opt: s.LinearLR(opt, start_factor=1.0, end_factor=0.05, total_iters=33))
    rates(out, "step", lambda opt: s.StepLR(opt, 7, gamma=0.3))
    rates(out, "cosine", lambda opt: s.CosineAnnealingLR(opt, 39, eta_min=1e-3))
    rates(out, "warm-up, cosine", lambda opt: s.SequentialLR(opt, [s.LinearLR(opt), s.CosineAnnealingLR(opt, 34)], [5]))
    rates(out, "warm-up, step", lambda opt: s.SequentialLR(opt, [s.LinearLR(opt, 0.1, 1.0, 8), s.StepLR(opt, 4, 0.5)], [8]))


def steps(out):
    schedules(out)
    one_hot = lambda y: F.one_hot(y, 5).double()
    binary = F.binary_cross_entropy_with_logits
    loss_case(out, "cross-entropy", lambda z, y, i: F.cross_entropy(z, y))
    loss_case(out, "mean squared", lambda z, y, i: F.mse_loss(z, targets(-1, 1)[i]))
    loss_case(out, "mean squared, labels", lambda z, y, i: F.mse_loss(z, one_hot(y)))
    loss_case(out, "binary", lambda z, y, i: binary(z, targets(0, 1)[i]))
    loss_case(out, "binary, labels", lambda z, y, i: binary(z, one_hot(y)))
    loss_case(out, "own loss", lambda z, y, i: (z.abs() ** 3).sum() / 7)
    layer_case(out, "avgpool", lambda x: F.avg_pool2d(x, 2))
    layer_case(out, "avgpool padded", lambda x: F.avg_pool2d(x, 4, padding=2))
    layer_case(out, "avgpool global", lambda x: x.mean((2, 3)))
    layer_case(out, "sigmoid", torch.sigmoid)
    layer_case(out, "tanh", torch.tanh)
    hundred_steps(out, "sgd", lambda w: torch.optim.SGD(w, lr=0.02))
    hundred_steps(out, "momentum", lambda w: torch.optim.SGD(w, lr=0.01, momentum=0.9, weight_decay=1e-3))
    hundred_steps(out, "nesterov", lambda w: torch.optim.SGD(w, lr=0.01, momentum=0.9, nesterov=True))
    hundred_steps(out, "adam", lambda w: torch.optim.Adam(w, lr=1e-3, weight_decay=1e-2))
    hundred_steps(out, "adamw", lambda w: torch.optim.AdamW(w, lr=1e-3))
    # biases are number 2, 4 and 6; fc1.weight is 3; conv1.weight takes no step
    hundred_steps(out, "groups", lambda w: torch.optim.SGD([
        dict(params=[w[1], w[5]], weight_decay=1e-2), dict(params=[w[2], w[4], w[6]]), dict(params=[w[3]], lr=0.005, weight_decay=1e-2),
    ], lr=0.01, momentum=0.9))
    hundred_steps(out, "groups of adamw", lambda w: torch.optim.AdamW([
        dict(params=[w[1], w[5]], weight_decay=1e-2), dict(params=[w[2], w[4], w[6]], weight_decay=0.0),
        dict(params=[w[3]], lr=1.5e-4, weight_decay=1e-2),
    ], lr=3e-4))
    hundred_steps(out, "clipping", lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.5), most=0.15)
    hundred_steps(out, "novograd", lambda w: NovoGrad(w, lr=2e-3, weight_decay=1e-2))
    hundred_steps(out, "novograd averaging", lambda w: NovoGrad(w, lr=5e-3, betas=(0.9, 0.7), averaging=True))


# ---- tests/test_norm.c: batch norm, over the batch and over lane groups.


class GhostNorm(torch.nn.BatchNorm2d):
    """Statistics over each sixteen images; the running values follow the mean of the groups' means and variances."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        groups = x.split(16)
        mean = torch.stack([g.mean((0, 2, 3)) for g in groups]).mean(0)
        var = torch.stack([g.var((0, 2, 3), unbiased=True) for g in groups]).mean(0)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var, self.momentum)
        return torch.cat([F.batch_norm(g, None, None, self.weight, self.bias, True, 0.0, self.eps) for g in groups])


class NormNet(torch.nn.Module):
    """Batch norm behind strides, before a pool, on odd maps, and on the 1 x 1 maps behind a linear layer."""

    image = (3, 11, 9)
    classes = 5

    def __init__(self, norm):
        super().__init__()
        self.a = torch.nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)      # 6 x 5
        self.bn_a = norm(6)
        self.b = torch.nn.Conv2d(6, 8, 3, padding=1)
        self.bn_b = norm(8, eps=1e-3, momentum=0.3)
        self.c = torch.nn.Conv2d(8, 8, 3, padding=1)                            # 3 x 2, behind a pool
        self.bn_c = norm(8)
        self.d = torch.nn.Linear(48, 12)
        self.bn_d = norm(12)
        self.e = torch.nn.Linear(12, 5)

    def forward(self, x):
        x = F.relu(self.bn_a(self.a(x)))
        x = F.relu(F.max_pool2d(self.bn_b(self.b(x)), 2))
        x = self.bn_c(self.c(x)) + x
        x = F.relu(self.bn_d(self.d(x.flatten(1))[:, :, None, None]))
        return self.e(x.flatten(1))


def fill(module):
    """Initial values of all parameters, in their order: what is norm's stays near 1 and 0."""
    n = Numbers(1)
    for p in module.parameters():
        fan_in = int(np.prod(p.shape[1:])) if p.dim() > 1 else fan_in
        p.data = n.weights(p.shape, fan_in)
    for m in module.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.weight.data += 1
    return module


def normed(out, name, net, make, steps):
    """Logits and gradients of the first step; losses of all; running values, and logits with them, after the last."""
    x, y = data(net)
    opt = make(net.parameters())
    losses = []
    for step in range(steps):
        opt.zero_grad()
        z = net(x[rows(step)])
        loss = F.cross_entropy(z, y[rows(step)])
        loss.backward()
        if step == 0:
            record(out, name + " logits", z.detach().numpy())
            record(out, name + " gradients", np.concatenate([p.grad.numpy().ravel() for p in net.parameters()]))
        losses.append(loss.item())
        opt.step()
    record(out, name + " losses", losses)
    running = [b.numpy().ravel() for n, b in net.named_buffers() if n.endswith(("running_mean", "running_var"))]
    record(out, name + " running", np.concatenate(running))
    net.eval()
    record(out, name + " used", net(x[rows(steps)]).detach().numpy())


class ConvBN(torch.nn.Module):
    def __init__(self, inputs, outputs, kernel, stride):
        super().__init__()
        self.conv = torch.nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2)
        self.bn = torch.nn.BatchNorm2d(outputs)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Residual(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.a, self.b = ConvBN(channels, channels, 3, 1), ConvBN(channels, channels, 3, 1)

    def forward(self, x):
        return self.b(self.a(x)) + x


class ResNet9(torch.nn.Module):
    """examples/models.h: resnet9."""

    image = (3, 32, 32)
    classes = 10

    def __init__(self):
        super().__init__()
        self.a, self.b, self.res1 = ConvBN(3, 16, 7, 4), ConvBN(16, 32, 3, 2), Residual(32)
        self.c, self.d, self.res2 = ConvBN(32, 64, 3, 2), ConvBN(64, 128, 3, 2), Residual(128)
        self.fc1, self.fc2 = torch.nn.Linear(128, 128), torch.nn.Linear(128, 10)

    def forward(self, x):
        x = self.res2(self.d(self.c(self.res1(self.b(self.a(x))))))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class CBR(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = torch.nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)
        self.bn = torch.nn.BatchNorm2d(outputs)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Block(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer1, self.layer2 = CBR(inputs, outputs), CBR(outputs, outputs)
        self.scale = torch.nn.Conv2d(inputs, outputs, 1) if inputs != outputs else torch.nn.Identity()

    def forward(self, x):
        return self.layer2(self.layer1(x)) + self.scale(x)


class WideResNet(torch.nn.Module):
    """examples/models.h: wide_resnet, dropout left out."""

    image = (1, 28, 28)
    classes = 10

    def __init__(self, width):
        super().__init__()
        w = width
        self.input = CBR(1, 16)
        self.block1, self.block2 = Block(16, w), Block(w, w)
        self.block3, self.block4 = Block(w, 2 * w), Block(2 * w, 2 * w)
        self.block5, self.block6 = Block(2 * w, 4 * w), Block(4 * w, 4 * w)
        self.fc = torch.nn.Linear(4 * w, 10)

    def forward(self, x):
        x = F.max_pool2d(self.block2(self.block1(self.input(x))), 2)
        x = F.max_pool2d(self.block4(self.block3(x)), 2)
        return self.fc(F.avg_pool2d(self.block6(self.block5(x)), 7).flatten(1))


def whole(out, name, net, count):
    """Few images, so that no ReLU or maximum lies so near that rounding turns it. Logits, and of each parameter's gradient its norm and every 61st number."""
    x, y = data(net)
    z = net(x[rows(0)[:count]])
    F.cross_entropy(z, y[rows(0)[:count]]).backward()
    record(out, name + " logits", z.detach().numpy())
    record(out, name + " norms", [p.grad.norm().item() for p in net.parameters()])
    for i, p in enumerate(net.parameters()):
        record(out, f"{name} {i}", p.grad.numpy().ravel()[::61])


def norm(out):
    sgd = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)
    normed(out, "norm", fill(NormNet(torch.nn.BatchNorm2d)), sgd, 6)
    normed(out, "ghost", fill(NormNet(GhostNorm)), sgd, 6)
    whole(out, "resnet9", fill(ResNet9()), 37)
    whole(out, "wide", fill(WideResNet(16)), 7)


def main():
    files = {"reference": reference, "steps": steps, "norm": norm}
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
    for name in sys.argv[1:] or files:
        path = os.path.join(folder, name + ".bin")
        with open(path, "wb") as out:
            files[name](out)
        print(path, os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
