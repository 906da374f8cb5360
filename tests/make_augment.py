#!/usr/bin/env python3
"""Writes what Pillow makes of small images, as torchvision's transforms ask it to: tests/data/augment.bin (tests/test_data.c).

    /usr/bin/python3 tests/make_augment.py                (Debian: python3-pil, python3-numpy; made with Pillow 9.4)

The transforms are a crop of the padded image (RandomCrop with a padding); hflip; rotate(angle, NEAREST, fill 0); affine(0, (0, 0), scale, (shear, 0), NEAREST, fill 0); adjust_brightness,
adjust_contrast and adjust_saturation in one of six orders. torchvision itself is not needed: what it computes before it calls
Pillow, the affine map's inverse matrix (torchvision/transforms/functional.py, _get_inverse_affine_matrix), is written out below.
The file is little-endian: u32 cases, and for each case

    u32 C H W flip order   f64 angle scale shear   f32 brightness contrast saturation   i32 right down
    bytes in (C,H,W)   bytes out (C,H,W)
"""
import itertools
import math
import os
import struct

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

ORDERS = list(itertools.permutations(range(3)))  # of brightness, contrast, saturation
ENHANCE = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]


def inverse_affine_matrix(center, angle, translate, scale, shear):
    rot, sx, sy = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    cx, cy = center
    tx, ty = translate
    a = math.cos(rot - sy) / math.cos(sy)
    b = -math.cos(rot - sy) * math.tan(sx) / math.cos(sy) - math.sin(rot)
    c = math.sin(rot - sy) / math.cos(sy)
    d = -math.sin(rot - sy) * math.tan(sx) / math.cos(sy) + math.cos(rot)
    m = [x / scale for x in (d, -b, 0.0, -c, a, 0.0)]
    m[2] += m[0] * (-cx - tx) + m[1] * (-cy - ty)
    m[5] += m[3] * (-cx - tx) + m[4] * (-cy - ty)
    m[2] += cx
    m[5] += cy
    return m


def alter(image, flip, angle, scale, shear, factors, order, right=0, down=0):
    width, height = image.size
    fill = 0 if image.mode == "L" else (0, 0, 0)
    if right or down:  # torchvision pads with 0 by p on all sides and cuts out from (p - right, p - down)
        pad = max(abs(right), abs(down))
        image = ImageOps.expand(image, pad, fill=fill)
        image = image.crop((pad - right, pad - down, pad - right + width, pad - down + height))
    if flip:
        image = image.transpose(Image.FLIP_LEFT_RIGHT)
    if angle:
        image = image.rotate(angle, Image.NEAREST, False, None, fillcolor=fill)
    if scale != 1.0 or shear:
        matrix = inverse_affine_matrix([width * 0.5, height * 0.5], 0.0, [0, 0], scale, [shear, 0.0])
        image = image.transform((width, height), Image.AFFINE, matrix, Image.NEAREST, fillcolor=fill)
    for k in ORDERS[order]:
        if factors[k] != 1.0:
            image = ENHANCE[k](image).enhance(float(factors[k]))
    return image


def main():
    rng, shifts = np.random.default_rng(7), np.random.default_rng(8)
    sizes = [(3, 16, 20), (1, 14, 14), (3, 12, 9), (1, 7, 16), (3, 5, 5)]
    cases = []
    for n in range(85):
        C, H, W = sizes[n % len(sizes)]
        noise = rng.integers(0, 256, (C, H, W))
        ramp = (np.arange(H)[:, None] * 255 // H + np.arange(W)[None, :] * 255 // W) // 2 + np.zeros((C, 1, 1), int)
        pixels = (noise if n % 3 else (noise + 3 * ramp) // 4).astype(np.uint8)
        off = n // 5  # the first ones one step at a time, the rest all together
        alone = lambda k: off >= 7 or off == k  # noqa: E731
        flip = int(alone(0)) if off < 7 else int(rng.integers(2))
        angle = float(rng.uniform(-10, 10)) if alone(1) else 0.0
        scale = float(rng.uniform(0.8, 1.2)) if alone(2) else 1.0
        shear = float(rng.uniform(-10, 10)) if alone(2) or alone(3) else 0.0
        factors = [np.float32(rng.uniform(0.8, 1.2)) if alone(4 + k) else np.float32(1.0) for k in range(3)]
        if n % 11 == 10:
            factors = [np.float32(rng.uniform(0.0, 2.0)) for _ in factors]
        order = int(rng.integers(6))
        right, down = (int(k) for k in shifts.integers(-4, 5, 2)) if n >= 60 else (0, 0)
        if 60 <= n < 75:  # a shift alone, and with the mirror; one of them leaves nothing of the image
            angle, scale, shear, factors, flip = 0.0, 1.0, 0.0, [np.float32(1.0)] * 3, n % 2
            right = W + 1 if n == 74 else right
        image = Image.fromarray(pixels[0]) if C == 1 else Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        out = np.asarray(alter(image, flip, angle, scale, shear, factors, order, right, down))
        out = out[None] if C == 1 else out.transpose(2, 0, 1)
        head = struct.pack("<5I3d3f2i", C, H, W, flip, order, angle, scale, shear, *factors, right, down)
        cases.append(head + pixels.tobytes() + out.tobytes())
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "augment.bin")
    with open(path, "wb") as f:
        f.write(struct.pack("<I", len(cases)) + b"".join(cases))
    print(path, len(cases), "cases", os.path.getsize(path), "bytes")


main()
