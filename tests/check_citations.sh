#!/bin/sh
# Every citation such as [S5.1] in the header, the chapters, the tests, the examples and the README must lead to a banner,
# "/* ==== [S5.1] Naive convolution ==== */", in dtrain.h; and no banner may stand there twice.
set -u
cd "$(dirname "$0")/.." || exit 1
banners=$(sed -n 's/^\/\* ==== \(\[[SE][0-9.]*\]\) .*/\1/p' dtrain.h)
bad=0
twice=$(echo "$banners" | sort | uniq -d)
if [ -n "$twice" ]; then
    echo "dtrain.h: more than one banner for" $twice
    bad=$((bad + 1))
fi
# The contents at the top of dtrain.h name every subsection, as ".1 its title" behind its section, or ".2-.4" for several.
told=$(awk '/^   Contents\./ { on = 1 } /^   Where a new thing goes/ { on = 0 }
    on {
        if (match($0, /^     \[[SE][0-9]+\]/)) section = substr($0, RSTART + 6, RLENGTH - 7)
        for (i = 1; i <= NF; ++i) if ($i ~ /^\.[0-9]+(-\.[0-9]+)?$/) {
            n = split($i, ends, "-"); from = substr(ends[1], 2) + 0; to = substr(ends[n], 2) + 0
            for (k = from; k <= to; ++k) print "[" section "." k "]"
        }
    }' dtrain.h)
for section in $(printf '%s\n%s\n' "$told" "$(echo "$banners" | grep '\.')" | sort | uniq -u); do
    echo "dtrain.h: $section is in the contents, or has a banner, but not both"
    bad=$((bad + 1))
done
cited=$(echo "$told" | grep -c .)
files=$(ls dtrain.h README.md chapters/* examples/* tests/*.c tests/*.sh tests/*.py tests/*.mk tests/test_header/* 2>/dev/null)
for file in $files; do
    [ -f "$file" ] || continue
    for citation in $(grep -o '\[[SE][0-9][0-9]*\(\.[0-9][0-9]*\)\{0,1\}\]' "$file" | sort -u); do
        cited=$((cited + 1))
        if ! echo "$banners" | grep -qxF "$citation"; then
            echo "$file: $(grep -nF "$citation" "$file" | head -n 1 | cut -d: -f1): $citation leads nowhere"
            bad=$((bad + 1))
        fi
    done
done
echo "$((cited - bad)) passed, $bad failed"
[ "$bad" -eq 0 ] && [ "$cited" -gt 0 ]
