#!/bin/sh
# Ways for a rank to fail, on 2 and 4 ranks, in both trainers: the job must end non-zero in time, with one line on
# standard error that names the rank, its host, the step, and what differs. Healthy runs, also on a busy machine, must be silent.
#
#   tests/test_fault.sh [fault]       the program made from tests/fault.c; without it, it is compiled here
cd "$(dirname "$0")/.." || exit 2
MPIEXEC=$(command -v mpiexec.mpich || echo mpiexec)
MPICC=$(command -v mpicc.mpich || echo mpicc)
work=$(mktemp -d) || exit 2
trap 'kill $busy 2>/dev/null; rm -rf "$work"' EXIT
passed=0 failed=0 busy= hosts= most=5000

program=$1
if [ -z "$program" ]; then
    program=$work/fault
    $MPICC -std=c11 -D_DEFAULT_SOURCE -O2 -ffp-contract=off -DDTRAIN_WITH_MPI -DDTRAIN_WITH_THREADS -o "$program" tests/fault.c -lm -pthread || exit 2
fi

now() { date +%s%N; }
fail() { failed=$((failed + 1)); echo "FAILED $*"; sed 's/^/    /' "$work/err"; }

# run RANKS METHOD HOW VICTIM SECONDS: sets code and ms
run() {
    start=$(now)
    # shellcheck disable=SC2086
    timeout -k 1 30 "$MPIEXEC" $hosts -n "$1" "$program" "$2" "$3" "$4" "$5" >"$work/out" 2>"$work/err"
    code=$? ms=$((($(now) - start) / 1000000))
}

# broken RANKS METHOD HOW VICTIM SECONDS PATTERN: the one line must match it
broken() {
    run "$1" "$2" "$3" "$4" "$5"
    what="$3, $1 ranks${hosts:+ on two hosts}, $2, victim $4: exit code $code, $ms ms"
    lines=$(grep -c 'rank [0-9]* (' "$work/err")
    if [ "$code" -eq 0 ] || [ "$code" -eq 124 ]; then fail "$what: must end non-zero"
    elif [ "$ms" -gt "$most" ]; then fail "$what: too late"
    elif [ "$lines" -ne 1 ]; then fail "$what: $lines lines, wanted 1"
    elif ! grep -q "$6" "$work/err"; then fail "$what: wanted $6"
    else passed=$((passed + 1)); echo "ok     $what"; fi
}

healthy() {
    run "$1" "$2" "$3" "$4" "$5"
    what="$3${busy:+, busy machine}, $1 ranks${hosts:+ on two hosts}, $2: exit code $code, $ms ms"
    if [ "$code" -ne 0 ] || [ -s "$work/err" ]; then fail "$what: must be silent"
    else passed=$((passed + 1)); echo "ok     $what"; fi
}

host=$(uname -n | cut -c1-63)
for ranks in 2 4; do
    last=$((ranks - 1))
    for method in sync psgd; do
        if [ $method = sync ]; then victim=$last kill=kill quit=_exit other=flip says="fc1.weight"
        else victim=0 kill=segv quit=exit other=settings says="the settings"; fi
        [ $ranks = 4 ] && [ $method = psgd ] && other=weights says="the starting weights"
        [ $ranks = 4 ] && [ $method = sync ] && other=data says="the data"
        who="rank $victim ($host"
        broken $ranks $method $kill  $victim 0 "$who.*ended without saying goodbye, in step 2[0-9] (training)"
        broken $ranks $method $quit  $victim 0 "$who.*ended without saying goodbye, in step 2[0-9] (training)"
        broken $ranks $method stop   $victim 1 "$who.*stopped by a signal, in step 2[0-9] (training)"
        broken $ranks $method loop   $victim 1 "$who.*makes no progress, in step 2[0-9] (training)"
        broken $ranks $method nan    $victim 0 "$who), step 2[0-9]: .*nan"
        broken $ranks $method $other $last   0 "rank $last ($host) .*$says"
        broken $ranks $method open   $victim 0 "$who): cannot open no-such-images"
    done
done
out="does not come out of MPI_Finalize"                              # which goes on for 2 s at least before it is too long
broken 2 sync end-kill 1 1 "rank 1 ($host.*a signal ended it before it came out of MPI_Finalize"
broken 3 sync end-stop 1 1 "rank 1 ($host.*$out: a signal has stopped it"
broken 2 psgd end-loop 0 1 "rank 0 ($host.*$out"
broken 3 sync leave 1 1 "rank 1 ($host.*has left, though others wait for it, after step"

