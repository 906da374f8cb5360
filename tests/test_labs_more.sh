#!/bin/sh
# What takes minutes: make test-labs-more. The solved files on 20 seeds; a class of 40 whose
# submissions are right, wrong and hostile (tests/lab_hostile.c) into the right table, in less than
# four minutes, with nothing left behind; the handout in an empty folder, where what students do
# works.
set -u
cd "$(dirname "$0")/.." || exit 1
unset MAKEFLAGS # make -j2's jobs are not for the handout's make, which would warn
dir=$(mktemp -d) || exit 1
chmod 755 "$dir"
trap 'rm -rf "$dir"' EXIT
CC=${CC:-gcc} LABFLAGS="-std=c11 -O1 -march=native"
export CC LABFLAGS
passed=0 failed=0

check() { # WHAT, then a command
    what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED  $what"; fi
}

# ---- twenty seeds
twenty() {
    lab=$1 bad=0
    mkdir "$dir/$lab" && $CC $LABFLAGS -shared -fPIC -o "$dir/$lab/lab.so" \
        "chapters/labs/lab$lab.c" -lm -pthread || return 1
    chmod 755 "$dir/$lab"
    for seed in 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
        "build/labs/grade$lab" "lab$lab.c" "$dir/$lab" "build/labs/run$lab" --seed $seed \
            --no-timing >"$dir/out" 2>&1 && continue
        cat "$dir/out"
        bad=$((bad + 1))
    done
    [ $bad -eq 0 ]
}

for lab in 01 02 03 04 05 06 07 08 09 10 11 12; do check "lab $lab, 20 seeds" twenty $lab; done

# ---- the class: solved and handed-out files, mistakes with the points that they keep, all hostile
# ---- ones. Labs 2, 5 and 6.
class=$dir/class
mkdir -p "$class" "$dir/graders"
for lab in 02 05 06; do cp "build/labs/grade$lab" "build/labs/run$lab" "$dir/graders/"; done
echo keep >"$dir/victim"
chmod 666 "$dir/victim" # for anybody, so that only the sandbox is in the way
$CC $LABFLAGS -shared -fPIC -o "$dir/solved.so" chapters/labs/lab05.c -lm || exit 1
chmod 755 "$dir/solved.so"
echo 'student,lab02,lab05,lab06' >"$dir/wanted"

student() { # NAME WANTED: the line of the table
    mkdir -p "$class/$1" && echo "$1,$2" >>"$dir/wanted"
}

i=0
while IFS='|' read -r lab points what mistake; do
    case $lab in 02 | 05 | 06) ;; *) continue ;; esac
    case $what in *loop* | *compile*) continue ;; esac
    i=$((i + 1)) name=$(printf 'a%02d' $i)
    [ $i -le 16 ] || break
    case $lab in # right in one lab, wrong in another; lab 2's points depend on the seed
        02) student "$name" "?,100," && cp chapters/labs/lab05.c "$class/$name/" ;;
        05) student "$name" "100,$points," && cp chapters/labs/lab02.c "$class/$name/" ;;
        06) student "$name" "100,,$points" && cp chapters/labs/lab02.c "$class/$name/" ;;
    esac
    sed "$mistake" "chapters/labs/lab$lab.c" >"$class/$name/lab$lab.c"
done <tests/lab_mistakes.txt
for name in b1 b2; do
    student $name '100,100,100'
    cp chapters/labs/lab02.c chapters/labs/lab05.c chapters/labs/lab06.c "$class/$name/"
done
student c1 '0,0,0'
for lab in 02 05 06; do
    awk -f chapters/labs/handout.awk chapters/labs/lab$lab.c >"$class/c1/lab$lab.c"
done
student c2 ',0,' && ln -s "$PWD/chapters/labs/lab05.c" "$class/c2/lab05.c"
attack=0
while [ $attack -lt 20 ]; do
    attack=$((attack + 1)) name=$(printf 'h%02d' $attack)
    student "$name" ',0,'
    {
        printf '#define %s\n' "ATTACK $attack" "SOLVED \"$dir/solved.so\"" \
            "SOURCE \"$PWD/chapters/labs/lab05.c\"" "VICTIM \"$dir/victim\""
        cat tests/lab_hostile.c
    } >"$class/$name/lab05.c"
done
before=$(ps -e | wc -l) start=$(date +%s)
DETAILS=$dir/details sh chapters/labs/grade_all.sh "$class" "$dir/graders" 7 >"$dir/grades.csv"
took=$(($(date +%s) - start))
# "?" in the table that is wanted: some points, but not all
table() {
    awk -F, 'NR == FNR { want[NR] = $0; next }
        { n = split(want[FNR], w, ","); if (n != NF) bad = 1
          for (k = 1; k <= n; ++k)
              if (w[k] == "?" ? $k == "" || $k == 100 : w[k] != $k) {
                  print "wanted " want[FNR] ", got " $0
                  bad = 1
                  break
              }
        }
        END { exit bad || FNR != NR - FNR }' "$dir/wanted" "$dir/grades.csv"
}
lines=$(wc -l <"$dir/wanted")
check "the table of $((lines - 1)) submissions" table
check "graded in $took s, wanted less than 240" [ $took -lt 240 ]
check "a file of the grader's" [ "$(cat "$dir/victim")" = keep ]
check "no new file" [ ! -e "$dir/victim.new" ]
check "no file renamed" [ ! -e "$dir/victim.gone" ]
sleep 1
left() { [ "$(ps -e -o args= | grep -c "^build/labs/run\|$dir/graders/run")" -le 1 ]; }
check "processes left behind: $before before, $(ps -e | wc -l) after" left
found() { ! grep -l 'signal 10' "$dir/details"/h*.txt; }
check "what could be read, or opened" found

# ---- the handout in an empty folder
handout() {
    make -s labs DIR="$dir/handout" >/dev/null &&
        ! grep -lE 'BEGIN SOLUTION|//- ' "$dir/handout"/*.c && cd "$dir/handout" &&
        make -s grade-lab06 ARGS="--seed 3" 2>/dev/null | tail -n 1 | grep -q '^0 of 100 points$'
}
filled_in() {
    for lab in 01 02 03 05 06 07 08 09 10 11 12; do
        cp chapters/labs/lab$lab.c "$dir/handout/"
        (cd "$dir/handout" && make -s grade-lab$lab >"$dir/out" 2>&1) && continue
        cat "$dir/out"
        return 1
    done
    ! grep -i warning "$dir/out"
}
check "the handout in an empty folder" eval '(handout)'
check "its labs, filled in" filled_in
echo "graded $((lines - 1)) submissions in $took s"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
