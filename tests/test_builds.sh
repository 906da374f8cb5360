#!/bin/sh
# make test-builds: the header in the builds that strangers have. What tests/test_header.sh (make test) checks by syntax for a few
# configurations is here compiled, linked and run: compilers, languages, levels of optimisation, processors, C libraries; every
# combination of the options; the warnings that others ask for; and programs that come to a processor which lacks their
# instructions. Ten minutes on two cores.
#
#   tests/test_builds.sh [languages | options | warnings | linking | processors | libraries] ...      or all
set -u
cd "$(dirname "$0")/.." || exit 1
here=tests/test_header
out=build/tests/builds
rm -rf $out && mkdir -p $out || exit 1
strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror -I."
mpicc=${MPICC:-mpicc}
passed=0
failed=0
printf '#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\nextern int x; int x;\n' >$out/whole.c
printf 'extern "C" {\n#include "dtrain.h"\n}\nint main() { return dt_version()[0] == 0; }\n' >$out/inside.cc
# a small training in one file, of what its build has: it learns, or says why not and ends with 3
cat >$out/trains.c <<'C'
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../../../tests/test_header/uses.c"
int main(void) {
    if (dt_check_processor() != DT_OK) { fputs(dt_error(), stderr); fputs("\n", stderr); return 3; }
    return trains() ? 0 : 1;
}
C

. tests/ok.sh

# built and run: NAME COMPILER FLAGS ...
trains() {
    name=$1
    shift
    ok "$name" "$@" -I. -o $out/trains $out/trains.c -lm
    ok "$name, run" ${RUNNER:-} $out/trains
}

languages() {
    for cc in gcc clang; do
        for std in c11 c17 c2x gnu11 gnu17; do
            ok "$cc -std=$std" $cc -std=$std $strict -fsyntax-only $out/whole.c
            ok "$cc -std=$std, all" $cc -std=$std -D_DEFAULT_SOURCE $strict -fsyntax-only -DDTRAIN_WITH_THREADS -DDTRAIN_WITH_CHARTS $out/whole.c
        done
        for level in -O0 -O1 -O2 -O3 -Os "-O2 -DNDEBUG" "-O2 -flto" "-O1 -m32"; do
            case $level in *m32) printf '#include <stdio.h>\nint main(void){return 0;}\n' >$out/m32.c; $cc -m32 -o $out/m32 $out/m32.c 2>/dev/null || { echo "skipped: $cc -m32: no 32-bit C library here (Debian: gcc-12-multilib)"; continue; } ;; esac
            # shellcheck disable=SC2086  # words
            trains "$cc $level" $cc -std=c11 $level $strict -DDT_STATIC
        done
    done
    for cxx in g++ clang++; do
        command -v $cxx >/dev/null 2>&1 || { echo "skipped: no $cxx"; continue; }
        for std in 11 14 17 20; do
            ok "$cxx -std=c++$std" $cxx -std=c++$std $strict -fsyntax-only "$here/plus.cc"
            ok "$cxx -std=c++$std, inside extern C" $cxx -std=c++$std $strict -fsyntax-only $out/inside.cc
        done
    done
}

# every combination of what can be asked for
options() {
    for cc in gcc clang; do
        quiet=
        [ $cc = clang ] && quiet=-Wno-unused-command-line-argument
        for mpi in "" -DDTRAIN_WITH_MPI; do
            for threads in "" -DDTRAIN_WITH_THREADS; do
                for charts in "" -DDTRAIN_WITH_CHARTS; do
                    for static in "" -DDT_STATIC; do
                        compiler=$cc
                        [ -z "$mpi" ] || compiler="env MPICH_CC=$cc OMPI_CC=$cc $mpicc"
                        # shellcheck disable=SC2086
                        ok "$cc $mpi $threads $charts $static" $compiler -std=c11 -D_DEFAULT_SOURCE $strict $quiet -fsyntax-only $mpi $threads $charts $static $out/whole.c
                    done
                done
            done
        done
    done
}

