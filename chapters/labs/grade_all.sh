#!/bin/sh
# A folder of submissions into one table: DIR/NAME/lab04.c of every student, one line a student, one
# column a lab, points of 100. The same seed for all: sh grade_all.sh DIR [SEED] >grades.csv
dir=$1 seed=${2:-1}
here=$(dirname "$0")
top=$here/../..
labs=$(cd "$here" && ls lab[0-9][0-9].c | sed 's/lab\(..\).c/\1/')
printf 'student'
for lab in $labs; do printf ',lab%s' "$lab"; done
printf '\n'
for student in "$dir"/*/; do
    name=${student%/}
    printf '%s' "${name##*/}"
    for lab in $labs; do
        if [ -f "$student/lab$lab.c" ]; then
            got=$(sh "$here/grade.sh" "$lab" "$student/lab$lab.c" "$top/build/labs/grade$lab" --seed "$seed" 2>/dev/null |
                sed -n 's/^ *\([0-9]*\) of \([0-9]*\) points.*/\1/p' | tail -n 1)
            printf ',%s' "${got:-0}"
        else printf ','; fi
    done
    printf '\n'
done
