#!/bin/sh
# The book: it is woven without a complaint, and a citation, region, figure or link that leads nowhere is one.
set -u
cd "$(dirname "$0")/.." || exit 1
command -v python3 >/dev/null 2>&1 && command -v pandoc >/dev/null 2>&1 || { echo "skipped: the book: no python3 or no pandoc here"; exit 0; }
passed=0
failed=0
ok() { if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED  $2"; fi; }

mkdir -p build/tests
python3 chapters/book/weave.py build/tests/book >build/tests/book.txt 2>&1
ok $? "the book is woven: $(cat build/tests/book.txt)"

copy=build/tests/book-copy
# spoil FILE SED-COMMAND WHAT-IT-MUST-SAY
spoil() {
    rm -rf "$copy" && mkdir -p "$copy/chapters" && cp dtrain.h "$copy" && cp -R figures "$copy" && cp chapters/*.c chapters/*.h "$copy/chapters" &&
        cp -R chapters/book "$copy/chapters" || exit 1
    sed -i.before "$2" "$copy/$1" && ! cmp -s "$copy/$1" "$copy/$1.before"
    ok $? "$2 changes $1"
    said=$(python3 "$copy/chapters/book/weave.py" --check 2>&1)
    code=$?
    case $code:$said in 1:*"$3"*) ok 0 ;; *) ok 1 "$1 spoilt by $2: ended with $code and said: $said" ;; esac
}
nowhere=S7.99
spoil chapters/ch05_layers.c "s/\\[S7.1\\]/[$nowhere]/" "cites [$nowhere]"
spoil chapters/ch05_layers.c 's|^// \[end\]||' 'has no [end]'
spoil chapters/ch05_layers.c 's|^// ## 5.2 .*|&\n//\n// Picture: ch05_nowhere|' 'shows figures/ch05_nowhere.png'
spoil dtrain.h "s/==== \\[S7.1\\]/==== [$nowhere]/" "cites [S7.1]"

# the prose's own check: a word before its section, a line over 100 columns, a section that is not there
prose() {
    rm -rf "$copy" && mkdir -p "$copy/chapters" && cp chapters/*.c chapters/*.h chapters/*.md "$copy/chapters" || exit 1
    sed -i "$2" "$copy/$1"
    said=$(cd "$copy" && python3 ../../../tests/check_prose.py)
    code=$?
    case $code:$said in 1:*"$3"*) ok 0 ;; *) ok 1 "$1 spoilt by $2: ended with $code and said: $said" ;; esac
}
prose chapters/ch01_tensors.c 's|^// ## 1.2 .*|&\n//\n// Its momentum is large.|' '"momentum" in 1.2, and explained in 6.1'
prose chapters/ch00_learning.c 's|^// - \*\*seed\*\*: .*|// - **seed**: a number|' 'does not say where "seed" is explained'
prose chapters/ch00_learning.c 's|^\(// - \*\*epoch\*\*.*\)(0.6)|\1(0.66)|' 'there is no 0.66'
prose chapters/answers.md 's|^\*\*9.6.1\*\*|**9.6.8**|' 'there is no 9.6.8'
prose chapters/ch03_convolution.c "s|^// ## 3.1 .*|&\n// $(printf '%0100d' 0)|" 'over 100 columns'
# what make check compares: each promised line of a chapter, made another one, is missed
lines() { sed -n 's/<num>/7/g; s/[.][.][.]$/and more/; s/^\/\/[|~] \{0,1\}//p' "$1"; }
for source in chapters/ch[0-9][0-9]_*.c; do
    lines "$source" >build/tests/promised.txt
    missing=$(sh chapters/check.sh --missing "$source" build/tests/promised.txt)
    [ -z "$missing" ]; ok $? "$source: its own lines are missed: $missing"
    n=$(($(wc -l <build/tests/promised.txt) / 2 + 1))
    sed "${n}s/[a-z]\{3\}/other/" build/tests/promised.txt >build/tests/spoilt.txt
    missing=$(sh chapters/check.sh --missing "$source" build/tests/spoilt.txt)
    [ -n "$missing" ]; ok $? "$source: line $n is another one, and not missed"
done

# a number in prose that its CSV does not have, a sentence that the check no longer finds
numbers() {
    rm -rf "$copy" && mkdir -p "$copy/chapters" "$copy/tests" && cp chapters/*.c chapters/*.h chapters/*.md "$copy/chapters" &&
        cp README.md "$copy" && cp -R figures "$copy" && cp tests/check_numbers.py "$copy/tests" || exit 1
    sed -i "$2" "$copy/$1"
    said=$(python3 "$copy/tests/check_numbers.py")
    code=$?
    case $code:$said in 1:*"$3"*) ok 0 ;; *) ok 1 "$1 spoilt by $2: ended with $code and said: $said" ;; esac
}
numbers README.md '0,/^| speedup, median epoch | 1.00/s//| speedup, median epoch | 1.03/' 'says 1.03, measured: 1'
numbers README.md 's/^| speedup, median epoch/| speedup, mean epoch/' 'no longer says "| speedup, median epoch'
rm -rf "$copy"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
