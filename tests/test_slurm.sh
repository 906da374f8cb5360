#!/bin/sh
# make test-slurm: programs under a real Slurm, on two nodes that are this machine twice. Not part of make test.
#
#   sh tests/test_slurm.sh              starts a Slurm of its own, runs the tests, ends the Slurm
#   CASES=limit_case sh tests/test_slurm.sh     the time limit alone (srun_cases: what is not of it)
#   sh tests/test_slurm.sh CMD ...      the same with CMD in place of the tests; srun in it reaches that Slurm
#
# It needs munged, slurmctld, slurmd and srun (Debian: slurm-wlm), nothing of them running or set up, and, as Slurm does,
# root. All that it writes is under build/slurm, what it listens on are ports 16817 to 16819 of this host, and at
# its end it ends the four daemons that it started.
cd "$(dirname "$0")/.." || exit 2
PATH=$PATH:/usr/sbin:/sbin
for tool in munged slurmctld slurmd srun; do
    command -v "$tool" >/dev/null || { echo "skipped: there is no $tool here (Debian: apt-get install slurm-wlm)"; exit 0; }
done
[ "$(id -u)" -eq 0 ] || { echo "skipped: slurmd wants root"; exit 0; }

home=$PWD/build/slurm daemons=
rm -rf "$home"
mkdir -p "$home/state" "$home/a" "$home/b" || exit 2
chmod 755 "$home"
stop() {
    for pid in $daemons; do kill "$pid" 2>/dev/null; done
    for pid in $daemons; do # one that hears nothing is not waited for
        for i in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$pid" 2>/dev/null
    done
    wait
}
trap stop EXIT
trap 'exit 130' INT TERM

# A node's name is not this machine's, so one slurmd is started for each with -N. linuxproc: no control groups are needed.
# cred_expire: a job that is queued again waits for so long, which are two minutes as a rule.
node=$(uname -n)
cat >"$home/slurm.conf" <<END
ClusterName=dtrain
SlurmctldHost=$node
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$home/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/%n
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SchedulerParameters=sched_interval=2,bf_interval=3
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=3
UnkillableStepTimeout=10
NodeName=a NodeHostname=$node NodeAddr=127.0.0.1 Port=16818 CPUs=4 State=UNKNOWN
NodeName=b NodeHostname=$node NodeAddr=127.0.0.1 Port=16819 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=a,b Default=YES OverSubscribe=FORCE:8 MaxTime=INFINITE State=UP
END
echo "CgroupPlugin=cgroup/v1" >"$home/cgroup.conf"
export SLURM_CONF="$home/slurm.conf"
head -c 1024 /dev/urandom >"$home/munge.key" && chmod 600 "$home/munge.key"

start() { # NAME CMD ...
    name=$1
    shift
    "$@" >"$home/$name.log" 2>&1 &
    daemons="$! $daemons"
}
start munged munged --foreground --force --socket="$home/munge.socket" --key-file="$home/munge.key" --log-file="$home/munged.txt" \
    --pid-file="$home/munged.pid" --seed-file="$home/munged.seed"
for i in 1 2 3 4 5 6 7 8 9 10; do [ -S "$home/munge.socket" ] && break; sleep 0.3; done
start slurmctld slurmctld -D -c
start slurmd.a slurmd -D -N a
start slurmd.b slurmd -D -N b
for i in $(seq 60); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break
    sleep 0.5
