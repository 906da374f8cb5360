#!/bin/sh
# make test: runs what tests/tests.mk built, and the scripts; ends with "N passed, N failed".
#
#   sh tests/run.sh [family ...]      family: a word in the names below, such as kernels, mpi, header, cli, chapters
#   sh tests/run.sh elsewhere         builds for other processors instead (make test-elsewhere)
#
# A program that prints no count, crashes, or runs into its time limit counts as one failure. What a run printed stands in
# build/tests/log, and on the screen if it failed.
set -u
cd "$(dirname "$0")/.." || exit 1
mpiexec=${MPIEXEC:-mpiexec}
log=build/tests/log
mkdir -p "$log"
passed=0
failed=0
only="$*"

# Adds all numbers that stand before or behind a pattern's words in a log.
sum() { sed -n "$1" "$2" | awk '{ s += $1 } END { print s + 0 }'; }

# run NAME SECONDS COMMAND ...
run() {
    name=$1 limit=$2
    shift 2
    if [ -n "$only" ]; then
        wanted=
        for word in $only; do
            case $name in *$word*) wanted=yes ;; esac
        done
        [ -n "$wanted" ] || return 0
    fi
    file=$log/$(echo "$name" | tr ' /' '__').txt
    from=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$file" 2>&1 </dev/null
    code=$?
    took=$(($(date +%s) - from))
    # cmocka: "[  PASSED  ] 12 test(s)."   scripts: "12 passed, 0 failed"   test_comm on MPI ranks: a line "ok  ..." each
    p=$(sum 's/^\[  PASSED  \] \([0-9][0-9]*\) test.*/\1/p; s/^\([0-9][0-9]*\) passed, [0-9][0-9]* failed.*/\1/p' "$file")
    f=$(sum 's/^\[  FAILED  \] \([0-9][0-9]*\) test.*/\1/p; s/^[0-9][0-9]* passed, \([0-9][0-9]*\) failed.*/\1/p' "$file")
    [ "$p" -eq 0 ] && [ "$f" -eq 0 ] && p=$(grep -c '^ok  ' "$file")
    why=
    [ "$code" -eq 124 ] && why=", not ended after $limit s"
    [ "$code" -ne 0 ] && [ "$code" -ne 124 ] && [ "$f" -eq 0 ] && why=", exit code $code"
    [ "$code" -eq 0 ] && [ "$p" -eq 0 ] && [ "$f" -eq 0 ] && ! grep -q '^skipped' "$file" && why=", printed no count"
    [ -n "$why" ] && [ "$f" -eq 0 ] && f=1
    passed=$((passed + p))
    failed=$((failed + f))
    if [ "$f" -eq 0 ]; then
        printf 'ok      %-34s %3d passed  %3d s\n' "$name" "$p" "$took"
    else
        printf 'FAILED  %-34s %3d passed, %d failed%s\n' "$name" "$p" "$f" "$why"
        tail -n 40 "$file" | sed 's/^/        | /'
    fi
    grep '^skipped' "$file" | sed 's/^/        /'
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

if [ "$only" = elsewhere ]; then
    only=
    builds=gcc
    run "gcc net" 120 build/tests/gcc/test_net
    for kind in avx2 aarch64; do
        ls build/tests/"$kind"/test_* >/dev/null 2>&1 || { echo "skipped: nothing is built for $kind here"; continue; }
        if [ $kind = avx2 ]; then
            for t in build/tests/avx2/test_*; do run "avx2 ${t##*/test_}" 120 "$t"; done
        else
            # emulated multiply-adds are a hundred times slower: the kernels' test goes beside the others, and is counted at the end
            emulate="timeout -k 5 900 qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=build/aarch64/lib build/tests/aarch64"
            ($emulate/test_kernels >"$log/beside.txt" 2>&1 </dev/null; echo $? >"$log/beside.code") &
            for t in build/tests/aarch64/test_*; do
                # shellcheck disable=SC2086  # words
                [ "${t##*/}" = test_kernels ] || run "aarch64 ${t##*/test_}" 900 $emulate/"${t##*/}"
            done
            wait
            run "aarch64 kernels" 20 sh -c "cat '$log/beside.txt'; exit \$(cat '$log/beside.code')"
        fi
        builds="$builds $kind"
    done
    # shellcheck disable=SC2086  # a list of words
    run "same bits, $builds" 10 sh tests/check_hashes.sh "$log" $builds
    finish
fi

for t in build/tests/gcc/test_*; do
    [ -x "$t" ] && run "gcc ${t##*/test_}" 120 "$t"
done
for t in build/tests/clang/test_* build/tests/base/test_* build/tests/*-sanitize/test_*; do
    [ -x "$t" ] || continue
    compiler=${t#build/tests/}
    run "${compiler%%/*} ${t##*/test_}" 120 "$t"
done
for t in build/tests/mpi/test_*; do
    [ -x "$t" ] || continue
    run "threads ${t##*/test_}" 120 "$t"
    for n in 1 2 3 4 5; do
        run "mpi $n ${t##*/test_}" 120 "$mpiexec" -n "$n" "$t"
    done
    #   to MPICH's launcher, started twice on this machine, these are two hosts without memory in common
    if "$mpiexec" -launcher fork -hosts a,b -n 2 true 2>/dev/null; then
        run "mpi 3 on two hosts ${t##*/test_}" 120 "$mpiexec" -launcher fork -hosts a:2,b -n 3 "$t"
    fi
done
run "same bits, gcc and clang" 10 sh tests/check_hashes.sh "$log" gcc clang
run "header" 240 sh tests/test_header.sh
run "embed" 240 sh tests/test_embed.sh
run "citations" 20 sh tests/check_citations.sh
run "order" 20 sh tests/check_order.sh
if command -v python3 >/dev/null 2>&1; then run "prose" 20 python3 tests/check_prose.py; else echo "skipped: prose: no python3 here"; fi
run "get data" 60 sh tests/test_get_data.sh
run "book" 120 sh tests/test_book.sh
run "cli" 300 sh tests/test_cli.sh
run "faults" 300 sh tests/test_fault.sh build/tests/mpi/fault
[ -f chapters/check.sh ] && run "chapters" 240 sh chapters/check.sh
[ -f tests/test_labs.sh ] && run "labs" 240 sh tests/test_labs.sh
run "wasm" 240 sh tests/test_wasm.sh

finish
