#!/bin/sh
# Machines as they are found: little of everything, odd names, a clock that jumps, jobs that are stopped and continued, a link that goes
# down. Each time ch12 either ends in the weights that it has everywhere, or in one sentence that says what is wrong.
# Elsewhere: /dev/shm full or read-only, standard output lost (test_cli.sh); few processes, a small stack (test_fault.sh); locales
# (test_locale.c).
set -u
cd "$(dirname "$0")/.." || exit 1
top=$(pwd)
mpiexec=${MPIEXEC:-mpiexec}
dir=$(mktemp -d) || exit 1
space=dtrain$$-
trap 'rm -rf "$dir"; for i in 1 2; do ip netns del "$space$i" 2>/dev/null; done; rmdir "$group" 2>/dev/null' EXIT
passed=0 failed=0 group=/sys/fs/cgroup/cpu/dtrain_test_$$ epochs=2

good() { passed=$((passed + 1)); }
bad() {
    failed=$((failed + 1))
    printf 'FAILED  %s\n' "$1"
    head -n 5 "$dir/err" | sed 's/^/        stderr: /'
}
may() { "$@" >/dev/null 2>&1; }
# judge WHAT: the run that has just ended with $code must have been silent, and have the weights of $hash
judge() {
    found=$(sed -n 's/^sync .* weights \([0-9a-f]*\).*/\1/p' "$dir/out")
    if [ $code -eq 0 ] && [ ! -s "$dir/err" ] && [ "$found" = "$hash" ]; then good; else bad "$1: exit code $code, weights $found, wanted $hash"; fi
}
# trains WHAT COMMAND ...; says WHAT WORDS COMMAND ...: one sentence with these words, and an end that is not 0
trains() {
    what=$1
    shift
    timeout -k 1 30 "$@" --epochs $epochs >"$dir/out" 2>"$dir/err" </dev/null
    code=$?
    judge "$what"
}
says() {
    what=$1 words=$2
    shift 2
    timeout -k 1 30 "$@" >"$dir/out" 2>"$dir/err" </dev/null
    code=$?
    if [ $code -ne 0 ] && [ $code -ne 124 ] && [ "$(grep -c -F -e "$words" "$dir/err")" -eq 1 ]; then good; else bad "$what: exit code $code"; fi
}

mkdir -p "$dir/data/mnist"
build/tests/make_idx "$dir/data/mnist" 640 200 || { echo "0 passed, 1 failed"; exit 1; }
export DTRAIN_DATA="$dir/data"
ch12=$top/ch12
cd "$dir" || exit 1
"$ch12" --epochs 2 >one.txt && hash=$(sed -n 's/^sync .* weights \([0-9a-f]*\).*/\1/p' one.txt)
[ -n "$hash" ] || { echo "0 passed, 1 failed"; exit 1; }
: >err

# ---- little of something
may taskset -c 0 true && trains "five ranks on one core" taskset -c 0 "$mpiexec" -n 5 "$ch12"
if may mkdir "$group" && echo 20000 2>/dev/null >"$group/cpu.cfs_quota_us"; then   # a fifth of a core
    trains "a quota of a fifth of a core" sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$mpiexec" -n 3 "$ch12"
    rmdir "$group"
else echo "skipped: a CPU quota (no control group may be made)"; fi
trains "a stack of 256 KB" sh -c 'ulimit -s 256; exec "$@"' sh "$mpiexec" -n 3 "$ch12"
trains "48 open files" sh -c 'ulimit -n 48; exec "$@"' sh "$mpiexec" -n 3 "$ch12"
says "32 open files" "32 open files are too few for MPI, which takes 40" "$mpiexec" -n 3 sh -c 'ulimit -n 32; exec "$@"' sh "$ch12"
trains "processes may not read each other's memory" env UCX_TLS=^cma "$mpiexec" -n 3 "$ch12"
trains "messages by TCP alone" env UCX_TLS=tcp,self "$mpiexec" -n 3 "$ch12"

