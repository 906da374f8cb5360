#!/bin/sh
# ch12's command line as scripts rely on it: exit codes, one sentence on standard error from every launch, the CSV, --save.
# Data come from a temporary folder (tests/make_idx.c), named by DTRAIN_DATA.
set -u
cd "$(dirname "$0")/.." || exit 1
top=$(pwd)
ch12=$top/ch12
mpiexec=${MPIEXEC:-mpiexec}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0

good() { passed=$((passed + 1)); }
bad() { # what
    failed=$((failed + 1))
    printf 'FAILED  %s\n' "$1"
    [ ! -f "$dir/err" ] || head -n 5 "$dir/err" | sed 's/^/        stderr: /'
}

# launch RANKS COMMAND ...: 0 ranks is a plain start; leaves out, err and the exit code in $code
launch() {
    ranks=$1
    shift
    if [ "$ranks" -eq 0 ]; then timeout 10 "$@" >"$dir/out" 2>"$dir/err" </dev/null
    else timeout 10 "$mpiexec" -n "$ranks" "$@" >"$dir/out" 2>"$dir/err" </dev/null; fi
    code=$?
}

# refuses CODE WORDS ARGUMENTS ...: from every launch, one sentence that has the words
refuses() {
    want=$1 words=$2
    shift 2
    for ranks in 0 1 4; do
        launch $ranks "$ch12" "$@"
        if [ $code -ne "$want" ]; then bad "ch12 $* on $ranks ranks: exit code $code, wanted $want"
        elif [ "$(grep -c . "$dir/err")" -ne 1 ] || ! grep -qF -e "$words" "$dir/err"; then
            bad "ch12 $* on $ranks ranks: not one line with \"$words\" on standard error"
        elif grep -qE '^(sync|psgd|hogwild) |^data ' "$dir/out"; then bad "ch12 $* on $ranks ranks: went on after the error"
        else good; fi
    done
}

mkdir "$dir/data" "$dir/data/mnist" "$dir/nothing"
build/tests/make_idx "$dir/data/mnist" 640 200 || { echo "0 passed, 1 failed"; exit 1; }
files=$dir/data/mnist
cd "$dir/nothing" || exit 1          # no ./data here
DTRAIN_DATA=$dir/data
export DTRAIN_DATA

# ---- usage: 2
refuses 2 "--lr 0" --lr 0
refuses 2 "--batch -3" --batch -3
refuses 2 '"mars"' --data mars
refuses 2 "unknown option --frobnicate" --frobnicate
refuses 2 "--epochs needs a value" --epochs
refuses 2 "--epochs 2.5" --epochs 2.5
refuses 2 "--epochs 0" --epochs 0
refuses 2 "--lr nan" --lr nan
refuses 2 "--momentum -1" --momentum -1
refuses 2 "--method" --method magic
refuses 2 "--optimizer" --optimizer magic
refuses 2 "unexpected" surplus
refuses 2 "--batch 9999999999999" --batch 9999999999999

# ---- data: 1
refuses 1 "Fashion-MNIST" --data fashion
mv "$files/t10k-labels-idx1-ubyte" "$dir/kept"
refuses 1 "t10k-labels-idx1-ubyte" --data mnist
refuses 1 "t10k-labels-idx1-ubyte"
mv "$dir/kept" "$files/t10k-labels-idx1-ubyte"
mv "$files/train-images-idx3-ubyte" "$dir/kept"
head -c 100000 "$dir/kept" >"$files/train-images-idx3-ubyte"
refuses 1 "train-images-idx3-ubyte" --data mnist
mv "$files/train-labels-idx1-ubyte" "$dir/labels"
cp "$dir/labels" "$files/train-images-idx3-ubyte"
cp "$dir/kept" "$files/train-labels-idx1-ubyte"
refuses 1 "train-images-idx3-ubyte" --data mnist
mv "$dir/kept" "$files/train-images-idx3-ubyte"
mv "$dir/labels" "$files/train-labels-idx1-ubyte"
refuses 1 "/nowhere/at/all.csv" --epochs 1 --quiet --csv /nowhere/at/all.csv
refuses 1 "/nowhere/at/all.st" --epochs 1 --quiet --save /nowhere/at/all.st
printf 'other,columns\n' >"$dir/other.csv"
refuses 1 "other,columns" --epochs 1 --quiet --csv "$dir/other.csv"

# threads are for one process
launch 2 "$ch12" --method hogwild --threads 2
if [ $code -eq 2 ] && [ "$(grep -c . "$dir/err")" -eq 1 ]; then good; else bad "--method hogwild on 2 ranks: exit code $code"; fi

# ---- --help
for ranks in 0 3; do
    launch $ranks "$ch12" --help
    if [ $code -eq 0 ] && [ ! -s "$dir/err" ] && [ "$(grep -c -- '--momentum' "$dir/out")" -eq 1 ]; then good
    else bad "--help on $ranks ranks: exit code $code"; fi
