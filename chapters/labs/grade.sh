#!/bin/sh
# Compiles a submission and grades it: sh grade.sh 04 FILE GRADER [grader's arguments]
# Warnings are shown and cost nothing; what does not compile has no points.
lab=$1 file=$2 grader=$3
shift 3
if [ ! -f "$file" ]; then echo "$file: not there; make lab$lab writes it"; exit 1; fi
object=$(mktemp "${TMPDIR:-/tmp}/lab$lab.XXXXXX") || exit 2
trap 'rm -f "$object"' EXIT
# shellcheck disable=SC2086  # flags are several words
if ! ${CC:-gcc} ${LABFLAGS:--std=c11 -O3 -march=native} -Wall -Wextra -Wno-unused-parameter -shared -fPIC -o "$object" "$file" -lm; then
    echo "0 of 100 points: $file does not compile"
    exit 1
fi
"$grader" "$file" "$object" "$@"
