#!/bin/sh
# make test-sanitizers: the unit tests, and runs of three MPI ranks, under AddressSanitizer with UndefinedBehaviorSanitizer and
# LeakSanitizer; the thread trainers and the communicator under ThreadSanitizer; chapters 0 to 6 under valgrind. Half an hour on
# two cores, most of it compiling. Suppressions, for what is MPI's own, stand in tests/sanitizers, and the reason beside each.
#
#   tests/test_sanitizers.sh [address | thread | valgrind] ...      or all
#   ONLY="says sums" tests/test_sanitizers.sh address               these tests alone
set -u
cd "$(dirname "$0")/.." || exit 1
out=build/tests/sanitizers
mkdir -p $out/log
base="-std=c11 -D_DEFAULT_SOURCE -ffp-contract=off -I. -g1 -fno-omit-frame-pointer"
arch=${ARCH--march=native}
mpicc=${MPICC:-mpicc}
mpiexec=${MPIEXEC:-mpiexec}
passed=0
failed=0
export LSAN_OPTIONS="suppressions=$PWD/tests/sanitizers/lsan.supp:print_suppressions=0"
# without detect_stack_use_after_return: gcc 12 puts vectors of 64 bytes at multiples of 32 on its stack of copies, and they fault
export ASAN_OPTIONS="allocator_may_return_null=1:detect_stack_use_after_return=0"
export UBSAN_OPTIONS="print_stacktrace=1"
export TSAN_OPTIONS="suppressions=$PWD/tests/sanitizers/tsan.supp:halt_on_error=0:exitcode=66"

# ok NAME SECONDS COMMAND ...
ok() {
    name=$1 limit=$2
    shift 2
    log=$out/log/$(echo "$name" | tr ' /' '__').txt
    from=$(date +%s)
    if timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null && ! grep -qE 'runtime error:|WARNING: ThreadSanitizer|ERROR: (Address|Leak)Sanitizer' "$log"; then
        passed=$((passed + 1))
        printf 'ok      %-40s %4d s\n' "$name" $(($(date +%s) - from))
    else
        failed=$((failed + 1))
        printf 'FAILED  %s: %s\n' "$name" "$*"
        grep -nE 'runtime error:|ThreadSanitizer|Sanitizer|FAILED|#[0-9] ' "$log" | head -n 30 | sed 's/^/        | /'
    fi
}

chosen() { # of all tests, what ONLY asks for
    for f in tests/test_*.c; do
        t=${f#tests/test_}
        t=${t%.c}
        case " ${ONLY:-$t} " in *" $t "*) echo "$t" ;; esac
    done
}

address() {
    san="-O1 $arch -fsanitize=address,undefined -fno-sanitize-recover=all"
    [ -f build/tests/contract_calls.h ] || make --no-print-directory -s build/tests/contract_calls.h
    for t in $(chosen); do
        # shellcheck disable=SC2086  # words
        gcc $base $san -o $out/asan_$t tests/test_$t.c -lcmocka -lm -pthread >$out/log/build.txt 2>&1 || { echo "FAILED  asan $t does not compile"; cat $out/log/build.txt; failed=$((failed + 1)); continue; }
        ok "address $t" 900 $out/asan_$t
        rm -f $out/asan_$t
    done
    for t in comm train contract; do
        case " ${ONLY:-$t} " in *" $t "*) ;; *) continue ;; esac
        # shellcheck disable=SC2086
        MPICH_CC=gcc OMPI_CC=gcc $mpicc $base $san -DDTRAIN_WITH_MPI -o $out/asan_mpi_$t tests/test_$t.c -lcmocka -lm -pthread >$out/log/build.txt 2>&1 || { echo "FAILED  asan mpi $t does not compile"; failed=$((failed + 1)); continue; }
        ok "address, 3 MPI ranks, $t" 900 "$mpiexec" -n 3 $out/asan_mpi_$t
        rm -f $out/asan_mpi_$t
    done
}

thread() {
    for t in comm train steps; do
        case " ${ONLY:-$t} " in *" $t "*) ;; *) continue ;; esac
        # shellcheck disable=SC2086
        gcc $base -O1 $arch -fsanitize=thread -o $out/tsan_$t tests/test_$t.c -lcmocka -lm -pthread >$out/log/build.txt 2>&1 || { echo "FAILED  tsan $t does not compile"; cat $out/log/build.txt; failed=$((failed + 1)); continue; }
        ok "thread $t" 900 $out/tsan_$t
        rm -f $out/tsan_$t
    done
    case " ${ONLY:-train} " in *" train "*)
        # shellcheck disable=SC2086
        MPICH_CC=gcc OMPI_CC=gcc $mpicc $base -O1 $arch -fsanitize=thread -DDTRAIN_WITH_MPI -o $out/tsan_mpi tests/test_train.c -lcmocka -lm -pthread >$out/log/build.txt 2>&1
        ok "thread, 3 MPI ranks, train" 900 "$mpiexec" -n 3 $out/tsan_mpi
        rm -f $out/tsan_mpi ;;
    esac
}

valgrind_chapters() {
    command -v valgrind >/dev/null 2>&1 || { echo "skipped: no valgrind here"; return; }
    # valgrind knows AVX2 and no AVX-512
    plain=
    [ "$(uname -m)" != x86_64 ] || plain=-march=x86-64-v3
    # shellcheck disable=SC2086
    gcc $base -O1 $plain -DDTRAIN_WITH_THREADS -DDTRAIN_WITH_CHARTS -DDTRAIN_IMPLEMENTATION -x c -c -o $out/dtrain_valgrind.o dtrain.h || return
    mkdir -p build/check
    for n in 00 01 02 03 04 05 06; do
        # shellcheck disable=SC2086
        gcc $base -O1 $plain -DDTRAIN_WITH_THREADS -DDTRAIN_WITH_CHARTS -o $out/ch$n chapters/ch${n}_*.c $out/dtrain_valgrind.o -lm -pthread || { failed=$((failed + 1)); continue; }
        # the small settings with which make check runs it
        settings=$(sed -n 's|^// Check *\./ch[0-9]* *||p' chapters/ch${n}_*.c | head -n 1)
        # shellcheck disable=SC2086
        ok "valgrind chapter $n" 900 valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite,possible $out/ch$n $settings
    done
}

[ $# -gt 0 ] || set -- address thread valgrind
for part; do case $part in valgrind) valgrind_chapters ;; *) $part ;; esac; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
