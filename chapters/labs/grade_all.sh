#!/bin/sh
# A folder of submissions into one table: DIR/NAME/lab04.c of every student, one line a student, one
# column a lab, points of 100.
#
#   sh grade_all.sh DIR GRADERS [SEED [grader's options, such as --no-timing]] >grades.csv
#
# Everybody's inputs are drawn from NAME and SEED (grade.sh ... --student NAME --seed SEED). One
# submission at a time: speed is measured. DETAILS=folder keeps what was wanted and got.
dir=$1 graders=$2 seed=${3:-1}
shift 2
[ $# -eq 0 ] || shift
here=$(dirname "$0")
labs=$(ls "$graders"/grade[0-9][0-9] | sed 's/.*grade//')
[ -z "${DETAILS:-}" ] || mkdir -p "$DETAILS" || exit 2
kept=$(mktemp) || exit 2
trap 'rm -f "$kept"' EXIT
printf 'student'
for lab in $labs; do printf ',lab%s' "$lab"; done
printf '\n'
for student in "$dir"/*/; do
    [ -d "$student" ] || continue
    name=${student%/} name=${name##*/}
    quoted=$(printf '%s' "$name" | tr -d '\n' | sed 's/"/""/g')
    printf '"%s"' "$quoted" | sed 's/^"\([^",]*\)"$/\1/' # quotes only where they are needed
    for lab in $labs; do
        printf ','
        [ -e "$student/lab$lab.c" ] || [ -h "$student/lab$lab.c" ] || continue
        sh "$here/grade.sh" "$lab" "$student/lab$lab.c" "$graders" --seed "$seed" \
            --student "$name" "$@" >"$kept" 2>&1 </dev/null
        got=$(tail -n 1 "$kept" | sed -n 's/^\([0-9]*\) of [0-9]* points$/\1/p')
        printf '%s' "${got:-?}"
        [ -z "${DETAILS:-}" ] || cp "$kept" "$DETAILS/$name.lab$lab.txt"
    done
    printf '\n'
done
