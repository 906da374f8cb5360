#!/bin/sh
# check_hashes.sh LOGS: tests/test_net.c trains a net and prints a hash of all its bits. gcc's build for this machine and
# clang's for AVX2 must agree: results do not depend on the compiler, nor on the width of the vectors.
set -u
a=$(sed -n 's/^hash \([0-9a-f]*\)$/\1/p' "$1/gcc_net.txt")
b=$(sed -n 's/^hash \([0-9a-f]*\)$/\1/p' "$1/clang_net.txt")
echo "gcc $a, clang $b"
if ! grep -qw fma /proc/cpuinfo 2>/dev/null && [ "$(uname -m)" = x86_64 ]; then
    echo "skipped: no fused multiply-add here, its builds round differently"
    echo "1 passed, 0 failed"
elif [ -n "$a" ] && [ "$a" = "$b" ]; then echo "1 passed, 0 failed"
else
    echo "0 passed, 1 failed"
    exit 1
fi