done
for option in method threads data epochs batch lr momentum optimizer seed csv save quiet; do
    if grep -q -- "--$option" "$dir/out"; then good; else bad "--help does not name --$option"; fi
done

# ---- runs, and the CSV
header=method,workers,cores,dataset,epochs,batch,seconds,images_per_second,train_loss,test_loss,test_accuracy,weights_hash
number='[0-9][0-9]*\.[0-9][0-9]*'
csv=$dir/runs.csv
hashes=$dir/hashes
# runs RANKS METHOD WORKERS BATCH ARGUMENTS ...
runs() {
    ranks=$1 method=$2 workers=$3 batch=$4
    shift 4
    lines=$(grep -c . "$csv" 2>/dev/null)
    launch "$ranks" "$ch12" --method "$method" --epochs 2 --seed 5 --csv "$csv" "$@"
    row=$(tail -n 1 "$csv")
    if [ $code -ne 0 ] || [ -s "$dir/err" ]; then bad "$method, $workers workers: exit code $code"
    elif [ "$(head -n 1 "$csv")" != "$header" ]; then bad "CSV header: $(head -n 1 "$csv")"
    elif [ "$(grep -c . "$csv")" -ne $((${lines:-0} + 1 + (${lines:-0} == 0))) ]; then bad "$method, $workers workers: not one more row"
    elif ! echo "$row" | grep -q "^$method,$workers,[1-9][0-9]*,MNIST,2,$batch,$number,$number,$number,$number,[01]\.[0-9]*,[0-9a-f]\{16\}$"; then
        bad "$method, $workers workers: row $row"
    else good; fi
}
for p in 0 1 2 3 4 5; do runs $p sync $((p + (p == 0))) 128; tail -n 1 "$csv" | cut -d, -f10- >>"$hashes"; done
if [ "$(sort -u "$hashes" | grep -c .)" -eq 1 ]; then good; else bad "test loss, accuracy and weights_hash differ with the ranks"; fi
for p in 1 2 3; do runs $p psgd $p 128; done
for n in 1 2 3; do runs 0 hogwild $n 32 --threads $n; done
runs 2 sync 2 64 --batch 64 --lr 0.001 --optimizer adam
runs 2 sync 2 100 --batch 100 --lr 0.05 --momentum 0.9
launch 2 "$ch12" --epochs 1 --quiet
if [ $code -eq 0 ] && [ ! -s "$dir/out" ] && [ ! -s "$dir/err" ]; then good; else bad "--quiet is not quiet (exit code $code)"; fi

# a single --seed differs from another, and repeats itself
for seed in 5 5 6; do "$ch12" --epochs 1 --seed $seed --quiet --csv "$dir/seed.csv"; done
first=$(sed -n 2p "$dir/seed.csv" | cut -d, -f12) again=$(sed -n 3p "$dir/seed.csv" | cut -d, -f12) other=$(sed -n 4p "$dir/seed.csv" | cut -d, -f12)
if [ "$first" = "$again" ] && [ "$first" != "$other" ]; then good; else bad "--seed: $first, $again, $other"; fi

# ---- --save, and PyTorch
launch 2 "$ch12" --epochs 8 --batch 32 --quiet --save "$dir/net.safetensors" --csv "$dir/save.csv"
accuracy=$(tail -n 1 "$dir/save.csv" 2>/dev/null | cut -d, -f11)
if [ $code -eq 0 ] && [ -s "$dir/net.safetensors" ] && [ ! -e "$dir/net.safetensors.part" ]; then good; else bad "--save: exit code $code"; fi
python=python3
[ -x /usr/bin/python3 ] && python=/usr/bin/python3
theirs=$($python "$top/tests/check_saved.py" "$dir/net.safetensors" "$files" 2>"$dir/err")
code=$?
if [ $code -eq 77 ] || [ $code -eq 127 ]; then echo "skipped: --save in PyTorch (there is no python3 with torch)"
elif [ $code -eq 0 ] && [ "$theirs" = "$accuracy" ]; then good
else bad "--save: PyTorch ends with $code and scores $theirs, ch12 $accuracy"; fi

# ---- a clean end on a signal: 130, and the results so far
"$ch12" --epochs 1000000 >"$dir/out" 2>"$dir/err" </dev/null &
job=$!
sleep 1
kill -TERM $job
wait $job
code=$?
if [ $code -eq 130 ] && grep -q "stopped early" "$dir/out"; then good; else bad "SIGTERM: exit code $code"; fi

# ---- no data at all: synthetic digits, and says so
DTRAIN_DATA=$dir/nothing
launch 2 "$ch12" --epochs 1 --batch 512
if [ $code -eq 0 ] && grep -q "^data  *synthetic digits" "$dir/out"; then good; else bad "no data: exit code $code"; fi
refuses 1 "MNIST" --data mnist

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
