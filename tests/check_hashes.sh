#!/bin/sh
# check_hashes.sh LOGS BUILD ...: tests/test_net.c trains a net and prints a hash of all its bits. The builds named must agree:
# results do not depend on the compiler, the processor, or the width of its vectors.
set -u
logs=$1
shift
if ! grep -qw fma /proc/cpuinfo 2>/dev/null && [ "$(uname -m)" = x86_64 ]; then
    echo "skipped: no fused multiply-add here, its builds round differently"
    echo "1 passed, 0 failed"
    exit 0
fi
first=
same=yes
for build; do
    hash=$(sed -n 's/^hash \([0-9a-f]*\)$/\1/p' "$logs/${build}_net.txt")
    echo "$build ${hash:-printed no hash}"
    [ -n "$hash" ] && [ "$hash" = "${first:=$hash}" ] || same=no
done
[ "$same" = yes ] && echo "1 passed, 0 failed" && exit 0
echo "0 passed, 1 failed"
exit 1