# what a user's file may ask for, of the declarations; and of the implementation, that a -I is no excuse
warnings() {
    more="-Wcast-align -Wcast-qual -Wundef -Wmissing-prototypes -Wstrict-prototypes"
    for cc in gcc clang; do
        # shellcheck disable=SC2086
        ok "$cc declarations" $cc -std=c11 $strict $more -fsyntax-only "$here/uses.c"
        # shellcheck disable=SC2086
        ok "$cc declarations, all" $cc -std=c11 $strict $more -fsyntax-only -DDTRAIN_WITH_THREADS -DDTRAIN_WITH_CHARTS "$here/uses.c"
        # shellcheck disable=SC2086
        ok "$cc implementation, -Wundef -Wstrict-prototypes" $cc -std=c11 $strict -Wundef -Wstrict-prototypes -fsyntax-only $out/whole.c
    done
    for cxx in g++ clang++; do
        command -v $cxx >/dev/null 2>&1 || continue
        # shellcheck disable=SC2086
        ok "$cxx declarations" $cxx -std=c++11 $strict -Wcast-align -Wcast-qual -Wundef -Wold-style-cast -fsyntax-only "$here/plus.cc"
    done
}

linking() {
    for cc in gcc clang; do
        ok "$cc shared library" $cc -std=c11 -O1 $strict -fPIC -fvisibility=hidden '-DDT_API=extern __attribute__((visibility("default")))' -shared -o $out/libdtrain_$cc.so $out/whole.c -lm
        # shellcheck disable=SC2016
        ok "$cc shared library: what it shows" sh -c "! nm -D --defined-only $out/libdtrain_$cc.so | awk '{ print \$3 }' | grep -v '^dt_'"
        ok "$cc shared library, used" $cc -std=c11 -O1 $strict '-DDT_API=extern __attribute__((visibility("default")))' -o $out/uses "$here/main.c" "$here/uses.c" -L$out -ldtrain_$cc -Wl,-rpath,$out
        ok "$cc shared library, run" $out/uses
        ok "$cc hidden altogether" $cc -std=c11 -O1 $strict -fvisibility=hidden -c -o $out/hidden.o $out/whole.c
    done
    # an allocator of one's own gets every call, and gets back what it gave
    cat >$out/own.c <<'C'
#include <stdlib.h>
static long given, taken;
static void *own_malloc(size_t n) { ++given; return malloc(n); }
static void own_free(void *p) { taken += p != NULL; free(p); }
#define DT_MALLOC(n) own_malloc(n)
#define DT_FREE(p) own_free(p)
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "../../../tests/test_header/uses.c"
int main(void) { return trains() && given > 0 && given == taken ? 0 : 1; }
C
    ok "own allocator" gcc -std=c11 -O1 $strict -DDT_STATIC -o $out/own $out/own.c -lm
    ok "own allocator, run" $out/own
    ok "DT_STATIC twice" clang -std=c11 -O0 $strict -o $out/static "$here/static_one.c" "$here/static_two.c" -lm
    ok "DT_STATIC twice, run" $out/static
}

# lacks NAME PROGRAM CPU: says what is missing, in its one sentence, and does not die of it
lacks() {
    said=$(qemu-x86_64 -cpu "$3" "$2" 2>&1 | grep -v '^qemu-x86_64: warning')
    qemu-x86_64 -cpu "$3" "$2" >/dev/null 2>&1
    code=$?
    if [ $code -eq "$4" ] && printf '%s' "$said" | grep -q "this program was compiled to .* instructions, which this processor lacks"; then passed=$((passed + 1))
    else failed=$((failed + 1)); printf 'FAILED  %s on %s: exit code %d, "%s"\n' "$1" "$3" $code "$said"; fi
}

