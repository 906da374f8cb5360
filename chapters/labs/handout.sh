#!/bin/sh
# Makes handouts: a lab's solved file without its solutions (handout.awk).
#
#   sh chapters/labs/handout.sh 04 labs       labs/lab04.c, if it is not there yet
#   sh chapters/labs/handout.sh all DIR       a folder for students, whole: all labs, their graders,
#                                             dtrain.h and a Makefile; solutions are not in it
here=$(dirname "$0")
to=${2:-labs}

one() { # lab
    if [ -e "$to/lab$1.c" ]; then
        echo "$to/lab$1.c is there already, and stays as it is"
        return
    fi
    awk -f "$here/handout.awk" "$here/lab$1.c" >"$to/lab$1.c" || return
    [ "$1" != 12 ] || [ -e "$to/lab12_report.md" ] || cp "$here/lab12_report.md" "$to/" || return
    echo "$to/lab$1.c: read it, fill it in, then make grade-lab$1"
}

mkdir -p "$to" || exit 1
if [ "$1" != all ]; then
    if [ ! -f "$here/lab$1.c" ]; then echo "there is no lab $1" >&2; exit 1; fi
    one "$1"
    exit
fi
for lab in "$here"/lab[0-9][0-9].c; do
    lab=${lab##*/lab}
    one "${lab%.c}" || exit 1
done
mkdir -p "$to/grader" || exit 1
for file in "$here"/*.h "$here"/grade[0-9][0-9].c "$here"/run12.c "$here"/grade.sh; do
    cp "$file" "$to/grader/" || exit 1
done
cp "$here/../../dtrain.h" "$to/dtrain.h" && cp "$here/handout.mk" "$to/Makefile" || exit 1
echo "$to: the handout; in it, make grade-lab04 and so on"