done
[ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] || { echo "FAILED: the nodes do not come up"; tail -n 5 "$home"/*.log; exit 1; }

if [ $# -gt 0 ]; then
    "$@"
    exit
fi

# ---- the tests ----
program=build/tests/mpi/fault passed=0 failed=0 host=$(uname -n | cut -c1-63)
now() { date +%s%N; }
verdict() { # WHAT REASON: no reason is good
    if [ -z "$2" ]; then passed=$((passed + 1)); echo "ok     $1: exit code $code, $ms ms"; return; fi
    failed=$((failed + 1)); echo "FAILED $1: exit code $code, $ms ms: $2"; sed 's/^/    /' "$home/out"
}
run() {
    for i in $(seq 100); do [ "$(sinfo -h -t idle -o %D)" = 2 ] && break; sleep 0.2; done # not to measure a wait in the queue
    start=$(now)
    timeout -k 1 60 srun --quiet "$@" >"$home/out" 2>&1
    code=$? ms=$((($(now) - start) / 1000000))
}
# broken PATTERN ARGUMENTS ...: srun must end in time, not with 0, and one line, which matches, must name a rank
broken() {
    pattern=$1
    shift
    run "$@"
    why=
    [ "$(grep -c -E '^(dtrain: |rank |error: )' "$home/out")" -eq 1 ] || why="wanted one line"
    grep -q -E "$pattern" "$home/out" || why="wanted $pattern"
    [ "$ms" -lt 9000 ] || why="too late"
    [ "$code" -ne 0 ] || why="must end non-zero"
    verdict "srun $*" "$why"
}
healthy() {
    pattern=$1
    shift
    run "$@"
    why=
    grep -q -E "$pattern" "$home/out" || why="wanted $pattern"
    [ "$code" -eq 0 ] || why="must end with 0"
    verdict "srun $*" "$why"
}

srun_cases() {
two="--mpi=pmi2 -N 2 -n 4" # ranks 0, 1, 2 on the one node, 3 on the other
for more in "" --kill-on-bad-exit=1; do
    # shellcheck disable=SC2086  # words
    {
    broken "rank 3 \\($host, process [0-9]*\\) is not heard from, last seen in step" $more $two $program sync stop 3 1
    broken "rank 0 \\($host, process [0-9]*\\) is stopped by a signal, in step" $more $two $program sync stop 0 1
    broken "rank 3 \\($host, process [0-9]*\\) ended without saying goodbye, in step" $more $two $program sync kill 3 1
    broken "rank 1 \\($host, process [0-9]*\\) ended without saying goodbye, in step" $more $two $program psgd _exit 1 1
    broken "rank 0 \\($host\\), step 2[0-9]: .*nan" $more $two $program sync nan 0 1
    healthy "^4 ranks, accuracy" $more $two $program sync none 0 1
    }
done
# shellcheck disable=SC2086
{
broken "rank 1 \\($host, process [0-9]*\\) is stopped by a signal, in step" --mpi=pmi2 -N 1 -n 2 $program sync stop 1 1
export DTRAIN_PATIENCE=0.3 # the start
missing() { broken "$2" $two sh -c "[ \$SLURM_PROCID = $1 ] || exec $program sync none 0"; }
missing 3 "ranks 0, 1, 2 have come on $host, but not all of the other hosts"
DTRAIN_PATIENCE=0.8 # after as long again, the other node would speak as well
missing 1 "of the 3 ranks of $host only ranks 0, 2 have come"
DTRAIN_PATIENCE=0.3
broken "rank 3 \\($host, process [0-9]*\\) ended before MPI had started, by signal 9" $two $program sync init-kill 3
broken "rank 1 \\($host, process [0-9]*\\) is stopped by a signal" $two $program sync init-stop 1
unset DTRAIN_PATIENCE
healthy "^4 ranks started as they should be" $two ./ch12 --data synthetic --doctor
broken "^error: Slurm started 2 jobs of one rank; type srun --mpi=pmi2 -n 2 .*/ch12" -n 2 ./ch12 --doctor
}
}

# A job that meets its time limit three times, and is queued again by its own script, which is the README's. Slurm looks at limits twice a
# minute, so the signal comes 2 to 32 s after the start; the job is a little longer than three of these stretches. It must end in the hash of a run
# without Slurm, checkpoints or limit, on other ranks.
limit_case() {
quick() { mpiexec.mpich -n 2 ./ch12 --data synthetic --quiet "$@"; }
start=$(now)
quick --epochs 4
epoch=$((($(now) - start) / 4000000)) # ms, with its share of the start
epochs=$((${LASTS:-80} * 1000 / (epoch > 0 ? epoch : 1) + 1))
cat >"$home/job.sh" <<END
#!/bin/sh
#SBATCH --nodes=2 --ntasks=4 --time=1 --signal=TERM@28 --requeue --open-mode=append
keep=$home/job.checkpoint
[ -s \$keep ] && resume="--resume \$keep"
srun --mpi=pmi2 ./ch12 --checkpoint \$keep --every 200 \$resume --data synthetic --epochs $epochs --save $home/job.st
code=\$?
echo "srun ended with \$code"
[ \$code -ne 130 ] || scontrol requeue \$SLURM_JOB_ID
exit \$code
END
start=$(now)
job=$(sbatch --parsable --output="$home/out" "$home/job.sh") || exit 1
quick --epochs "$epochs" --save "$home/whole.st"
for i in $(seq 900); do
    case $(squeue -h -j "$job" -o %T 2>/dev/null) in '' | COMPLETED | FAILED | TIMEOUT | CANCELLED) break ;; esac
    sleep 1
done
ms=$((($(now) - start) / 1000000)) code=$(scontrol show job "$job" | sed -n 's/.*ExitCode=\([0-9]*\):.*/\1/p')
limits=$(grep -c '^srun ended with 130' "$home/out")
why=
[ "$i" -lt 900 ] || { scancel "$job"; sleep 5; } # slurmd ends without its jobs
[ "$limits" -ge 3 ] || why="the job has met its limit $limits times, wanted 3"
cmp -s "$home/job.st" "$home/whole.st" || why="other weights than the undisturbed run's"
[ "$i" -lt 900 ] || why="has not ended after a quarter of an hour"
[ "$code" = 0 ] || why="must end with 0"
verdict "sbatch: $epochs epochs, $limits limits, the undisturbed run's weights" "$why"
}

for cases in ${CASES:-srun_cases limit_case}; do $cases; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
