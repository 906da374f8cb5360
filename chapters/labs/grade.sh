#!/bin/sh
# Compiles a submission and grades it: sh grade.sh 04 FILE GRADERS [grader's arguments]
# GRADERS is the folder of grade04 and run04. Warnings are shown and cost nothing; what does not
# compile has no points, nor what includes a file that is not the system's.
lab=$1 file=$2 graders=$3
shift 3
if [ ! -e "$file" ] && [ ! -h "$file" ]; then
    echo "$file: not there; make lab$lab writes it"
    exit 1
fi
folder=$(mktemp -d "${TMPDIR:-/tmp}/lab$lab.XXXXXX") || exit 2
trap 'rm -rf "$folder"' EXIT
trap 'exit 2' INT TERM HUP
mkdir "$folder/jail" && chmod 755 "$folder" "$folder/jail"

# It is compiled alone, in a folder of its own. A compiler, too, can be kept busy: by what is
# included, by an array of gigabytes.
compile() (
    cd "$folder" || exit 1
    ulimit -t 20 -f 65536 2>/dev/null
    case $(uname) in Linux) ulimit -v 4194304 2>/dev/null ;; esac
    # shellcheck disable=SC2086  # flags are several words
    exec ${CC:-gcc} ${LABFLAGS:--std=c11 -O3 -march=native} -Wall -Wextra -Wno-unused-parameter \
        -shared -fPIC -MD -MF needs -o jail/lab.so "lab$lab.c" -lm -pthread </dev/null
)

# The first file that it includes and that is not the system's or the compiler's.
borrowed() {
    if grep '^[[:space:]]*#' "$folder/lab$lab.c" | grep -q 'dtrain\.h'; then
        echo dtrain.h
        return
    fi
    [ -f "$folder/needs" ] || return
    tr ' \\' '\n\n' <"$folder/needs" |
        grep -v -e ':$' -e '^$' -e "^lab$lab\.c\$" |
        grep -v -E '^/(usr|opt|nix|Library|Applications|System)/.*/[^/]*$' | head -n 1
    tr ' \\' '\n\n' <"$folder/needs" | grep '/dtrain\.h$' | head -n 1
}

zero=
if [ -h "$file" ] || [ ! -f "$file" ]; then zero="it is not a file of its own"
elif [ "$(wc -c <"$file")" -gt 1000000 ]; then zero="it is longer than a million characters"
else
    cp "$file" "$folder/lab$lab.c" || exit 2
    if ! compile; then zero="it does not compile"; fi
    needs=$(borrowed | head -n 1)
    if [ -n "$needs" ]; then zero="it includes $needs: the answers are to be your own"
    elif nm "$folder/jail/lab.so" 2>/dev/null | grep -q ' dti*_'; then
        zero="it has functions of dtrain.h: the answers are to be your own"
    fi
fi
chmod 644 "$folder/jail/lab.so" 2>/dev/null
if [ -n "$zero" ]; then set -- "$@" --zero "$zero"; fi
"$graders/grade$lab" "$file" "$folder/jail" "$graders/run$lab" "$@"