# ---- names and places
mkdir "ä b'c"
cp "$ch12" "ä b'c/"
cp -R data "ä b'c/da ta"
DTRAIN_DATA="$dir/ä b'c/da ta" trains "blanks and an umlaut in each path" "$mpiexec" -n 2 "./ä b'c/ch12" --save "ä b'c/né t" --csv "ä b'c/r w" --trace "ä b'c/t" --checkpoint "ä b'c/c k"
if [ "$(ls "ä b'c" | grep -c .)" -eq 6 ]; then good; else bad "blanks and an umlaut in each path: not all files are there"; fi
trains "no HOME, no TMPDIR, an unknown locale" env -u TMPDIR HOME=/nonexistent LC_ALL=xx_YY "$mpiexec" -n 2 "$ch12"
trains "no environment" env -i "PATH=$PATH" "DTRAIN_DATA=$DTRAIN_DATA" "$mpiexec" -n 2 "$ch12"
trains "no terminal" setsid "$mpiexec" -n 2 "$ch12"
trains "standard input closed" sh -c 'exec "$@" <&-' sh "$ch12"
"$ch12" --epochs 2 2>err | head -n 1 >out
if grep -q '^data ' out && { [ ! -s err ] || [ "$(grep -c '^standard output: not all' err)" -eq 1 ]; }; then good; else bad "| head -n 1"; fi
if may unshare -m mount -t tmpfs none /mnt; then
    mkdir fixed
    says "a folder that is read only" "cannot write it: Read-only file system" unshare -m sh -c 'mount -t tmpfs -o ro none fixed && cd fixed && exec "$@"' sh \
        "$mpiexec" -n 2 "$ch12" --save net.st
else echo "skipped: a folder that is read only (mounts are not allowed here)"; fi
if may unshare -un true; then
    trains "a host name that nobody knows, no network" unshare -un sh -c 'hostname nosuch.invalid; exec "$@"' sh "$mpiexec" -n 2 "$ch12"
else echo "skipped: host names (no namespace may be made)"; fi

# ---- the wall clock jumps by an hour, back and forth, at each look
cat >clock.c <<'END'
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    static int looks;
    const int code = (int)syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_REALTIME) t->tv_sec += 3600 * (looks++ % 3 - 1);
    return code;
}
time_t time(time_t *where) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (where) *where = t.tv_sec;
    return t.tv_sec;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    now->tv_sec = time(NULL), now->tv_usec = 0;
    return 0;
}
END
if gcc -shared -fPIC -o clock.so clock.c 2>err; then
    trains "a wall clock that jumps" "$mpiexec" -n 2 env LD_PRELOAD="$dir/clock.so" "$ch12"
    says "a rank killed while the wall clock jumps" "ended without saying goodbye" "$mpiexec" -n 2 env LD_PRELOAD="$dir/clock.so" "$top/build/tests/mpi/fault" sync kill 1 1
else bad "the clock's library"; fi

# ---- stopped and continued: the whole job, for longer than its patience; mpiexec alone
all_of() {
    ps -eo pid=,ppid= | awk -v job="$1" '{ parent[$1] = $2 }
        END { for (p in parent) for (q = p; q > 1; q = parent[q]) if (q == job) { printf "%s ", p; break } }'
}
"$ch12" --epochs 300 >one.txt && hash=$(sed -n 's/^sync .* weights \([0-9a-f]*\).*/\1/p' one.txt)
for whom in all mpiexec; do
    DTRAIN_PATIENCE=2 timeout 30 "$mpiexec" -n 3 "$ch12" --epochs 300 >out 2>err </dev/null &
    job=$!
    until [ -s out ] || ! kill -0 $job 2>/dev/null; do sleep 0.05; done
    sleep 0.2
    list=$(all_of $job)
    [ $whom = all ] || list=$(ps -o pid= --ppid $job)
    # shellcheck disable=SC2086  # a list of numbers
    kill -STOP $list && sleep 3 && kill -CONT $list 2>/dev/null
    wait $job
    code=$?
    judge "stopped and continued, $whom"
done

# ---- two hosts (namespaces of the network, messages by TCP): a link that loses what is sent, that comes back, and one that does not
host_of_a_job() { # mpiexec's "ssh": goes into the namespace of 10.77.0.1 or 10.77.0.2
    cat <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\${1##*.}
shift
exec ip netns exec "$space\$host" sh -c "\$*"
END
}
link() { ip -n "${space}1" link set eth0 "$1"; }
two_hosts() { # UCX finds the other one of two such namespaces unreachable in every second start, and MPI_Init says so
    for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
        a_job "$1"
        grep -q "Destination is unreachable" err || break
        wait $job
    done
}
a_job() {
    : >out
    DTRAIN_PATIENCE=${patience:-5} timeout -k 1 60 ip netns exec "${space}1" "$mpiexec" -launcher ssh -launcher-exec "$dir/go" -localhost 10.77.0.1 -hosts 10.77.0.1,10.77.0.2 \
        -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0 -n 2 "$ch12" --epochs "$1" >out 2>err </dev/null &
    job=$!
    until [ -s out ] || ! kill -0 $job 2>/dev/null; do sleep 0.05; done
    sleep 0.2
}
if command -v ip >/dev/null && may ip netns add "${space}1" && may ip netns add "${space}2" &&
   may ip link add eth0 netns "${space}1" type veth peer name eth0 netns "${space}2" && "$mpiexec" --version 2>/dev/null | grep -q HYDRA; then
    for i in 1 2; do
        ip -n "$space$i" link set eth0 addrgenmode none   # addresses of IPv6 are not ready at once
        ip -n "$space$i" addr add 10.77.0.$i/24 dev eth0
        ip -n "$space$i" link set eth0 up
        ip -n "$space$i" link set lo up
    done
    host_of_a_job >go
    chmod 755 go
    two_hosts 300
    for i in 1 2 3 4; do link down; sleep 0.05; link up; sleep 0.2; done
    link down
    sleep 1
    link up
    wait $job
    code=$?
    judge "two hosts, the link goes down and comes back"
    patience=1
    two_hosts 1000000
    link down
    wait $job
    code=$?
    if [ $code -ne 0 ] && [ $code -ne 124 ] && [ "$(grep -c "rank [01] (.*) is not heard from" err)" -eq 1 ]; then good; else bad "two hosts, the link goes down for good: exit code $code"; fi
else echo "skipped: two hosts with a link between them (no namespaces may be made, or no ip)"; fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
