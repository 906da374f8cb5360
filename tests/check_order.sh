#!/bin/sh
# The order of dtrain.h. A section of Part I ([S1] to [S11]) may use what stands above it, and the doors [S1.4]; Part II
# (rooms [E1] to [E9]) may use everything. Only the doors declare what is defined further down. And Part I keeps its size,
# and lines their columns: 100 in Part I, 110 in Part II.
#
# Looked at are the functions, types and macros that begin with dt_, dti_, DT_ or DTI_: where each is defined, and in which
# section each is used. Comments and strings do not count.
set -u
cd "$(dirname "$0")/.." || exit 1
header=${1:-dtrain.h}
awk '
    function code(line,    out, i) { # without strings and comments
        gsub(/"(\\.|[^"\\])*"/, "\"\"", line)
        out = ""
        while (line != "") {
            if (inside) {
                i = index(line, "*/")
                if (!i) return out
                line = substr(line, i + 2); inside = 0
            } else {
                i = index(line, "/*")
                if (!i) return out line
                out = out substr(line, 1, i - 1); line = substr(line, i + 2); inside = 1
            }
        }
        return out
    }
    function say(text) { print text; ++bad }
    { whole[FNR] = code($0); width[FNR] = length($0) }
    /^\/\* ==== \[[SE][0-9.]*\]/ { match($0, /\[[SE][0-9.]*\]/); id = substr($0, RSTART + 1, RLENGTH - 2); ++sections; name[sections] = id }
    { at[FNR] = sections }
    END {
        for (n = 1; n <= FNR; ++n) { # where things are defined
            line = whole[n]
            if (line ~ /^(static|DTI_LOCAL|DTI_INLINE|DTI_NOINLINE|DT_API)[ *]/ && match(line, /dti?_[A-Za-z0-9_]*\(/)) {
                word = substr(line, RSTART, RLENGTH - 1)
                for (k = n; k < n + 8 && whole[k] !~ /[;{]/; ++k) {}
                split(whole[k], half, "{")
                if (whole[k] ~ /[{]/ && half[1] !~ /;/) { if (!(word in made)) made[word] = at[n] }
                else if (line !~ /^DT_API/ && line !~ /=/ && name[at[n]] != "S1.4" && !(word in made)) early[word] = n
                if (line ~ /^DT_API/ && !(word in told)) told[word] = at[n]
            }
            if (match(line, /^#define DTI?_[A-Z0-9_]*/)) { split(substr(line, 9), part, /[^A-Z0-9_]/); if (!(part[1] in made)) made[part[1]] = at[n] }
            if (match(line, /^typedef struct dti?_[a-z0-9_]+/) && line !~ /;$/ || line ~ /^typedef struct dti_[a-z0-9_]+ [{].*;$/) {
                split(line, part, /[ {]+/); if (!(part[3] in made)) made[part[3]] = at[n]
            }
            if (name[at[n]] == "S1.4") { rest = line; while (match(rest, /dti?_[A-Za-z0-9_]*/)) { door[substr(rest, RSTART, RLENGTH)] = 1; rest = substr(rest, RSTART + RLENGTH) } }
        }
        for (n = 1; n <= FNR; ++n) {
            if (name[at[n]] ~ /^S/) ++lines
            if (width[n] > (name[at[n]] ~ /^E/ ? 110 : 100)) say("line " n " has " width[n] " columns")
            if (name[at[n]] !~ /^S/ || name[at[n]] == "S1.4") continue
            rest = whole[n]
            while (match(rest, /(dti?|DTI?)_[A-Za-z0-9_]*/)) {
                word = substr(rest, RSTART, RLENGTH); rest = substr(rest, RSTART + RLENGTH); ++looked
                where = word in told ? told[word] : made[word]
                if ((word in made || word in told) && where > at[n] && !(word in door))
                    say("line " n ": [" name[at[n]] "] uses " word " of [" name[where] "], which stands further down")
            }
        }
        for (word in early) if (word in made && made[word] > 0) {
            if (at[early[word]] != made[word]) say("line " early[word] ": " word " of [" name[made[word]] "] is declared in [" name[at[early[word]]] "], not at the doors")
        }
        if (lines > 7500) say("Part I has " lines " lines, more than 7500")
        if (looked < 1000) say("only " looked + 0 " names were looked at")
        printf "Part I: %d lines, %d names\n", lines, looked
        printf "%d passed, %d failed\n", bad ? 0 : 1, bad
        exit bad > 0
    }' "$header"
