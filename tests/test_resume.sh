#!/bin/sh
# Runs that are killed, and go on: kill -9 at random moments, then another number of ranks; ranks killed under chapters/elastic.sh.
# Each must end in the hash of the run that nobody disturbed.
#
#   sh tests/test_resume.sh            KILLS=1 of each net and ELASTIC=1 under elastic.sh; EPOCHS=6; SEED says which moments
cd "$(dirname "$0")/.." || exit 2
MPIEXEC=$(command -v mpiexec.mpich || echo mpiexec)
export MPIEXEC
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
KILLS=${KILLS:-1} ELASTIC=${ELASTIC:-1} EPOCHS=${EPOCHS:-6} passed=0 failed=0 state=${SEED:-$(date +%s)}
echo "SEED=$state"
random() { state=$(((state * 1103515245 + 12345) % 2147483648)); number=$((state / 65536 % $1)); } # 0..$1-1
nap() { sleep "$(awk "BEGIN { print $1 / 1000 }")"; }
good() { passed=$((passed + 1)); echo "ok     $*"; }
bad() { failed=$((failed + 1)); echo "FAILED $*"; tail -n 5 "$work"/*.txt; }

# The processes below one, itself included.
below() {
    echo "$1"
    for of in $(pgrep -P "$1"); do below "$of"; done
}

# net RANKS MORE ...; wide RANKS MORE ...: what is trained; ends with its hash, in $hash
net() {
    ranks=$1; shift
    $MPIEXEC -n "$ranks" ./ch12 --data synthetic --epochs "$EPOCHS" --save "$work/net.st" --quiet "$@" >"$work/net.txt" 2>&1
}
wide() { # a global batch of 64
    ranks=$1; shift
    $MPIEXEC -n "$ranks" ./wideresnet --data synthetic --quick --width 4 --images "${IMAGES:-4096}" --batch-size $((64 / ranks)) --augment --optimizer novograd \
        --base-lr 0.002 --warmup-epochs 3 --target-accuracy 0.99 --save "$work/wide.st" "$@" >"$work/wide.txt" 2>&1
}
hash_of() { cksum <"$work/$1.st"; }

# Each epoch has one row in wideresnet's CSV, in order.
rows() { [ "$(tail -n +2 out/wideresnet-synthetic-novograd-w4-b64-*.csv | cut -d, -f1 | tr '\n' ' ')" = "1 2 " ]; }

# moment FILE JOB MOST: up to MOST ms; three times of four counted from a new checkpoint on, else from now
moment() {
    before=$(cksum "$1" 2>/dev/null)
    random 4
    if [ "$number" -gt 0 ]; then
        while [ "$(cksum "$1" 2>/dev/null)" = "$before" ] && kill -0 "$2" 2>/dev/null; do sleep 0.02; done
    fi
    random "$3"
    nap "$number"
}

# killed WHAT MOST RANKS ...: -9 to all of a job's processes at a moment drawn by lot, then other ranks go on
killed() {
    what=$1 most=$2
    shift 2
    random $#; at=$number
    eval "first=\${$((at + 1))}"
    random $(($# - 1)); eval "second=\${$(((at + 1 + number) % $# + 1))}"
    rm -f "$work/$what.ck" "$work/$what.st"
    $what "$first" --checkpoint "$work/$what.ck" --every 7 &
    job=$!
    moment "$work/$what.ck" "$job" "$most"
    # shellcheck disable=SC2046
    kill -9 $(below "$job") 2>/dev/null
    wait "$job" 2>/dev/null
    resume='' from=the\ start
    [ -s "$work/$what.ck" ] && resume="--resume $work/$what.ck" from=a\ checkpoint
    # shellcheck disable=SC2086
    if $what "$second" $resume && [ "$(hash_of $what)" = "$(cat "$work/$what.whole")" ] && { [ $what = net ] || rows; }; then
        good "$what: $first ranks killed, $second went on from $from to the same bits"
    else bad "$what: $first ranks killed, $second ranks from $from: $(hash_of $what) is not $(cat "$work/$what.whole"), or an epoch has not one row"; fi
}

for what in net wide; do
    $what 2 || bad "$what: the undisturbed run"
    hash_of $what >"$work/$what.whole"
done
for k in $(seq "$KILLS"); do
    killed net "${MOST:-1000}" 1 2 3 5
    killed wide "${MOST:-150}" 1 2 4
done

# A run whose checkpoint stands before what its last epoch ends with, the row in the CSV, which is there already.
rm -f "$work/wide.ck"
if wide 2 --checkpoint "$work/wide.ck" && rows && wide 1 --resume "$work/wide.ck" && rows && [ "$(hash_of wide)" = "$(cat "$work/wide.whole")" ]; then
    good "wide: one row an epoch when the last one is ended again, on other ranks"
else bad "wide: not one row an epoch: $(cut -d, -f1 out/wideresnet-synthetic-novograd-w4-b64-*.csv | tr '\n' ' ')"; fi

# The job of elastic.sh, of which ranks' processes are killed, one at a time. Down to two ranks there is one less after each.
rm -f "$work/net.st"
RANKS=$((ELASTIC < 4 ? ELASTIC + 1 : 5)) LEAST=$((ELASTIC < 4 ? 1 : 2)) TIMES=$((2 * ELASTIC)) EVERY=5 CHECKPOINT="$work/elastic.ck" sh chapters/elastic.sh \
    --data synthetic --epochs "$EPOCHS" --save "$work/net.st" --quiet >"$work/elastic.txt" 2>&1 &
job=$! done=0
while [ "$done" -lt "$ELASTIC" ] && kill -0 "$job" 2>/dev/null; do
    moment "$work/elastic.ck" "$job" "${MOST:-400}"
    # the processes that mpiexec started: with each ends its rank, which is a child of it
    ranks=$(for pid in $(below "$job"); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = hydra_pmi_proxy ] && pgrep -P "$pid" -x ch12
    done)
    count=$(echo "$ranks" | grep -c .)
    [ "$count" -eq 0 ] && continue
    random "$count"
    kill -9 "$(echo "$ranks" | sed -n "$((number + 1))p")" 2>/dev/null && done=$((done + 1))
done
wait "$job"
code=$?
starts=$(grep -c '^elastic: code' "$work/elastic.txt")
if [ "$code" -eq 0 ] && [ "$(hash_of net)" = "$(cat "$work/net.whole")" ] && [ "$done" -gt 0 ] && [ "$starts" -gt 0 ]; then
    good "elastic: $done kills, $starts new starts, the same bits"
else bad "elastic: code $code, $done kills, $starts new starts, $(hash_of net) is not $(cat "$work/net.whole")"; fi

# Hosts, all of them this machine under a name each, by a launcher in ssh's place: c is gone from the start, b goes away with its rank.
cat >"$work/ssh" <<'END'
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
grep -qx "$host" "$GONE" && exit 255
exec sh -c "$*"
END
chmod +x "$work/ssh"
if $MPIEXEC --version 2>/dev/null | grep -q HYDRA; then
    rm -f "$work/net.st"
    echo c >"$work/gone"
    GONE="$work/gone" HOSTS="a:2 b c" MPIEXEC="$MPIEXEC -launcher ssh -launcher-exec $work/ssh" EVERY=5 CHECKPOINT="$work/hosts.ck" sh chapters/elastic.sh \
        --data synthetic --epochs "$EPOCHS" --save "$work/net.st" --quiet >"$work/hosts.txt" 2>&1 &
    job=$!
    while [ ! -s "$work/hosts.ck" ] && kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    echo b >>"$work/gone"
    kill -9 "$(pgrep -f "^\./ch12 .*$work/net.st" | sort -n | head -n 1)" # what mpiexec started; its rank ends with it
    wait "$job"
    code=$?
    if [ "$code" -eq 0 ] && [ "$(hash_of net)" = "$(cat "$work/net.whole")" ] && [ "$(grep -c 'does not answer: left out' "$work/hosts.txt")" -eq 2 ] &&
        grep -q 'host c does not answer' "$work/hosts.txt" && grep -q '^elastic: code .*; start 2, 2 ranks, from' "$work/hosts.txt"; then
        good "elastic: of three hosts one was not there and one went away; the two ranks of the third ended in the same bits"
    else bad "elastic: hosts: code $code, $(cat "$work/hosts.txt")"; fi
else echo "skipped: hosts that go away (that is tried with MPICH's launcher)"; fi

# What would fail for ever ends; what is wrong with the command line is not tried again.
EVERY=5 CHECKPOINT="$work/no.ck" sh chapters/elastic.sh --data synthetic --lr x >"$work/out" 2>&1
[ $? -eq 2 ] && good "elastic: a wrong option ends it" || bad "elastic: a wrong option"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
