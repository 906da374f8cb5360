#!/bin/sh
# make conformance: chapters/conformance.md from what the tests against PyTorch print. The numbers are of the machine that it runs on.
set -eu
cd "$(dirname "$0")/.."
page=chapters/conformance.md
for t in net norm steps; do build/tests/gcc/test_$t 2>/dev/null | sed -n 's/^conformance \(.*[^ ]\)  *largest difference \(.*\), bound \(.*\)$/| \1 | \2 | \3 |/p'; done >build/conformance.txt
[ "$(wc -l <build/conformance.txt)" -ge 36 ] || { echo "conformance: the tests print too few rows"; exit 1; }
{
    cat <<'END'
# Held against PyTorch

Committed numbers, made by `tests/make_reference.py` with PyTorch 1.13 in double precision (NovoGrad, which
PyTorch lacks, from a reference in the script), and repeated here in single precision on every `make test`.
A row's number is its largest difference, over the largest number of its record; what is more than the bound
fails the test. Layers and nets: logits and every gradient of a batch, and for batch norm six steps with
running values; losses: value and gradient; optimizers: all parameters after a hundred steps; schedules:
forty rates. Made by `make conformance`.

| row | largest difference | bound |
|---|---|---|
END
    cat build/conformance.txt
    cat <<'END'

A file that dtrain saves is loaded by PyTorch with strict names and gives the same accuracy
(`tests/check_saved.py`), ResNet9 and WideResNet the same logits in both directions
(`tests/check_models.py`), where `python3-torch` is installed.
END
} >"$page"
echo "$page"
