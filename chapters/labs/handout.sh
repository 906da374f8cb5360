#!/bin/sh
# Makes handouts: a lab's solved file without what stands between BEGIN SOLUTION and END SOLUTION.
#
#   sh chapters/labs/handout.sh 04 labs       labs/lab04.c, if it is not there yet
#   sh chapters/labs/handout.sh all DIR       a folder for students, whole: all labs, their graders,
#                                             dtrain.h and a Makefile; solutions are not in it
here=$(dirname "$0")
to=${2:-labs}

cut_solution() {
    awk '/BEGIN SOLUTION/ { inside = 1; print "    // your code"; next }
         /END SOLUTION/ { inside = 0; next }
         !inside' "$1"
}

one() { # lab
    if [ -e "$to/lab$1.c" ]; then echo "$to/lab$1.c is there already, and stays as it is"; return; fi
    cut_solution "$here/lab$1.c" >"$to/lab$1.c" && echo "$to/lab$1.c: read it, fill it in, then make grade-lab$1"
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
mkdir -p "$to/grader" && cp "$here"/grade.h "$here"/grade[0-9][0-9].c "$here"/grade.sh "$to/grader/" &&
    cp "$here/../../dtrain.h" "$to/dtrain.h" && cp "$here/handout.mk" "$to/Makefile" || exit 1
echo "$to: the handout; in it, make grade-lab04 and so on"
