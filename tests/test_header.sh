#!/bin/sh
# The header [S1.1] in every configuration and both compilers, with the strict flags: two C files, C++, DT_STATIC twice, with
# and without MPI, threads and charts; what it exports and what it calls. Where nothing is run, nothing is generated either
# (-fsyntax-only), which is what keeps this short.
#
#   tests/test_header.sh [gcc | clang | whole] ...     the configurations of one compiler; what is linked, run and looked into; or all
set -u
cd "$(dirname "$0")/.." || exit 1
here=tests/test_header
[ $# -gt 0 ] || set -- gcc clang whole
out=build/tests/header/$1
strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror -I."
c11="-std=c11 -D_DEFAULT_SOURCE $strict"
all="-DDTRAIN_WITH_THREADS -DDTRAIN_WITH_CHARTS"
mpicc=${MPICC:-mpicc}
mkdir -p "$out"
printf '#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\nextern int x; int x;\n' >"$out/whole.c"
printf '#include <stdio.h>\n#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\nextern int x; int x;\n' >"$out/stdio_first.c"
printf '#include "dtrain.h"\n#define DTRAIN_IMPLEMENTATION\n#include "dtrain.h"\nextern int x; int x;\n' >"$out/twice.c"
passed=0
failed=0

. tests/ok.sh

# refused NAME TEXT COMMAND ...: must fail and say TEXT, in the one error that there is
refused() {
    name=$1 text=$2
    shift 2
    if said=$("$@" 2>&1); then
        failed=$((failed + 1))
        echo "FAILED  $name: no error"
    elif [ "$(printf '%s\n' "$said" | grep -c "error: ")" -eq 1 ] && printf '%s\n' "$said" | grep -q "error: .*$text"; then passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED  %s: does not say "%s"\n%s\n' "$name" "$text" "$(printf '%s\n' "$said" | head -n 5)"
    fi
}

# Flags that let the compiler break IEEE 754: refused by their macro, or where there is none (taken away here with -U, as older
# compilers have fewer) when the program starts; and what is linked.
arithmetic() { # compiler
    cc=$1 fast="without -ffast-math"
    machines=-O3
    [ "$(uname -m)" != x86_64 ] || machines="-march=x86-64 -march=native"
    for flags in -ffast-math -Ofast -ffinite-math-only; do
        refused "$cc $flags" "$fast" $cc $c11 -fsyntax-only $flags "$out/whole.c"
    done
    [ $cc = clang ] || for flags in "-fassociative-math -fno-signed-zeros -fno-trapping-math" -freciprocal-math -fno-signed-zeros -funsafe-math-optimizations; do
        refused "$cc $flags" "$fast" $cc $c11 -fsyntax-only $flags "$out/whole.c"
    done
    ok "$cc -ffast-math -fno-fast-math" $cc $c11 -Wno-overriding-t-option -fsyntax-only -ffast-math -fno-fast-math "$out/whole.c"
    unseen="-U__FINITE_MATH_ONLY__ -U__ASSOCIATIVE_MATH__ -U__RECIPROCAL_MATH__ -U__NO_SIGNED_ZEROS__ -ffp-contract=off"
    program=$out/arithmetic_$cc
    for machine in $machines; do
        for optimize in -O0 -O3; do
            ok "$cc $machine $optimize" $cc $c11 $machine $optimize -o $program "$here/arithmetic.c" -lm
            ok "$cc $machine $optimize arithmetic" $program
        done
        for flags in "-fassociative-math -fno-signed-zeros -fno-trapping-math" -freciprocal-math -fno-signed-zeros \
                     "$([ $cc = clang ] && echo -fno-honor-nans || echo -ffinite-math-only)"; do
            ok "$cc $machine $flags" $cc -std=c11 -w -I. $unseen $machine -O3 $flags -o $program "$here/arithmetic.c" -lm
            refused "$cc $machine $flags runs" "$fast" $program
        done
    done
    [ $cc = clang ] || ok "$cc -fsingle-precision-constant" $cc -std=c11 -w -I. -fsingle-precision-constant -o $program "$here/arithmetic.c" -lm
    [ $cc = clang ] || refused "$cc -fsingle-precision-constant runs" "0.1 is a double" $program
    #   code compiled as it should be, in a program that is linked as -Ofast does it: its start sets the processor
    [ "$(uname -m)" = x86_64 ] || return
    ok "$cc fast start" $cc $c11 -O1 -c -o $program.o "$here/arithmetic.c"
    ok "$cc fast start, link" $cc -ffast-math -o $program $program.o -lm
    refused "$cc fast start runs" "fesetenv(FE_DFL_ENV)" $program
}

configurations() { # compiler
    cc=$1
    # configurations
    ok "$cc plain" $cc $c11 -fsyntax-only "$out/whole.c"
    ok "$cc threads" $cc $c11 -fsyntax-only -DDTRAIN_WITH_THREADS "$out/whole.c"
    ok "$cc charts" $cc $c11 -fsyntax-only -DDTRAIN_WITH_CHARTS "$out/whole.c"
    #   (the MPI compiler adds linker options even where nothing is linked)
    quiet=
    [ $cc = clang ] && quiet=-Wno-unused-command-line-argument
    ok "$cc MPI" env MPICH_CC=$cc OMPI_CC=$cc $mpicc $c11 $quiet -fsyntax-only -DDTRAIN_WITH_MPI "$out/whole.c"
    ok "$cc MPI, threads, charts" env MPICH_CC=$cc OMPI_CC=$cc $mpicc $c11 $quiet -fsyntax-only -DDTRAIN_WITH_MPI $all "$out/whole.c"
    ok "$cc gnu11" $cc -std=gnu11 $strict -fsyntax-only $all "$out/whole.c"
    ok "$cc gnu11, no defines" $cc -std=gnu11 $strict -fsyntax-only "$out/whole.c"
    #   strict C11 and a system header before ours: no feature macro of the program's, and too late for one of the header's own
    ok "$cc c11, no defines, stdio.h first" $cc -std=c11 $strict -fsyntax-only "$out/stdio_first.c"
    ok "$cc c11, no defines, stdio.h first, threads" $cc -std=c11 $strict -fsyntax-only -DDTRAIN_WITH_THREADS "$out/stdio_first.c"
    #   MPI needs more than strict C11 shows: the header asks for it where it comes first, and says so where it comes too late
    strict_mpi="env MPICH_CC=$cc OMPI_CC=$cc $mpicc -std=c11 $strict $quiet -fsyntax-only -DDTRAIN_WITH_MPI"
    ok "$cc c11, no defines, MPI" $strict_mpi "$out/whole.c"
    ok "$cc c11, no defines, MPI, threads, charts" $strict_mpi $all "$out/whole.c"
    ok "$cc c11, POSIX asked for, MPI" $strict_mpi -D_POSIX_C_SOURCE=200809L "$out/whole.c"
    ok "$cc c11, GNU asked for, stdio.h first, MPI" $strict_mpi -D_GNU_SOURCE "$out/stdio_first.c"
    refused "$cc c11, no defines, stdio.h first, MPI" "D_DEFAULT_SOURCE" $strict_mpi "$out/stdio_first.c"
    refused "$cc c11, declarations first, MPI" "D_DEFAULT_SOURCE" $strict_mpi "$out/twice.c"
    refused "$cc c11, POSIX asked for, stdio.h first, MPI" "D_DEFAULT_SOURCE" $strict_mpi -D_POSIX_C_SOURCE=200809L "$out/stdio_first.c"
    ok "$cc declarations alone" $cc -std=c11 $strict -fsyntax-only $all -x c dtrain.h
    ok "$cc declarations, MPI without mpi.h" $cc -std=c11 $strict -fsyntax-only -DDTRAIN_WITH_MPI -x c dtrain.h
    ok "$cc DT_API" $cc $c11 -fsyntax-only '-DDT_API=extern __attribute__((visibility("default")))' "$out/whole.c"
    ok "$cc DT_STATIC, all" $cc $c11 -fsyntax-only -DDT_STATIC $all "$out/whole.c"
    ok "$cc both memory hooks" $cc $c11 -fsyntax-only '-DDT_MALLOC(n)=malloc(n)' '-DDT_FREE(p)=free(p)' "$out/whole.c"
    refused "$cc DT_MALLOC alone" "DT_MALLOC" $cc $c11 -fsyntax-only '-DDT_MALLOC(n)=malloc(n)' "$out/whole.c"
    refused "$cc DT_FREE alone" "DT_MALLOC" $cc $c11 -fsyntax-only '-DDT_FREE(p)=free(p)' "$out/whole.c"
    for march in x86-64 x86-64-v3 x86-64-v4; do
        [ "$(uname -m)" != x86_64 ] || ok "$cc -march=$march" $cc $c11 -fsyntax-only -march=$march $all "$out/whole.c"
    done
    arithmetic $cc
}

whole() {
    for cxx in g++ clang++; do
        command -v $cxx >/dev/null 2>&1 || { echo "skipped: no $cxx"; continue; }
        ok "$cxx 11" $cxx -std=c++11 $strict -fsyntax-only $all "$here/plus.cc"
        ok "$cxx 20" $cxx -std=c++20 $strict -fsyntax-only $all "$here/plus.cc"
        ok "$cxx 17, MPI" $cxx -std=c++17 $strict -fsyntax-only -DDTRAIN_WITH_MPI "$here/plus.cc"
        refused "$cxx implementation" "compile the implementation as C" $cxx -std=c++17 -I. -fsyntax-only -DDTRAIN_IMPLEMENTATION "$here/plus.cc"
    done

    # two C files, linked and run: gcc -O0 with everything, clang -O2; C++ on both
    ok "gcc implementation" gcc $c11 -O0 $all -c -o "$out/implementation.o" "$here/implementation.c"
    ok "gcc users" gcc $c11 -O2 -o "$out/two" "$here/main.c" "$here/uses.c" "$out/implementation.o" -lm -pthread
    ok "gcc two files" "$out/two"
    ok "clang implementation" clang $c11 -O3 -c -o "$out/implementation_clang.o" "$here/implementation.c"
    ok "clang users" clang $c11 -O0 -o "$out/two_clang" "$here/main.c" "$here/uses.c" "$out/implementation_clang.o" -lm
    ok "clang two files" "$out/two_clang"
    # sanitizers with a fuzzer's counters, which took a quarter of an hour where every tile was unrolled; and a run under them
    sanitize="-g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined"
    ok "clang sanitizers" timeout 120 clang $c11 $sanitize -c -o "$out/implementation_sanitized.o" "$here/implementation.c"
    ok "clang sanitizers, link" clang $c11 $sanitize -o "$out/two_sanitized" "$here/main.c" "$here/uses.c" "$out/implementation_sanitized.o" -lm
    ok "clang sanitizers, run" "$out/two_sanitized"
    for cxx in g++ clang++; do
        command -v $cxx >/dev/null 2>&1 || continue
        ok "$cxx link" $cxx -std=c++17 $strict -o "$out/plus" "$here/plus.cc" "$out/implementation.o" -lm -pthread
        ok "$cxx run" "$out/plus"
    done
    ok "DT_STATIC twice" gcc $c11 -O0 -o "$out/static" "$here/static_one.c" "$here/static_two.c" -lm
    ok "DT_STATIC run" "$out/static"

    # for one rank alone: no header of processes, signals, sockets and threads; and so it builds where there are none
    asked_for() { # configuration: what dtrain.h itself includes
        gcc -E -dI $c11 $1 "$out/whole.c" | awk '/^# [0-9]+ "/ { inside = $3 ~ /dtrain\.h"$/ } inside && /^#include/ { print $2 }'
    }
    ranks='<(signal|sched|pthread|poll|mpi|sys/(wait|socket|un|select|utsname|syscall|mman|prctl|resource|statvfs))\.h>'
    ok "alone: no headers for ranks" sh -c "! echo '$(asked_for -DDTRAIN_WITH_CHARTS)' | grep -E '$ranks'"
    ok "threads: headers for ranks" sh -c "echo '$(asked_for -DDTRAIN_WITH_THREADS)' | grep -Eq '$ranks'"
    windows=x86_64-w64-mingw32-gcc
    if command -v $windows >/dev/null 2>&1; then
        #   Windows' own isnan and isfinite have a cast for each type of number, of which one is taken
        ok "Windows" $windows -std=c11 $strict -Wno-float-conversion -fsyntax-only -DDTRAIN_WITH_CHARTS -idirafter /usr/include "$out/whole.c"
        ok "Windows, dropin" $windows -std=c11 $strict -O1 -o "$out/dropin.exe" examples/dropin.c -lm
    else
        echo "skipped: no $windows"
    fi
    wasm="clang --target=wasm32-wasi --sysroot=/usr"
    if printf '#include <stdio.h>\n' | $wasm -fsyntax-only -x c - 2>/dev/null; then
        ok "WebAssembly" $wasm $c11 -msimd128 -fsyntax-only -DDTRAIN_WITH_CHARTS "$out/whole.c"
        ok "WebAssembly, c11, one lane" $wasm -std=c11 $strict -fsyntax-only "$out/whole.c"
    else
        echo "skipped: no headers for WebAssembly"
    fi

    # names: everything that is visible begins with dt_ (stb_image_write is static or its own); nothing prints, exits or aborts
    ok "exported names" sh -c "! nm -g --defined-only $out/implementation.o | awk '{ print \$3 }' | grep -v '^dt_\|^dtrain_h_\|^stbi'"
    ok "nothing prints or exits" sh -c "! nm -u $out/implementation_clang.o | grep -wE 'exit|_exit|abort|printf|puts|putchar|stdout|stderr|perror|__assert_fail'"
    ok "nothing prints or exits, all" sh -c "! nm -u $out/implementation.o | grep -wE 'exit|_exit|abort|printf|puts|putchar|stdout|stderr|perror'"
}

for part; do
    case $part in gcc | clang) configurations $part ;; *) whole ;; esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
