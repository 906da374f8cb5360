#!/bin/sh
# Ways for a rank to fail, on 2 and 4 ranks, at the start and in both trainers: the job must end non-zero in time, with one line on
# standard error that names the rank, its host, the step, and what differs. Healthy runs, also on a busy machine, must be silent.
#
#   tests/test_fault.sh [fault]       the program made from tests/fault.c; without it, it is compiled here
cd "$(dirname "$0")/.." || exit 2
MPIEXEC=$(command -v mpiexec.mpich || echo mpiexec)
MPICC=$(command -v mpicc.mpich || echo mpicc)
work=$(mktemp -d) || exit 2
trap 'kill $busy 2>/dev/null; rm -rf "$work"' EXIT
passed=0 failed=0 busy= hosts= beside= most=5000

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

# unstarted PATTERN CMD ...: a job whose start fails: one line, which must match, and an end; patience of 1.2 s
unstarted() {
    pattern=$1
    shift
    start=$(now)
    DTRAIN_PATIENCE=0.2 timeout -k 1 30 "$@" >"$work/out" 2>"$work/err"
    code=$? ms=$((($(now) - start) / 1000000))
    what="start${busy:+, busy machine}: $pattern: exit code $code, $ms ms"
    lines=$(grep -c -E 'dtrain: |too small|no process' "$work/err")
    if [ "$code" -eq 0 ] || [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then fail "$what: must end non-zero"
    elif [ "$ms" -gt 5000 ]; then fail "$what: too late"
    elif [ "$lines" -ne 1 ]; then fail "$what: $lines lines, wanted 1"
    elif ! grep -q -E "$pattern" "$work/err"; then fail "$what: wanted $pattern"
    else passed=$((passed + 1)); echo "ok     $what"; fi
}

# A rank that never comes, or ends or stops before MPI has started on all
starts() {
    ranks="$MPIEXEC -n 1 $program sync none 0 : -n 1"
    late='not started in [0-9]* s: rank 1 has not come .not found, ended already, or busy'
    unstarted "$late" $ranks true
    unstarted "$late" $ranks sh -c 'exit 3'
    unstarted "$late" $ranks "$work/no-such-program"
    unstarted "$late" $ranks sleep 20
    unstarted "not started in [0-9]* s: ranks 1, 2 have not come" "$MPIEXEC" -n 1 "$program" sync none 0 : -n 2 true
    unstarted "rank 0 .$host, process [0-9]*. ended before MPI had started, by signal 9" "$MPIEXEC" -n 2 "$program" sync init-kill 0
    unstarted "rank 3 .$host, process [0-9]*. ended before MPI had started, by signal 9" "$MPIEXEC" -n 4 "$program" sync init-kill 3
    unstarted "rank 1 .$host, process [0-9]*. ended before MPI had started, with exit code 3" "$MPIEXEC" -n 4 "$program" sync init-exit 1
    unstarted "rank [01] .$host, process [0-9]*. ended before MPI had started, killed with its guardian|one of the ranks 0, 1 " "$MPIEXEC" -n 2 "$program" sync init-guardian 1
    unstarted "rank 0 .$host, process [0-9]*. ended before MPI had started, killed with its guardian" "$MPIEXEC" -n 1 "$program" sync call-kill 0 : -n 1 sleep 20
    # rank 1 dies before it has told anybody that it is there; if rank 0 was first to look after the start, all that is known of rank 1 is that
    # it has not come
    gone="ended before MPI had started, killed with its guardian"
    unstarted "rank 1 .$host, process [0-9]*. $gone|one of the ranks 0, 1 |rank 0 .$host, process [0-9]*. $gone, when rank 1 has not come" "$MPIEXEC" -n 2 "$program" sync call-kill 1
    unstarted "not started in [0-9]* s: rank 1 .$host, process [0-9]*. is stopped by a signal" "$MPIEXEC" -n 2 "$program" sync init-stop 1
}

host=$(uname -n | cut -c1-63)

# A build for another processor on one rank: with FMA and without, the weights would be neither's
if [ "$(uname -m)" = x86_64 ] && grep -qw fma /proc/cpuinfo; then
    for arch in x86-64 x86-64-v3; do
        $MPICC -std=c11 -D_DEFAULT_SOURCE -O0 -march=$arch -ffp-contract=off -DDTRAIN_WITH_MPI -DDTRAIN_WITH_THREADS -o "$work/$arch" tests/fault.c -lm -pthread || exit 2
        timeout 30 "$MPIEXEC" -n 1 "$work/x86-64" sync none 0 : -n 1 "$work/$arch" sync none 0 >"$work/out" 2>"$work/err"
        code=$?
        if [ $arch = x86-64 ] && [ $code -eq 0 ] && [ ! -s "$work/err" ]; then passed=$((passed + 1)); echo "ok     one build on all ranks"
        elif [ $arch != x86-64 ] && [ $code -ne 0 ] && [ "$(grep -c "rank 1 ($host) differs from the others in the build, or how it rounds" "$work/err")" -eq 1 ]; then
            passed=$((passed + 1)); echo "ok     one rank without FMA"
        else fail "x86-64 beside $arch: exit code $code"; fi
    done
else echo "skipped: ranks with and without FMA"; fi
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
sorts="not all ranks run the same program, or call the same collectives"
broken 2 sync other 1 1 "rank 1 ($host): \(another rank sends more than this one expects\|rank 1 expects 4 bytes .*, which sends [0-9]*\): $sorts"
broken 3 sync other 0 1 "rank [12] ($host): \(another rank sends more than this one expects\|rank . expects 16 bytes .*, which sends [0-9]*\): $sorts"

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
if "$MPIEXEC" --version 2>/dev/null | grep -q HYDRA; then
    # shellcheck disable=SC2086  # words
    starts
    if command -v prlimit >/dev/null; then
        unstarted "a stack of 128 KB is too small for MPI, which takes 192" "$MPIEXEC" -n 4 prlimit --stack=131072 "$program" sync none 0
        cp "$program" "$work/copy" && chmod 711 "$work" && chmod 755 "$work/copy"  # a user with processes of this job alone
        if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
            unstarted 'no process for the (usher|guardian) of this rank: all 6 that .ulimit -u. allows are in use' \
                setpriv --reuid=$((50000 + $$ % 10000)) --clear-groups prlimit --nproc=6 "$MPIEXEC" -n 2 "$work/copy" sync none 0
        else echo "skipped: ulimit -u (not root)"; fi
    else echo "skipped: limits (no prlimit)"; fi
    hosts="-launcher fork -hosts a,b"
    unstarted "not started in [0-9]* s: rank 0 has come on $host, but not all of the other hosts" "$MPIEXEC" $hosts -n 1 "$program" sync none 0 : -n 1 true
    unstarted "rank 1 .$host, process [0-9]*. ended before MPI had started, by signal 9" "$MPIEXEC" $hosts -n 2 "$program" sync init-kill 1
    hosts="-launcher fork -hosts a:2,b:2"
    unstarted "of the 2 ranks of $host only rank 2 has come" "$MPIEXEC" $hosts -n 3 "$program" sync none 0 : -n 1 true
    hosts=
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
if "$MPIEXEC" --version 2>/dev/null | grep -q HYDRA; then
    for i in 1 2 3; do
        hosts="-launcher fork -hosts a:2,b:2 -genv UCX_TLS tcp,self"
        healthy 4 sync none 0 0
        hosts="-genv UCX_TLS tcp,self"
        healthy 4 psgd none 0 0
    done
    hosts=
fi

# Signals. mpiexec, the launcher's process that stands between it and the ranks, and every process of the job may get them.
# below JOB DEPTH: the children of a job's launcher (1), their children (2) ...; living ones
below() {
    ps -eo pid=,ppid=,stat= | awk -v job="$1" -v depth="$2" '{ parent[$1] = $2; dead[$1] = $3 ~ /^Z/ }
        END { for (p in parent) if (!dead[p]) { q = p; for (i = 0; i < depth; ++i) q = parent[q]; if (q == job) printf "%s ", p } }'
}
# signalled RANKS SIGNAL DEPTH: ranks that would train for ever; mpiexec (0) or the helper that it has started (1) gets the signal
signalled() {
    : >"$work/out"                                                       # of the run before, it must not be taken for this one
    "$MPIEXEC" -n "$1" "$program" sync ever 0 0 >"$work/out" 2>"$work/err" &
    job=$! tries=0
    until grep -q training "$work/out" || [ $tries -gt 500 ]; do sleep 0.02; tries=$((tries + 1)); done
    ranks_are=$(below $job 3) helper=
    bodies=$(ps -eo ppid=,stat= | awk -v parents=" $(below $job 2)" '$2 ~ /^Z/ && index(parents, " " $1 " ")' | grep -c .)
    start=$(now)
    # shellcheck disable=SC2046
    if [ "$2" != LOST ]; then kill -"$2" $(below $job "$3")
    else helper=$(below $job 1) && kill -STOP $helper && kill -KILL $job; fi
    [ "$2" = USR1 ] && { sleep 0.2; kill -KILL "${ranks_are%% *}"; } # which MPICH takes, and goes on: so a rank is killed then
    wait $job
    code=$? left=
    until [ $((($(now) - start) / 1000000)) -gt 5000 ]; do
        left=
        for p in $ranks_are; do case $(ps -o stat= -p "$p") in ''|Z*) ;; *) left="$left $p" ;; esac; done
        [ -z "$left" ] && break
        sleep 0.05
    done
    # shellcheck disable=SC2086
    [ -z "$helper" ] || kill -KILL $helper
    what="$2 to $([ "$3" = 0 ] && echo mpiexec || echo "mpiexec's helper"), $1 ranks${busy:+, busy machine}: exit code $code, $((($(now) - start) / 1000000)) ms"
    if [ -z "$ranks_are" ] || [ $tries -gt 500 ]; then fail "$what: did not start"
    elif [ $code -eq 0 ]; then fail "$what: must end non-zero"
    elif [ -n "$left" ]; then fail "$what: processes$left are left"
    elif [ "$bodies" -ne 0 ]; then fail "$what: $bodies helpers are not buried"
    else passed=$((passed + 1)); echo "ok     $what"; fi
}
for signal in TERM INT QUIT USR1; do
    for ranks in 1 2; do signalled $ranks $signal 0; signalled $ranks $signal 0; done