# MPICH's launcher started twice on this machine is two hosts to it: no memory in common, and a failure on the one must end the other
two_hosts() { # LAYOUT RANKS LAST
    hosts="-launcher fork -hosts $1"
    broken "$2" sync kill  "$3" 0 "rank $3 ($host.*ended without saying goodbye, in step 2[0-9] (training)"
    broken "$2" psgd _exit 0    0 "rank 0 ($host.*ended without saying goodbye, in step 2[0-9] (training)"
    broken "$2" sync nan   "$3" 0 "rank $3 ($host), step 2[0-9]: .*nan"
    broken "$2" sync flip  "$3" 0 "rank $3 ($host) .*fc1.weight"
    broken "$2" psgd open  "$3" 0 "rank $3 ($host): cannot open no-such-images"
    broken "$2" psgd leave "$3" 1 "rank $3 ($host.*has left, though others wait for it"
    healthy "$2" sync none 0 0
    healthy "$2" sync slow "$3" 1
    healthy "$2" psgd nap 0 1
    hosts=
}
if "$MPIEXEC" -launcher fork -hosts a,b -n 2 true 2>/dev/null; then
    two_hosts a,b 2 1
    two_hosts a:2,b:2 4 3
    hosts="-launcher fork -hosts a,b"                                # alone on a host: the other one misses it
    broken 2 sync stop 1 1 "rank 1 ($host, process [0-9]*) is not heard from, last seen in step"
    broken 2 psgd loop 0 1 "rank 0 ($host, process [0-9]*) is not heard from, last seen in step"
    hosts="-launcher fork -hosts a:2,b:2"
    broken 4 psgd stop 2 1 "rank 2 ($host.*stopped by a signal, in step 2[0-9] (training)"
    hosts=
else echo "skipped: two hosts ($MPIEXEC is not MPICH's)"; fi

# Over TCP, a rank that comes to MPI_Finalize late must not wait there for ever.
if "$MPIEXEC" -launcher fork -hosts a,b -n 2 true 2>/dev/null; then
    for i in 1 2 3; do
        hosts="-launcher fork -hosts a:2,b:2 -genv UCX_TLS tcp,self"
        healthy 4 sync none 0 0
        hosts="-genv UCX_TLS tcp,self"
        healthy 4 psgd none 0 0
    done
    hosts=
fi

# Signals. mpiexec, the launcher's process that stands between it and the ranks, and every process of the job may get them.
# below JOB DEPTH: the children of a job's launcher (1), their children (2) ...
below() {
    ps -eo pid=,ppid= | awk -v job="$1" -v depth="$2" '{ parent[$1] = $2 }
        END { for (p in parent) { q = p; for (i = 0; i < depth; ++i) q = parent[q]; if (q == job) printf "%s ", p } }'
}
# signalled RANKS SIGNAL DEPTH: ranks that would train for ever; mpiexec (0) or the helper that it has started (1) gets the signal
signalled() {
    : >"$work/out"                                                       # of the run before, it must not be taken for this one
    "$MPIEXEC" -n "$1" "$program" sync ever 0 0 >"$work/out" 2>"$work/err" &
    job=$! tries=0
    until grep -q training "$work/out" || [ $tries -gt 500 ]; do sleep 0.02; tries=$((tries + 1)); done
    ranks_are=$(below $job 3)
    start=$(now)
    # shellcheck disable=SC2046
    kill -"$2" $(below $job "$3")
    [ "$2" = USR1 ] && { sleep 0.2; kill -KILL "${ranks_are%% *}"; } # which MPICH takes, and goes on: so a rank is killed then
    wait $job
    code=$? left=
    until [ $((($(now) - start) / 1000000)) -gt 5000 ]; do
        left=
        for p in $ranks_are; do kill -0 "$p" 2>/dev/null && left="$left $p"; done
        [ -z "$left" ] && break
        sleep 0.05
    done
    what="$2 to $([ "$3" = 0 ] && echo mpiexec || echo "mpiexec's helper"), $1 ranks${busy:+, busy machine}: exit code $code, $((($(now) - start) / 1000000)) ms"
    if [ -z "$ranks_are" ] || [ $tries -gt 500 ]; then fail "$what: did not start"
    elif [ $code -eq 0 ]; then fail "$what: must end non-zero"
    elif [ -n "$left" ]; then fail "$what: processes$left are left"
    else passed=$((passed + 1)); echo "ok     $what"; fi
}
for signal in TERM INT QUIT USR1; do
    for ranks in 1 2; do signalled $ranks $signal 0; signalled $ranks $signal 0; done
done
signalled 2 KILL 0
signalled 1 KILL 1
signalled 2 KILL 1

healthy 2 sync none 0 0
healthy 4 psgd none 0 0
healthy 3 sync slow 1 1             # one step 300 ms late
healthy 2 sync nap 1 1              # 2 s in a phase that is no step, with 1 s of patience
for i in 1 2; do sh -c 'while :; do :; done' & busy="$busy $!"; done
for i in 1 2 3; do
    healthy 2 sync none 0 1
    healthy 4 psgd none 0 1
done
broken 4 sync kill 2 0 "rank 2 ($host.*ended without saying goodbye, in step 2[0-9] (training)"
broken 4 psgd _exit 1 0 "rank 1 ($host.*ended without saying goodbye, in step 2[0-9] (training)"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
