#!/bin/sh
# Labs grade what they should: a solved file has full marks, the handout as given has none, and each
# mistake of tests/lab_mistakes.txt keeps exactly the points beside it. LAB=05 looks at one lab
# alone, SEEDS="1 2 3" says with what the solved files are graded. Two labs at a time. make
# test-labs-more does more.
set -u
cd "$(dirname "$0")/.." || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
CC=${CC:-gcc} LABFLAGS="-std=c11 -O1 -march=native"
export CC LABFLAGS

pass() { echo pass; }

fail() { # what, and what was printed
    echo "FAILED  $1"
    head -n 30 "$2"
}

# wants WHAT POINTS CODE, of what was printed to $out: 60-70 is a range
wants() {
    got=$(tail -n 1 "$out" | sed -n 's/^\([0-9]*\) of [0-9]* points$/\1/p')
    if [ "${got:--1}" -ge "${2%-*}" ] && [ "${got:--1}" -le "${2#*-}" ] && [ "$code" -eq "$3" ]
    then pass
    else fail "$1: wanted $2 points and exit code $3, got ${got:-none} and $code" "$out"; fi
}

graded() { # FILE LAB SEED
    sh chapters/labs/grade.sh "$2" "$1" build/labs --seed "$3" --no-timing >"$out" 2>&1 </dev/null
    code=$?
}

# compiled once, graded with several seeds
solved() {
    full=100
    [ "$1" != 04 ] || full=60 # without those for speed
    mkdir "$dir/$1" &&
        $CC $LABFLAGS -shared -fPIC -o "$dir/$1/lab.so" "chapters/labs/lab$1.c" -lm -pthread ||
        return
    chmod 755 "$dir" "$dir/$1"
    for seed in ${SEEDS:-1 2 3}; do
        "build/labs/grade$1" "lab$1.c" "$dir/$1" "build/labs/run$1" --seed "$seed" --no-timing \
            >"$out" 2>&1
        code=$?
        wants "lab$1.c, seed $seed" $full 0
    done
}

handed_out() {
    sh chapters/labs/handout.sh "$1" "$dir" >/dev/null
    if grep -q -e SOLUTION -e '//-' "$dir/lab$1.c"; then
        fail "the handout of lab $1 has a solution" "$dir/lab$1.c"
    fi
    graded "$dir/lab$1.c" "$1" 1
    wants "lab $1 as handed out" 0 1
}

mistakes() {
    while IFS='|' read -r lab points what mistake; do
        [ "$lab" = "$1" ] || continue
        sed "$mistake" "chapters/labs/lab$lab.c" >"$dir/wrong$lab.c"
        graded "$dir/wrong$lab.c" "$lab" 7
        if cmp -s "chapters/labs/lab$lab.c" "$dir/wrong$lab.c"; then
            fail "lab $lab, $what: its sed changes nothing" "$out"
        fi
        wants "lab $lab, $what" "$points" 1
    done <tests/lab_mistakes.txt
}

some_labs() {
    for lab in "$@"; do
        out=$dir/out$lab
        [ "${LAB:-$lab}" = "$lab" ] || continue
        solved "$lab"
        handed_out "$lab"
        mistakes "$lab"
    done
}

# a class of three into one table, one name being awkward
class() {
    out=$dir/grades.csv
    mkdir -p "$dir/class/ada" "$dir/class/bob, the second" "$dir/class/eve" "$dir/few"
    cp build/labs/grade02 build/labs/run02 build/labs/grade06 build/labs/run06 "$dir/few/"
    cp chapters/labs/lab02.c "$dir/class/ada/"
    ln -s "$PWD/chapters/labs/lab02.c" "$dir/class/eve/lab02.c"
    awk -f chapters/labs/handout.awk chapters/labs/lab06.c >"$dir/class/bob, the second/lab06.c"
    sh chapters/labs/grade_all.sh "$dir/class" "$dir/few" 2026 --no-timing >"$out"
    if [ "$(cat "$out")" = 'student,lab02,lab06
ada,100,
"bob, the second",,0
eve,0,' ]; then pass; else fail "grade_all" "$out"; fi
}

# what a student's id draws is always the same, and nobody else's; results.json is for Gradescope
options() {
    out=$dir/options
    for student in ada ada bob; do
        sh chapters/labs/grade.sh 06 chapters/labs/lab06.c build/labs --student $student \
            --results "$dir/results.json" >"$out" 2>&1
        sed -n 's/^answers //p' "$out"
    done >"$dir/hashes"
    if awk '{ hash[NR] = $1 } END { exit !(NR == 3 && hash[1] == hash[2] && hash[1] != hash[3]) }' \
        "$dir/hashes"; then pass; else fail "answers of students" "$dir/hashes"; fi
    if grep -q '"score": 100,' "$dir/results.json" &&
        [ "$(grep -c '"max_score": [0-9]*, "status": "passed"' "$dir/results.json")" = 7 ]
    then pass
    else fail "results.json" "$dir/results.json"; fi
    # no field that Gradescope does not document, and each of the kind that it asks for
    if ! command -v python3 >/dev/null 2>&1 || python3 - "$dir/results.json" >"$out" 2>&1 <<'END'
import json, sys
number, text, items = (int, float), str, list
whole = {'score': number, 'execution_time': number, 'output': text, 'output_format': text, 'test_output_format': text,
         'test_name_format': text, 'visibility': text, 'stdout_visibility': text, 'extra_data': dict, 'tests': items,
         'leaderboard': items}
task = {'score': number, 'max_score': number, 'status': text, 'name': text, 'name_format': text, 'number': text,
        'output': text, 'output_format': text, 'tags': items, 'visibility': text, 'extra_data': dict}
results = json.load(open(sys.argv[1]))
for fields, found in [(whole, results)] + [(task, t) for t in results['tests']]:
    for name, value in found.items():
        assert name in fields and isinstance(value, fields[name]), (name, value)
    assert found.get('status', 'passed') in ('passed', 'failed'), found
assert sum(t['score'] for t in results['tests']) == results['score'], 'sum'
END
    then pass
    else fail "results.json for Gradescope" "$out"; fi
}

some_labs 01 03 05 07 09 11 >"$dir/odd" &
{ some_labs 02 04 06 08 10 12; [ -n "${LAB:-}" ] || { class; options; }; } >"$dir/even"
wait
cat "$dir/odd" "$dir/even" | grep -v '^pass$'
passed=$(cat "$dir/odd" "$dir/even" | grep -c '^pass$')
failed=$(cat "$dir/odd" "$dir/even" | grep -c '^FAILED')
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