done
signalled 2 KILL 0
signalled 1 KILL 1
signalled 2 KILL 1
signalled 2 LOST 0                  # the helper is stopped, then mpiexec killed
signalled 1 LOST 0

healthy 2 sync none 0 0
healthy 4 psgd none 0 0
healthy 3 sync slow 1 1             # one step 300 ms late
healthy 2 sync nap 1 1              # 2 s in a phase that is no step, with 1 s of patience
for rank in 0 1; do                 # one rank of two is not watched, and says so to nobody
    off="env DTRAIN_WATCH=off" on=
    [ $rank = 1 ] && on=$off off=
    # shellcheck disable=SC2086
    timeout -k 1 20 "$MPIEXEC" -n 1 $off "$program" sync none 0 : -n 1 $on "$program" sync none 0 >"$work/out" 2>"$work/err"
    code=$?
    if [ $code -eq 0 ] && [ ! -s "$work/err" ]; then passed=$((passed + 1)); echo "ok     rank $rank of 2 without a watcher"
    else fail "rank $rank of 2 without a watcher: exit code $code"; fi
    # But the other one's watcher sees it die, and says so in one line. No guardian holds mpiexec back, which kills the other one at
    # once: where the machine is busy, both may be gone before anybody looks. So the line names one of the two, and the right one in
    # one of three tries.
    words="ended without saying goodbye, in step 2[0-9] (training)" right= tries=0
    while [ -z "$right" ] && [ $tries -lt 3 ]; do
        tries=$((tries + 1))
        # shellcheck disable=SC2086
        timeout -k 1 20 "$MPIEXEC" -n 1 $off "$program" sync kill $rank : -n 1 $on "$program" sync kill $rank >"$work/out" 2>"$work/err"
        code=$?
        if [ $code -eq 0 ] || [ $code -eq 124 ] || [ "$(grep -c "rank [01] ($host.*$words" "$work/err")" -ne 1 ]; then break; fi
        grep -q "rank $rank ($host.*$words" "$work/err" && right=yes
    done
    if [ -n "$right" ]; then passed=$((passed + 1)); echo "ok     rank $rank of 2 without a watcher, killed"
    else fail "rank $rank of 2 without a watcher, killed: exit code $code in try $tries"; fi
done
# shellcheck disable=SC2086
for i in 1 2; do                    # a shell between the launcher and the rank; jobs beside each other do not meet
    "$MPIEXEC" -n 2 sh -c "'$program' sync none 0 0; true" >"$work/out$i" 2>&1 &
    beside="$beside $!"
done
wait $beside
if [ "$(cat "$work/out1" "$work/out2" | grep -c '^2 ranks, accuracy')" -eq 2 ]; then passed=$((passed + 1)); echo "ok     two jobs at once, behind shells"
else cat "$work/out1" "$work/out2" >"$work/err"; fail "two jobs at once, behind shells"; fi
for i in 1 2; do sh -c 'while :; do :; done' & busy="$busy $!"; done
for i in 1 2 3; do
    healthy 2 sync none 0 1
    healthy 4 psgd none 0 1
done
broken 4 sync kill 2 0 "rank 2 ($host.*ended without saying goodbye, in step 2[0-9] (training)"
broken 4 psgd _exit 1 0 "rank 1 ($host.*ended without saying goodbye, in step 2[0-9] (training)"
unstarted "rank 3 .$host, process [0-9]*. ended before MPI had started, by signal 9" "$MPIEXEC" -n 4 "$program" sync init-kill 3

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
