#!/bin/sh
# Runs every chapter on small settings and compares what it prints with what its head comment promises.
#
#   sh chapters/check.sh               all chapters
#   sh chapters/check.sh ch03 ch07     these
#
# In a chapter's source:
#   // Check   ./ch03 --quick          the command to run; without such a line, the program of the Run line
#   //| text                           a line of output, exactly
#   //~ text <num>                     a line in which each number may be any number (16 hex digits count as one, and how
#                                      many blanks stand between words does not matter); ... at its end is anything
# The promised lines must come in this order; other lines may stand between them. The program must end with 0.
# MPIEXEC in the environment takes mpiexec's place. RUNNER, where the programs are not this machine's, is what starts them:
# with RUNNER="qemu-aarch64" the command above is qemu-aarch64 ./ch03 --quick. Outputs stay in build/check, or with a RUNNER in
# build/check/elsewhere, so that both may run at once.

cd "$(dirname "$0")/.." || exit 1
: "${RUNNER:=}"
folder=build/check${RUNNER:+/elsewhere}
mkdir -p "$folder" || exit 1
if [ -z "$MPIEXEC" ]; then
    if command -v mpiexec.mpich >/dev/null 2>&1; then MPIEXEC=mpiexec.mpich; else MPIEXEC=mpiexec; fi
fi
limit=
if command -v timeout >/dev/null 2>&1; then limit='timeout 300'; fi

# The command of a chapter: its Check line, else the Run line behind "make chNN && ", without a remark in parentheses.
command_of() {
    line=$(sed -n 's|^// Check  *||p' "$1" | head -n 1)
    [ -n "$line" ] || line=$(sed -n 's|^// Run  *||p' "$1" | head -n 1 | sed 's|^make [^&]*&& *||')
    printf '%s\n' "$RUNNER $line" | sed -e 's|   *(.*$||' -e 's|^  *||' -e "s|^mpiexec |$MPIEXEC |" -e "s|build/check|$folder|" -e 's|[[:space:]]*$||'
}

# Prints the first promised line that the output does not have; nothing if it has them all.
missing_line() {
    awk '
        function mask(text) {
            gsub(hex, "<num>", text)
            gsub(/[-+]?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?/, "<num>", text)
            gsub(/[ \t]+/, " ", text)
            sub(/^ /, "", text)
            return text
        }
        function like(text, wanted) {
            text = mask(text)
            wanted = mask(wanted)
            if (wanted !~ /[.][.][.]$/) return text == wanted
            return index(text, substr(wanted, 1, length(wanted) - 3)) == 1
        }
        BEGIN { hex = "[0-9a-f][0-9a-f][0-9a-f][0-9a-f]"; hex = hex hex hex hex }
        { sub(/[ \t\r]+$/, "") }
        FNR == NR {
            if (/^\/\/[|~]/) {
                kind[++promised] = substr($0, 3, 1)
                text = substr($0, 4)
                sub(/^ /, "", text)
                want[promised] = text
            }
            next
        }
        at < promised {
            if (kind[at + 1] == "|" ? $0 == want[at + 1] : like($0, want[at + 1])) ++at
        }
        END {
            if (promised == 0) print "(the source promises no line: //| or //~)"
            else if (at < promised) print kind[at + 1] " " want[at + 1]
        }' "$1" "$2"
}

# sh chapters/check.sh --missing SOURCE OUTPUT: what was printed elsewhere, such as in a page of the book
if [ "${1:-}" = --missing ]; then missing_line "$2" "$3"; exit; fi

passed=0
failed=0
fail() { # chapter, reason
    echo "FAILED  $1   $2"
    failed=$((failed + 1))
}

if [ $# -eq 0 ]; then
    for source in chapters/ch[0-9][0-9]_*.c; do
        name=${source#chapters/}
        set -- "$@" "${name%%_*}"
    done
fi

for chapter in "$@"; do
    source=
    for file in chapters/"$chapter"_*.c; do
        if [ -f "$file" ]; then source=$file; fi
    done
    if [ -z "$source" ]; then fail "$chapter" "there is no chapters/${chapter}_*.c"; continue; fi
    if [ -z "$RUNNER" ] && [ ! -x "./$chapter" ]; then fail "$chapter" "./$chapter is not built: make $chapter"; continue; fi
    run=$(command_of "$source")
    if [ -z "$run" ]; then fail "$chapter" "$source has no Run and no Check line"; continue; fi
    # shellcheck disable=SC2086
    $limit sh -c "$run" <"/dev/null" >"$folder/$chapter.out" 2>"$folder/$chapter.err"
    code=$?
    if [ $code -ne 0 ]; then
        fail "$chapter" "$run ended with $code: $(grep . "$folder/$chapter.err" "$folder/$chapter.out" /dev/null | grep -E 'err:|MISMATCH' | sed 's|^[^:]*:||' | tail -n 1)"
        continue
    fi
    sed "s|$folder/|build/check/|g" "$folder/$chapter.out" >"$folder/$chapter.said"
    missing=$(missing_line "$source" "$folder/$chapter.said")
    if [ -n "$missing" ]; then
        fail "$chapter" "$run"
        case $missing in
        '('*) echo "        $missing" ;;
        *) echo "        $folder/$chapter.out lacks this line of $source, or has it too early:"
           echo "        //$missing" ;;
        esac
        continue
    fi
    echo "ok      $chapter   $run"
    passed=$((passed + 1))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
