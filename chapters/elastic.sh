#!/bin/sh
# A job that outlives its ranks: starts ch12, and when it ends badly starts it again from its last checkpoint, with one rank less.
#
#   sh chapters/elastic.sh OPTIONS OF CH12          from the project's root, after `make ch12`
#
# Environment: RANKS (3) to begin with; LEAST (1), below which it does not go; TIMES (10), how often it is started again;
# CHECKPOINT (out/elastic.checkpoint), which is gone on from where it is there already; EVERY (100) steps between two;
# HOSTS ("a:2 b:2"), each with its ranks, instead of RANKS: a host that no longer answers is left out; PROGRAM (./ch12); MPIEXEC.
# Ends with the job's code: 0; 130 where it was asked to stop (SIGTERM, SIGINT: it keeps a checkpoint first); 2 for a wrong option.
# A job that fails three times in a row without a new checkpoint would fail for ever: then it ends, too.
RANKS=${RANKS:-3} LEAST=${LEAST:-1} TIMES=${TIMES:-10} EVERY=${EVERY:-100} PROGRAM=${PROGRAM:-./ch12}
CHECKPOINT=${CHECKPOINT:-out/elastic.checkpoint}
MPIEXEC=${MPIEXEC:-$(command -v mpiexec.mpich || echo mpiexec)}
mkdir -p "$(dirname "$CHECKPOINT")" || exit 1

say() { echo "elastic: $*" >&2; }
print_of() { cksum "$CHECKPOINT" 2>/dev/null; }

# Hosts that answer, and the sum of their ranks.
ask_hosts() {
    there='' sum=0
    for host in $HOSTS; do
        slots=${host#*:}
        [ "$slots" = "$host" ] && slots=1
        # shellcheck disable=SC2086  # words
        if timeout 20 $MPIEXEC -hosts "${host%%:*}" -n 1 true </dev/null >/dev/null 2>&1; then
            there="$there$host," sum=$((sum + slots))
        else say "host ${host%%:*} does not answer: left out"; fi
    done
    HOSTS=$(echo "$there" | tr ',' ' ')
    [ "$sum" -lt "$RANKS" ] && RANKS=$sum
    return 0
}

if [ -n "${HOSTS:-}" ]; then RANKS=1000000; ask_hosts; fi
[ -s "$CHECKPOINT" ] && say "goes on from $CHECKPOINT, which was there"
asked='' child='' again=0 barren=0
trap 'asked=yes; [ -n "$child" ] && kill -TERM "$child" 2>/dev/null' TERM INT
while :; do
    [ "$RANKS" -ge "$LEAST" ] && [ "$RANKS" -ge 1 ] || { say "$RANKS ranks are left, fewer than $LEAST: ends"; exit 1; }
    resume='' before=$(print_of)
    [ -s "$CHECKPOINT" ] && resume="--resume $CHECKPOINT"
    [ -n "${HOSTS:-}" ] && where="-hosts $(echo "$HOSTS" | sed 's/ *$//; s/ /,/g')" || where=
    # shellcheck disable=SC2086  # words
    $MPIEXEC $where -n "$RANKS" "$PROGRAM" "$@" --checkpoint "$CHECKPOINT" --every "$EVERY" $resume </dev/null &
    child=$!
    wait "$child"
    code=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child"; code=$?; done # a signal ends a wait, not the job
    child=
    case $code in 0 | 2 | 130) exit "$code" ;; esac
    [ -n "$asked" ] && exit 130
    [ "$(print_of)" = "$before" ] && barren=$((barren + 1)) || barren=0
    [ "$barren" -ge 3 ] && { say "code $code, the third time in a row without a new checkpoint: ends"; exit 1; }
    again=$((again + 1))
    [ "$again" -gt "$TIMES" ] && { say "code $code; started again $TIMES times already: ends"; exit 1; }
    if [ -n "${HOSTS:-}" ]; then ask_hosts
    elif [ "$RANKS" -gt "$LEAST" ]; then RANKS=$((RANKS - 1)); fi
    say "code $code; start $((again + 1)), $RANKS rank$([ "$RANKS" -eq 1 ] || echo s)$([ -s "$CHECKPOINT" ] && echo ", from $CHECKPOINT")"
done
