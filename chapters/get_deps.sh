#!/bin/sh
# make deps: installs what the Makefile's targets need and this system lacks.
# make deps-elsewhere (get_deps.sh elsewhere): and what `make test-elsewhere` needs beside it, to run the tests as programs for aarch64
# and s390x.
# make deps-book (get_deps.sh book): and what `make book` needs for pages that run, and `make test-pages` to try them.
#
# Debian and its relatives: through apt-get, with sudo where the user is not root.
# Elsewhere: prints the package names for dnf, pacman and brew, and stops.
# Where nothing is missing it does nothing, on any system.
set -u

have() { command -v "$1" >/dev/null 2>&1; }
header() { have gcc && printf '#include <%s>\n' "$1" | gcc -E -x c - >/dev/null 2>&1; }
# cmocka.h wants these three before it
cmocka() {
    have gcc && printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h cmocka.h | gcc -E -x c - >/dev/null 2>&1
}
# Debian installs several MPIs side by side and tells them apart by suffix
mpich_compiler() { have mpicc.mpich || { have mpicc && mpicc -show 2>/dev/null | grep -qi mpich; }; }
mpich_launcher() { have mpiexec.mpich || { have mpiexec && mpiexec --version 2>/dev/null | grep -qi hydra; }; }

missing=
packages=
need() { # test succeeded (0)?  what it is  Debian packages
    [ "$1" -eq 0 ] && return
    missing="$missing${missing:+, }$2"
    packages="$packages $3"
}
have gcc;         need $? "the C compiler gcc" "gcc libc6-dev"
have g++;         need $? "the C++ compiler g++ (tests)" "g++"
have clang;       need $? "the second compiler clang (tests)" "clang"
have make;        need $? "make" "make"
mpich_compiler;   need $? "MPICH's compiler" "libmpich-dev"
mpich_launcher;   need $? "MPICH's mpiexec" "mpich"
header stb/stb_image_write.h; need $? "stb_image_write.h (charts)" "libstb-dev"
cmocka;           need $? "cmocka (tests)" "libcmocka-dev"
have curl;        need $? "curl (data)" "curl ca-certificates"
have gzip;        need $? "gzip (data)" "gzip"
have python3;     need $? "python3 (the book; tests of its prose)" "python3"
have pandoc;      need $? "pandoc (the book)" "pandoc"

# cmocka for another processor, by its name and Debian's name for it: its packages, unpacked under build/aarch64, say, and this system's
# own list of packages left alone
cmocka_for() (
    [ -f "build/$1/lib/libcmocka.so" ] && return
    here=$PWD/build/$1
    rm -rf "$here" && mkdir -p "$here/lists/partial" "$here/cache/archives/partial" && cd "$here" && : >status || return 1
    debian=$2
    apt_get() {
        apt-get -qq -o APT::Architecture="$debian" -o APT::Architectures::="$debian" -o Dir::State::lists="$here/lists" \
            -o Dir::Cache="$here/cache" -o Dir::State::status="$here/status" -o APT::Sandbox::User="$(id -un)" "$@"
    }
    apt_get update && apt_get download libcmocka0 libcmocka-dev || return 1
    for package in ./*.deb; do dpkg -x "$package" unpacked || return 1; done
    cp -R unpacked/usr/include . && cp -R unpacked/usr/lib/"$1"-linux-gnu lib && rm -rf lists cache status unpacked ./*.deb
)

if [ "${1:-}" = elsewhere ] && [ "$(uname -m)" != aarch64 ]; then
    have aarch64-linux-gnu-gcc; need $? "the compiler for aarch64" "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    have s390x-linux-gnu-gcc;   need $? "the compiler for s390x" "gcc-s390x-linux-gnu libc6-dev-s390x-cross"
    have qemu-aarch64;          need $? "qemu-aarch64, which runs its programs" "qemu-user"
fi

if [ "${1:-}" = book ]; then
    have wasm-ld;  need $? "the linker for WebAssembly" "lld"
    [ -f /usr/include/wasm32-wasi/stdio.h ]; need $? "the C library for WebAssembly" "wasi-libc"
    clang --target=wasm32-wasi -print-libgcc-file-name 2>/dev/null | xargs -r test -f; need $? "clang's runtime for WebAssembly" "libclang-rt-14-dev-wasm32"
    have node;     need $? "Node.js" "nodejs"
    have npm;      need $? "npm" "npm"
    have chromium; need $? "Chromium (test-pages)" "chromium"
fi

finish() {
    if [ "${1:-}" = elsewhere ] && [ "$(uname -m)" != aarch64 ] && ! { have apt-get && cmocka_for aarch64 arm64 && cmocka_for s390x s390x; }; then
        echo "make deps: could not get cmocka for aarch64 and s390x; put its headers into build/aarch64/include, its library into build/aarch64/lib, and so on" >&2
        exit 1
    fi
    echo "make deps: $2"
    exit 0
}

[ -n "$missing" ] || finish "${1:-}" "everything is installed already"
echo "make deps: missing: $missing"

if ! have apt-get; then
    cat <<'TEXT'
make deps: this system has no apt-get. Install the same things by hand:
  dnf     gcc gcc-c++ clang make mpich mpich-devel stb-devel libcmocka-devel curl gzip pandoc python3   (then: module load mpi/mpich-x86_64)
  pacman  gcc clang make mpich stb cmocka curl gzip pandoc-cli python
  brew    gcc llvm make mpich cmocka curl gzip pandoc python   (and stb_image_write.h from github.com/nothings/stb, as stb/stb_image_write.h)
TEXT
    exit 1
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! have sudo; then
        echo "make deps: you are not root and there is no sudo; as root, run: apt-get install$packages" >&2
        exit 1
    fi
    as_root="sudo"
fi

# --no-install-recommends keeps a small machine small; env because sudo clears the environment.
# shellcheck disable=SC2086  # both lists are meant to be split
install_all() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages; }

# A package list that is out of date, or not there yet as in a new container, is the usual reason to fail.
if ! install_all; then
    echo "make deps: trying again with fresh package lists"
    # shellcheck disable=SC2086
    if ! $as_root apt-get update || ! install_all; then
        echo "make deps: apt-get could not install:$packages" >&2
        exit 1
    fi
fi
finish "${1:-}" "done"
