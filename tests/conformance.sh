#!/bin/sh
# The page chapters/conformance.md: what dtrain and PyTorch differ by, row by row.
#
#   sh tests/conformance.sh          make conformance: writes it, from what the tests against PyTorch print here
#   sh tests/conformance.sh check    in make test: does it still state the rows and bounds that they print, and is each difference that it
#                                    states below its bound? The differences themselves are of the machine that it was made on.
#
# Rows "file ..." need python3-torch at that moment; without it the page says that they are not there, and the check leaves them out.
set -eu
cd "$(dirname "$0")/.."
page=chapters/conformance.md
made=build/conformance.md
rows=build/conformance.txt
what_tests_print() {
    for t in net norm steps; do
        log=build/tests/log/gcc_$t.txt
        if [ "${1:-}" = check ] && [ -s "$log" ] && [ "$log" -nt build/tests/gcc/test_$t ]; then cat "$log"; else build/tests/gcc/test_$t 2>/dev/null; fi
    done | sed -n 's/^conformance \(.*[^ ]\)  *largest difference \(.*\), bound \(.*\)$/| \1 | \2 | \3 |/p'
}
what_tests_print "${1:-}" >"$rows"
[ "$(grep -vc '^| file ' "$rows")" -ge 36 ] || { echo "conformance: the tests print too few rows"; exit 1; }

with_torch='Rows "file": a net saved here is loaded by PyTorch with strict names, one saved there is loaded here, and
the logits of both are compared (`tests/check_models.py`). On every `make test` where `python3-torch` is
installed; there PyTorch also gives a net of chapter 12 the same accuracy (`tests/check_saved.py`).'
without_torch='The rows of files to and from PyTorch are not here: `python3-torch` was not installed when this page was made.'
grep -q '^| file ' "$rows" || with_torch=$without_torch
{
    cat <<'END'
# Held against PyTorch

Committed numbers, made by `tests/make_reference.py` with PyTorch 1.13 in double precision (NovoGrad, which
PyTorch lacks, from a reference in the script), and repeated here in single precision on every `make test`.
A row's number is its largest difference, over the largest number of its record; what is more than the bound
fails the test. Layers and nets: logits and every gradient of a batch, and for batch norm six steps with
running values; losses: value and gradient; optimizers: all parameters after a hundred steps; schedules:
forty rates. Made by `make conformance`; `make test` fails if the rows or bounds below are not those of the
tests any more.

| row | largest difference | bound |
|---|---|---|
END
    cat "$rows"
    printf '\n%s\n' "$with_torch"
} >"$made"
[ "${1:-}" = check ] || { cp "$made" "$page"; echo "$page"; exit 0; }

# a page with its differences taken out; without PyTorch also without what is said of files
masked() {
    sed 's/^\(| [^|]* | \)[0-9][^|]*|/\1 |/' "$1" | if grep -q '^| file ' "$rows"; then cat; else sed -e '/^| file /d' -e '/^Rows "file"/,$d' -e '/^The rows of files/d'; fi
}
passed=0 failed=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "conformance: $1"; }
masked "$page" >build/conformance.page
masked "$made" >build/conformance.made
if diff build/conformance.page build/conformance.made >build/conformance.diff; then good; else bad "$page is not what the tests print; make conformance writes it anew"; head -n 20 build/conformance.diff; fi
over=$(awk -F'|' '/^\|/ && $3 ~ /[0-9]/ && $3 + 0 > $4 + 0 { print $2 }' "$page")
if [ -z "$over" ]; then good; else bad "$page states a difference above its bound:$over"; fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
