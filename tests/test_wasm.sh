#!/bin/sh
# Chapters 0 to 6 as WebAssembly under Node: what their heads promise to print, they print there as well. Nothing that they
# use is missing where there are no processes, signals and threads.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build/wasm
compiler="clang --target=wasm32-wasi --sysroot=/usr"
printf '#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' >build/wasm/probe.c
if ! $compiler -o build/wasm/probe.wasm build/wasm/probe.c >/dev/null 2>&1; then
    echo "skipped: clang makes no WebAssembly here (Debian: clang lld wasi-libc libclang-rt-14-dev-wasm32)"
    exit 0
fi
node="node --no-warnings --no-turbo-fast-api-calls"
if ! $node -e 'require("node:wasi")' >/dev/null 2>&1; then
    echo "skipped: no Node with WASI to run WebAssembly (Debian: nodejs)"
    exit 0
fi
make --no-print-directory -s -j2 wasm || { echo "0 passed, 1 failed"; exit 1; }
RUNNER="$node tests/wasi.mjs" sh chapters/check.sh ch00 ch01 ch02 ch03 ch04 ch05 ch06
