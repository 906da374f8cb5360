#!/bin/sh
# The header in other people's builds: README's lines for CMake and Meson, as they stand there, and make install.
set -u
cd "$(dirname "$0")/.." || exit 1
top=build/tests/embed
rm -rf $top && mkdir -p $top/cmake $top/meson || exit 1
passed=0
failed=0
ok() { # NAME COMMAND ...
    name=$1
    shift
    if "$@" >$top/said.txt 2>&1; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED  $name: $*"; tail -n 12 $top/said.txt; fi
}
snippet() { awk -v want='```'"$1" '$0 == want { on = 1; next } /^```/ { on = 0 } on' README.md; }
# the drop-in example as somebody's main.c
main() { sed 's|"../dtrain.h"|"dtrain.h"|' examples/dropin.c >"$1"; }

make --no-print-directory install PREFIX=/dtrain DESTDIR="$PWD/$top/staged" >$top/said.txt 2>&1
ok "make install" cmp dtrain.h $top/staged/dtrain/include/dtrain.h
main $top/main.c
if command -v pkg-config >/dev/null 2>&1; then
    export PKG_CONFIG_PATH="$PWD/$top/staged/dtrain/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$PWD/$top/staged"
    # shellcheck disable=SC2046  # words
    ok "pkg-config" gcc -std=c11 -O0 -o $top/mine $top/main.c $(pkg-config --cflags --libs dtrain)
    ok "its version" sh -c "grep -q \"define DTRAIN_VERSION \\\"\$(pkg-config --modversion dtrain)\\\"\" dtrain.h"
    if command -v meson >/dev/null 2>&1; then
        main $top/meson/main.c
        snippet meson >$top/meson/meson.build
        ok "meson setup" meson setup $top/meson/out $top/meson
        ok "meson compile" ninja -C $top/meson/out
        ok "meson's program" test -x $top/meson/out/mine
    else echo "skipped: no meson here"; fi
else echo "skipped: no pkg-config here"; fi
if command -v cmake >/dev/null 2>&1; then
    main $top/cmake/main.c
    cp dtrain.h $top/cmake
    snippet cmake >$top/cmake/CMakeLists.txt
    ok "cmake" cmake -S $top/cmake -B $top/cmake/out
    ok "cmake --build" cmake --build $top/cmake/out
    ok "cmake's program" test -x $top/cmake/out/mine
else echo "skipped: no cmake here"; fi
ok "CITATION.cff names this version" grep -q "^version: $(sed -n 's/^#define DTRAIN_VERSION "\(.*\)"/\1/p' dtrain.h)$" CITATION.cff
rm -rf $top
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