processors() {
    [ "$(uname -m)" = x86_64 ] || { echo "skipped: processors: this one is no x86-64"; return; }
    emulated=yes
    command -v qemu-x86_64 >/dev/null 2>&1 || { echo "skipped: no qemu-x86_64 (Debian: qemu-user)"; emulated=; }
    for cc in gcc clang; do
        for march in x86-64 x86-64-v2 x86-64-v3 x86-64-v4; do
            ok "$cc -march=$march" $cc -std=c11 -O3 -march=$march $strict -DDT_STATIC -o $out/on_$march $out/trains.c -lm
            case $march in
            *v4) grep -qw avx512vl /proc/cpuinfo || { echo "skipped: $march: this processor has no AVX-512"; continue; } ;;
            *v3) grep -qw avx2 /proc/cpuinfo || continue ;;
            esac
            ok "$cc -march=$march, run" $out/on_$march
        done
        [ -n "$emulated" ] || continue
        #   emulated: x86-64-v1, as it was in 2003; v2 (Nehalem); all that the emulator knows, which is AVX2 and no AVX-512
        ok "$cc x86-64 on the plainest" sh -c "qemu-x86_64 -cpu qemu64 $out/on_x86-64 2>&1 | grep -v 'qemu-x86_64: warning'; true"
        lacks "$cc x86-64-v3" $out/on_x86-64-v3 Nehalem 3
        lacks "$cc x86-64-v4" $out/on_x86-64-v4 Nehalem 3
        lacks "$cc x86-64-v4" $out/on_x86-64-v4 max 3
    done
    #   and a chapter, compiled to AVX-512 whole: it says so before main, whatever main begins with
    if [ -n "$emulated" ] && grep -qw avx512vl /proc/cpuinfo; then
        ok "a chapter for x86-64-v4" gcc -std=c11 -D_DEFAULT_SOURCE -O3 -march=x86-64-v4 $strict -DDTRAIN_IMPLEMENTATION -DDTRAIN_WITH_CHARTS -o $out/ch00 chapters/ch00_*.c -lm
        lacks "a chapter for x86-64-v4" $out/ch00 max 1
        lacks "a chapter for x86-64-v4" $out/ch00 Nehalem 1
    fi
    if [ -n "$emulated" ] && grep -qw avx512vl /proc/cpuinfo; then
        ok "the drop-in example for x86-64-v4" gcc -std=c11 -O3 -march=x86-64-v4 $strict -o $out/dropin examples/dropin.c -lm
        lacks "the drop-in example" $out/dropin max 1
        lacks "the drop-in example" $out/dropin Nehalem 1
    fi
    if command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 && command -v qemu-aarch64 >/dev/null 2>&1; then
        RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" trains "aarch64" aarch64-linux-gnu-gcc -std=c11 -O2 $strict -DDT_STATIC
    else echo "skipped: no aarch64 compiler or emulator (make deps-elsewhere)"; fi
    if command -v s390x-linux-gnu-gcc >/dev/null 2>&1 && command -v qemu-s390x >/dev/null 2>&1; then
        RUNNER="qemu-s390x -L /usr/s390x-linux-gnu" trains "s390x, whose bytes lie the other way round" s390x-linux-gnu-gcc -std=c11 -O2 $strict -DDT_STATIC
    else echo "skipped: no s390x compiler or emulator (Debian: gcc-s390x-linux-gnu libc6-dev-s390x-cross qemu-user)"; fi
}

libraries() {
    if command -v musl-gcc >/dev/null 2>&1; then
        trains "musl" musl-gcc -std=c11 -O1 $strict -DDT_STATIC
        ok "musl, threads" musl-gcc -std=c11 -D_DEFAULT_SOURCE $strict -fsyntax-only -DDTRAIN_WITH_THREADS $out/whole.c
        trains "musl, static" musl-gcc -static -std=c11 -O1 $strict -DDT_STATIC
    else echo "skipped: no musl-gcc (Debian: musl-tools)"; fi
    windows=x86_64-w64-mingw32-gcc
    if command -v $windows >/dev/null 2>&1; then
        #   Windows' own isnan and isfinite have a cast for each type of number, of which one is taken
        ok "Windows" $windows -std=c11 -O1 $strict -Wno-float-conversion -o $out/dropin.exe examples/dropin.c -lm
        ok "Windows, trains" $windows -std=c11 -O1 $strict -Wno-float-conversion -DDT_STATIC -o $out/trains.exe $out/trains.c -lm
    else echo "skipped: no $windows (Debian: gcc-mingw-w64-x86-64)"; fi
    wasm="clang --target=wasm32-wasi --sysroot=/usr"
    if printf 'int main(void) { return 0; }\n' | $wasm -x c -o $out/probe.wasm - 2>/dev/null; then
        mkdir -p build/wasm
        for simd in -msimd128 -mno-simd128; do
            # shellcheck disable=SC2086
            ok "WebAssembly $simd" $wasm -std=c11 -O1 $simd $strict -DDT_STATIC -o build/wasm/trains.wasm $out/trains.c -lm
            ! command -v node >/dev/null 2>&1 || ok "WebAssembly $simd, run" node --no-warnings --no-turbo-fast-api-calls tests/wasi.mjs trains
        done
    else echo "skipped: no WebAssembly (make deps-book)"; fi
}

[ $# -gt 0 ] || set -- languages options warnings linking processors libraries
for part; do $part; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
