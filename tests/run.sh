#!/bin/sh
# make test: runs what tests/tests.mk built, and the scripts; ends with "N passed, N failed".
#
#   sh tests/run.sh [family ...]      family: a word in the names below, such as kernels, mpi, header, cli, chapters
#   sh tests/run.sh elsewhere         builds for other processors instead (make test-elsewhere)
#   sh tests/run.sh injection         faults under a sanitizer, runs that are killed (make test-injection)
#
# A program that prints no count, crashes, or runs into its time limit counts as one failure. What a run printed stands in
# build/tests/log, and on the screen if it failed.
set -u
cd "$(dirname "$0")/.." || exit 1
mpiexec=${MPIEXEC:-mpiexec}
log=build/tests/log
mkdir -p "$log"
taken=$log/taken            # a folder for each run that has been started, a file with its two counts when it has ended
rm -rf "$taken"
mkdir -p "$taken"
only="$*"

# Adds all numbers that stand before or behind a pattern's words in a log.
sum() { sed -n "$1" "$2" | awk '{ s += $1 } END { print s + 0 }'; }

# run NAME SECONDS COMMAND ...: what no lane has taken yet
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
    file=$(echo "$name" | tr ' /' '__')
    mkdir "$taken/$file" 2>/dev/null || return 0
    file=$log/$file.txt
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
    echo "$p $f" >"$taken/${file##*/}.count"
    #   written at once, so that the lines of two lanes do not mix
    {
        if [ "$f" -eq 0 ]; then
            printf 'ok      %-34s %3d passed  %3d s\n' "$name" "$p" "$took"
        else
            printf 'FAILED  %-34s %3d passed, %d failed%s\n' "$name" "$p" "$f" "$why"
            tail -n 40 "$file" | sed 's/^/        | /'
        fi
        grep '^skipped' "$file" | sed 's/^/        /'
    } >"$file.said"
    cat "$file.said"
    rm "$file.said"
}

# two_lanes FUNCTION: the runs that it lists, two at a time. Each lane walks the whole list and takes what the other one has not.
two_lanes() {
    "$1" &
    "$1"
    wait
}

# Every run that was started has left its counts; one without them counts as a failure.
finish() {
    started=$(ls "$taken" | grep -vc -e '\.count$' -e '^no-')
    cat "$taken"/*.count 2>/dev/null | awk -v started="$started" '{ p += $1; f += $2 } END {
        if (NR != started) { f += started - NR; print "FAILED  " started - NR " of " started " runs have left no count" }
        printf "%d passed, %d failed\n", p, f
        exit f > 0 || p == 0 }'
    exit
}

elsewhere() {
    # emulated multiply-adds are a hundred times slower: the longest first
    emulate="qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=build/aarch64/lib build/tests/aarch64"
    big_endian="qemu-s390x -L /usr/s390x-linux-gnu -E LD_LIBRARY_PATH=build/s390x/lib build/tests/s390x"
    for t in kernels net; do
        # shellcheck disable=SC2086  # words
        [ ! -x build/tests/aarch64/test_$t ] || run "aarch64 $t" 900 $emulate/test_$t
    done
    for t in build/tests/s390x/test_*; do
        some=
        [ "${t##*/}" = test_net ] && some="pinned*"   # all of it takes eight minutes
        # shellcheck disable=SC2086
        [ ! -x "$t" ] || run "s390x ${t##*/test_}" 900 $big_endian/"${t##*/}" $some
    done
    for t in build/tests/aarch64/test_*; do
        # shellcheck disable=SC2086
        [ ! -x "$t" ] || run "aarch64 ${t##*/test_}" 900 $emulate/"${t##*/}"
    done
    run "gcc net" 120 build/tests/gcc/test_net
    for t in build/tests/avx2/test_*; do
        [ ! -x "$t" ] || run "avx2 ${t##*/test_}" 120 "$t"
    done
}

if [ "$only" = elsewhere ]; then
    only=
    builds=gcc
    for kind in avx2 aarch64 s390x; do
        if ls build/tests/"$kind"/test_* >/dev/null 2>&1; then builds="$builds $kind"; else echo "skipped: nothing is built for $kind here"; fi
    done
    two_lanes elsewhere
    # shellcheck disable=SC2086  # a list of words
    run "same bits, $builds" 10 sh tests/check_hashes.sh "$log" $builds
    finish
fi

if [ "$only" = injection ]; then
    only=
    for t in gcc-sanitize/test_faults clang-sanitize/test_faults gcc-sanitize/test_checkpoint gcc-sanitize/test_files; do
        run "$(echo "$t" | tr / ' ')" 300 build/tests/$t
    done
    run "survive" 900 env KILLS=20 ELASTIC=10 EPOCHS=20 IMAGES=6000 MOST=5000 sh tests/test_resume.sh
    finish
fi

# what may run beside something else: the long ones first
beside() {
    run "cli" 300 sh tests/test_cli.sh
    run "header gcc" 240 sh tests/test_header.sh gcc
    run "header clang" 240 sh tests/test_header.sh clang
    run "header" 240 sh tests/test_header.sh whole
    [ -f chapters/check.sh ] && run "chapters" 240 sh chapters/check.sh
    run "wasm" 240 sh tests/test_wasm.sh
    [ -f tests/test_labs.sh ] && run "labs" 240 sh tests/test_labs.sh
    run "environments" 120 sh tests/test_environments.sh
    run "embed" 240 sh tests/test_embed.sh
    run "book" 240 sh tests/test_book.sh
    for t in build/tests/gcc/test_*; do
        [ -x "$t" ] && run "gcc ${t##*/test_}" 120 "$t"
    done
    for t in build/tests/clang/test_* build/tests/base/test_* build/tests/*-sanitize/test_*; do
        [ -x "$t" ] || continue
        compiler=${t#build/tests/}
        run "${compiler%%/*} ${t##*/test_}" 120 "$t"
    done
    run "get data" 60 sh tests/test_get_data.sh
    run "citations" 20 sh tests/check_citations.sh
    run "order" 20 sh tests/check_order.sh
    if command -v python3 >/dev/null 2>&1; then run "prose" 20 python3 tests/check_prose.py; run "numbers" 20 python3 tests/check_numbers.py
    elif mkdir "$taken/no-python" 2>/dev/null; then echo "skipped: prose: no python3 here"; fi
}
two_lanes beside

# what has the machine to itself: ranks that wait for each other, on as many cores as there are
for t in build/tests/mpi/test_*; do
    [ -x "$t" ] || continue
    run "threads ${t##*/test_}" 120 "$t"
    for n in 1 2 3 4 5; do
        run "mpi $n ${t##*/test_}" 120 "$mpiexec" -n "$n" "$t"
    done
    #   to MPICH's launcher, started twice on this machine, these are two hosts without memory in common
    if "$mpiexec" --version 2>/dev/null | grep -q HYDRA; then
        run "mpi 3 on two hosts ${t##*/test_}" 120 "$mpiexec" -launcher fork -hosts a:2,b -n 3 "$t"
    fi
done
run "faults" 300 sh tests/test_fault.sh build/tests/mpi/fault
run "resume" 120 sh tests/test_resume.sh
run "conformance" 60 sh tests/conformance.sh check
run "same bits, gcc and clang" 10 sh tests/check_hashes.sh "$log" gcc clang

finish
