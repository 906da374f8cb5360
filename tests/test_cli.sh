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
    if [ "$ranks" -eq 0 ]; then timeout 30 "$@" >"$dir/out" 2>"$dir/err" </dev/null
    else timeout 30 "$mpiexec" -n "$ranks" "$@" >"$dir/out" 2>"$dir/err" </dev/null; fi
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
refuses 2 "--csv and --save: each needs a file of its own" --csv same --save same
refuses 2 "--save and --trace: each needs a file of its own" --save same --csv other --trace same
refuses 2 "--csv and --epoch-csv: each needs a file of its own" --epoch-csv same --csv same
refuses 2 "--batch -3" --batch -3
refuses 2 "--png and --network go with --forecast" --png x
refuses 2 "--forecast trains for seconds only" --forecast --save x
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
refuses 2 '"magic" is not one of auto, naive, tree, ring, doubling, halving, mpi, shared' --algorithm magic
refuses 2 "--average-every 2.5" --method psgd --average-every 2.5
refuses 2 "--average-every goes with" --average-every 2e

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

# convolutions by their definition round otherwise
"$ch12" --epochs 1 --seed 5 --direct --quiet --csv "$dir/seed.csv"
direct=$(sed -n 5p "$dir/seed.csv" | cut -d, -f12)
if [ -n "$direct" ] && [ "$first" != "$direct" ]; then good; else bad "--direct: $first and $direct"; fi

# ---- --save, and PyTorch
launch 2 "$ch12" --epochs 8 --batch 32 --quiet --save "$dir/net.safetensors" --csv "$dir/save.csv"
accuracy=$(tail -n 1 "$dir/save.csv" 2>/dev/null | cut -d, -f11)
if [ $code -eq 0 ] && [ -s "$dir/net.safetensors" ] && [ ! -e "$dir/net.safetensors.part" ]; then good; else bad "--save: exit code $code"; fi
launch 0 "$top/infer" --load "$dir/net.safetensors"
theirs=$(sed -n 's/.* images are right: \([0-9.]*\) %,.*/\1/p' "$dir/out")
if [ $code -eq 0 ] && [ "$theirs" = "$(awk "BEGIN { printf \"%.2f\", 100 * ${accuracy:-0} }")" ]; then good
else bad "--save: infer ends with $code and scores ${theirs:-nothing}, ch12 $accuracy"; fi
python=python3
[ -x /usr/bin/python3 ] && python=/usr/bin/python3

# ---- infer --file: a file of IDX images, and one of them as a PNG, get the answers that --image gives; and what is refused
launch 0 "$top/infer" --load "$dir/net.safetensors" --image 8
said=$(sed -n 's/.*the net says \([0-9]\):.*/\1/p' "$dir/out") sure=$(awk -v row="${said:-x}" '{ for (i = 2; i < NF; ++i) if ($(i + 1) == "%" && $(i - 1) == row) printf "%.3f", $i / 100 }' "$dir/out")
launch 0 "$top/infer" --load "$dir/net.safetensors" --file "$files/t10k-images-idx3-ubyte"
images=$(sed -n 's/^data .* \([0-9]*\) test images: .*/\1/p' "$dir/out")
if [ $code -eq 0 ] && [ "$(grep -c '^ *[0-9]*  *[0-9]   ' "$dir/out")" = "$images" ] &&
    [ "$(awk -v n=8 '$1 == n && NF == 12 { print $2, $($2 + 3) }' "$dir/out")" = "$said $sure" ]; then good
else bad "infer --file: exit code $code, $(grep '^ *8 ' "$dir/out"); --image says $said, $sure"; fi
row=$(awk '$1 == 8 && NF == 12 { $1 = ""; print }' "$dir/out")
if $python - "$files/t10k-images-idx3-ubyte" 8 "$dir/eight.png" <<'END'
import struct, sys, zlib
pixels = open(sys.argv[1], "rb").read()[16 + 784 * int(sys.argv[2]):][:784]
rows = b"".join(b"\0" + pixels[y * 28:y * 28 + 28] for y in range(28))
chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
open(sys.argv[3], "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)) +
                              chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
END
then
    launch 0 "$top/infer" --load "$dir/net.safetensors" --file "$dir/eight.png"
    if [ $code -eq 0 ] && [ -n "$row" ] && [ "$(awk '$1 == 0 && NF == 12 { $1 = ""; print }' "$dir/out")" = "$row" ]; then good
    else bad "infer --file of a PNG: exit code $code, $(tail -n 1 "$dir/out"), not $row"; fi
    head -c 60 "$dir/eight.png" >"$dir/cut.png"
else echo "skipped: infer --file of a PNG (there is no python3)"; printf '\211PNG\r\n' >"$dir/cut.png"; fi
# refuses_file FILE WORDS: exit code 1, one sentence
refuses_file() {
    launch 0 timeout 10 "$top/infer" --load "$dir/net.safetensors" --file "$1"
    if [ $code -eq 1 ] && [ "$(grep -c . "$dir/err")" -eq 1 ] && grep -qF -e "$2" "$dir/err"; then good; else bad "infer --file $1: exit code $code, or not one line with \"$2\""; fi
}
head -c 2000 "$files/t10k-images-idx3-ubyte" >"$dir/cut.idx"
printf '\000\000\010\003\000\017\377\377\000\000\000\034\000\000\000\034' >"$dir/claims.idx" # a million images, and none
printf '\000\000\010\003\000\000\000\001\000\000\000\035\000\000\000\034' >"$dir/other.idx"
mkfifo "$dir/pipe"
refuses_file "$dir/cut.png" "cut.png: "
refuses_file "$dir/cut.idx" "does not hold the $images images that it says"
refuses_file "$dir/claims.idx" "does not hold the 1048575 images that it says"
refuses_file "$dir/other.idx" "1 images of 28 x 29 pixels; the net takes 28 x 28"
refuses_file "$files/t10k-labels-idx1-ubyte" "is neither a PNG nor a file of IDX images"
refuses_file "$dir/missing" "cannot open"
refuses_file "$dir/pipe" "is not a plain file"
refuses_file "$dir" "is not a plain file"
theirs=$($python "$top/tests/check_saved.py" "$dir/net.safetensors" "$files" 2>"$dir/err")
code=$?
if [ $code -eq 77 ] || [ $code -eq 127 ]; then echo "skipped: --save in PyTorch (there is no python3 with torch)"
elif [ $code -eq 0 ] && [ "$theirs" = "$accuracy" ]; then good
else bad "--save: PyTorch ends with $code and scores $theirs, ch12 $accuracy"; fi

# ---- the residual nets: with batch norm over the global batch the same bits on one rank and on two

launch 0 "$top/resnet9_cifar10" --data random --quick --save "$dir/one.st"
first=$code
launch 2 "$top/resnet9_cifar10" --data random --quick --save "$dir/two.st"
if [ "$first" -eq 0 ] && [ $code -eq 0 ] && cmp -s "$dir/one.st" "$dir/two.st" && grep -q '^the weights are the same on every rank$' "$dir/out"; then good
else bad "resnet9_cifar10 ends with $first and $code, or two ranks end in other weights than one"; fi
launch 0 "$top/resnet9_cifar10" --data random --quick --norm group --save "$dir/one.st"
first=$code
launch 2 "$top/resnet9_cifar10" --data random --quick --norm group --accumulate 3 --save "$dir/two.st"
if [ "$first" -eq 0 ] && [ $code -eq 0 ] && cmp -s "$dir/one.st" "$dir/two.st"; then good; else bad "resnet9_cifar10 --accumulate ends with $first and $code, or in other weights"; fi
launch 0 "$top/resnet9_cifar10" --data random --quick --accumulate 3
if [ $code -eq 2 ] && grep -q -- '--norm group is needed' "$dir/err"; then good; else bad "resnet9_cifar10 --accumulate over the batch ends with $code"; fi
launch 2 "$top/resnet9_cifar10" --data random --quick --one-over-p
if [ $code -eq 0 ] && grep -q '^the weights are the same on every rank$' "$dir/out"; then good; else bad "resnet9_cifar10 --one-over-p ends with $code"; fi
launch 0 "$top/wideresnet" --data synthetic --quick --images 256 --batch-size 64 --save "$dir/one.st"
first=$code
launch 2 "$top/wideresnet" --data synthetic --quick --images 256 --batch-size 32 --save "$dir/two.st"
if [ "$first" -eq 0 ] && [ $code -eq 0 ] && cmp -s "$dir/one.st" "$dir/two.st" && [ "$(grep -c . out/wideresnet-synthetic-*-b64-*.csv)" -eq 3 ]; then good
else bad "wideresnet ends with $first and $code, two ranks end in other weights than one, or its CSV has not two epochs"; fi
launch 2 "$top/wideresnet" --data synthetic --quick --images 256 --target-accuracy 0.01 --patience 1 --optimizer novograd --norm group --accumulate 2
if [ $code -eq 0 ] && grep -q '^target reached after 1 epoch' "$dir/out"; then good; else bad "wideresnet does not stop when the target is reached"; fi
for name in resnet9_cifar10 wideresnet; do
    launch 2 "$top/$name" --norm sometimes
    if [ $code -eq 2 ] && grep -qF -- "--norm: batch, rank or group is needed" "$dir/err"; then good; else bad "$name --norm sometimes ends with $code"; fi
    data=random
    [ $name = wideresnet ] && data=synthetic
    launch 2 "$top/$name" --data $data --quick --save same --checkpoint same
    if [ $code -eq 2 ] && grep -qF -- "--save and --checkpoint: each needs a file of its own" "$dir/err"; then good; else bad "$name --save same --checkpoint same ends with $code"; fi
done

# ---- the speedrun: the same weights for any number of threads, a row a seed, a picture; a validation keeps away from the test images
speedrun=$top/build/speedrun
weights() { grep '^seed  ' "$dir/out" | sed 's/.*weights //' | tr '\n' ' '; }
launch 0 "$speedrun" --quick
first=$(weights)
if [ $code -eq 0 ] && grep -q '^seed 1 on one thread: .* the same weights$' "$dir/out" && grep -q '^  scoring    on 200 test images, once' "$dir/out" &&
    [ "$(grep -c . out/speedrun_mnist_seeds.csv)" -eq 3 ] && [ -s out/speedrun_mnist.png ]; then good
else bad "speedrun ends with $code, or without rules, rows and picture"; fi
launch 0 "$speedrun" --quick --threads 3 --figures .
if [ $code -eq 0 ] && [ "$(weights)" = "$first" ] && [ "$(grep -c . speedrun_mnist_seeds.csv)" -eq 3 ]; then good; else bad "speedrun on three threads ends with $code, or in other weights"; fi
launch 0 "$speedrun" --quick --validate 140 --shift 2
if [ $code -eq 0 ] && grep -q '^  training   on 500 images' "$dir/out" && grep -q '^  scoring    on 140 training images held out: a validation' "$dir/out" &&
    [ "$(weights)" != "$first" ]; then good; else bad "speedrun --validate ends with $code, or looks at other images"; fi
launch 0 "$speedrun" --validate 640
if [ $code -eq 2 ] && grep -q -- '--validate: fewer than' "$dir/err"; then good; else bad "speedrun without training images ends with $code"; fi
launch 0 "$speedrun" --data mars
if [ $code -eq 2 ] && grep -q -- '--data: mnist' "$dir/err"; then good; else bad "speedrun --data mars ends with $code"; fi

# ---- --algorithm and --average-every in every trainer; the other programs' options
column() { tail -n 1 "$csv" | cut -d, -f12; }
for method in sync psgd; do
    runs 3 $method 3 128
    want=$(column)
    ways="tree ring mpi"
    [ $method = sync ] || ways="naive doubling halving shared"
    for a in $ways; do
        runs 3 $method 3 128 --algorithm $a
        if [ "$(column)" = "$want" ]; then good; else bad "$method by $a: other weights"; fi
    done
done
runs 3 psgd 3 128 --average-every 1e
by_epochs=$(column)
runs 3 psgd 3 128 --average-every 5     # 640 images: 5 steps of 48 a rank
if [ "$(column)" = "$by_epochs" ] && [ "$by_epochs" != "$want" ]; then good; else bad "--average-every 1e is not an epoch's 5 steps"; fi
launch 0 "$ch12" --method psgd --threads 2 --algorithm mpi
if [ $code -eq 2 ] && grep -q "is for processes" "$dir/err"; then good; else bad "--threads 2 --algorithm mpi: exit code $code"; fi
runs 2 sync 2 128 --per-rank-batch 64
together=$(column)
runs 2 sync 2 128 --batch 128
if [ "$(column)" = "$together" ]; then good; else bad "--per-rank-batch 64 on 2 ranks is not --batch 128"; fi

# says NAME WORDS RANKS ARGUMENTS ...: exit code 2, and one line with the words
says() {
    name=$1 words=$2 ranks=$3
    shift 3
    launch "$ranks" "$top/$name" "$@"
    if [ $code -eq 2 ] && [ "$(grep -c . "$dir/err")" -eq 1 ] && grep -qF -e "$words" "$dir/err"; then good
    else bad "$name $* on $ranks ranks: exit code $code, or not one line with \"$words\""; fi
}
for name in ch08 ch09; do
    says $name '"magic" is not one of' 0 --algorithm magic
    says $name '"magic" is not one of' 3 --algorithm magic
    says $name "--lr nan" 2 --lr nan
    says $name "--batch 0" 2 --batch 0
    says $name '"mars"' 2 --data mars
done
says ch07 "--png needs a value" 2 --png
says ch08 "lost-sum is the only one" 2 --bug other
says ch09 "--average-every 0" 2 --average-every 0
says ch09 "--average-every 1f" 0 --average-every 1f
says ch10 "--optimizer" 0 --optimizer magic
says ch10 "--workers" 0 --workers 1
launch 2 "$top/ch09" --quick --images 640 --average-every 1e --algorithm ring
if [ $code -eq 0 ] && grep -q "^5  *2 averages" "$dir/out"; then good; else bad "ch09 --average-every 1e: exit code $code"; fi
launch 3 "$top/ch08" --quick --data synthetic --algorithm doubling
if [ $code -eq 0 ] && grep -q "^exact sums.*one hash" "$dir/out"; then good; else bad "ch08 --algorithm doubling: exit code $code"; fi

# ---- the doctor in every program: several jobs of one rank, other settings, a host without the data
for name in ch07 ch08 ch09 ch12; do
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 launch 0 "$top/$name"
    if [ $code -eq 1 ] && [ "$(grep -c . "$dir/err")" -eq 1 ] && grep -q "^error: the launcher of Open MPI started 2 jobs of one rank.*type mpiexec.* -n 2 .*/$name$" "$dir/err"; then good
    else bad "$name under another MPI's launcher: exit code $code"; fi
done
#   one rank alone is told something: named before it does anything, whatever it is
# differs WORDS NAME ARGUMENTS ...: rank 0 is started with --epochs 1, rank 1 with these arguments
differs() {
    words=$1 name=$2
    shift 2
    launch 1 "$top/$name" --epochs 1 : -n 1 "$top/$name" "$@"
    if [ $code -eq 1 ] && [ "$(grep -c . "$dir/err")" -eq 1 ] && grep -q "^error: rank 1 (.*) was started $words; give all ranks one command line" "$dir/err" \
        && ! grep -q . "$dir/out"; then good
    else bad "$name --epochs 1 beside $name $*: exit code $code"; fi
}
differs "with --profile, rank 0 without it" ch12 --epochs 1 --profile
differs "with --trace $dir/alone.json, rank 0 without it" ch12 --epochs 1 --trace "$dir/alone.json"
differs "with --csv $dir/alone.csv, rank 0 without it" ch12 --epochs 1 --csv "$dir/alone.csv"
for option in doctor help report=x quiet frobnicate; do differs "with --$option, rank 0 without it" ch12 --epochs 1 --$option; done
differs "with --epochs 3, rank 0 with --epochs 1" ch12 --epochs 3
differs "without --epochs 1, rank 0 with it" ch12
differs "with --epochs 1 surplus, rank 0 with --epochs 1" ch12 --epochs 1 surplus
differs "with --lr 0.1, rank 0 without it" ch08 --epochs 1 --lr 0.1
differs "with --resume $dir/a, rank 0 without it" ch12 --epochs 1 --resume "$dir/a"
differs "with --every 5, rank 0 without it" ch12 --epochs 1 --every 5 --checkpoint "$dir/a"
differs "with --checkpoint $dir/a, rank 0 without it" wideresnet --epochs 1 --checkpoint "$dir/a"
differs "with --accumulate 3, rank 0 without it" resnet9_cifar10 --epochs 1 --accumulate 3
launch 1 "$ch12" --epochs 1 : -n 2 "$top/ch08" --epochs 1
if [ $code -eq 1 ] && [ "$(grep -c "^error: " "$dir/err")" -eq 1 ] && grep -q "^error: rank 0 (.*) was started with ch12, rank 1 with ch08; give all ranks one command line" "$dir/err"; then good
else bad "ch12 beside ch08: exit code $code"; fi
#   what may differ: how a rank waits, and which cores it may use
for how in "DTRAIN_PLACE=off" "DTRAIN_WAIT=sleep" "DTRAIN_WATCH=off" "taskset -c 0"; do
    other=$dir/elsewhere.csv # of another number of cores, perhaps
    rm -f "$other"
    launch 1 env $how "$ch12" --epochs 2 --seed 5 --csv "$other" : -n 2 "$ch12" --epochs 2 --seed 5 --csv "$other"
    if [ $code -eq 0 ] && [ "$(tail -n 1 "$other" | cut -d, -f12)" = "$together" ]; then good; else bad "$how on one rank of three: exit code $code"; fi
done
#   one set differs, by one pixel
mkdir "$dir/other"
for set in train t10k; do
    rm -rf "$dir/other/mnist"
    cp -R "$files" "$dir/other/mnist"
    printf '\377\000\377' | dd of="$dir/other/mnist/$set-images-idx3-ubyte" bs=1 seek=5000 conv=notrunc 2>/dev/null
    word=$([ $set = train ] && echo training || echo test)
    launch 1 "$ch12" --epochs 1 : -n 1 env "DTRAIN_DATA=$dir/other" "$ch12" --epochs 1
    if [ $code -eq 1 ] && [ "$(grep -c . "$dir/err")" -eq 1 ] && grep -q "^error: rank 1 (.*) reads other mnist $word data than the others" "$dir/err"; then good
    else bad "other $word data on one rank: exit code $code"; fi
done
#      the variables of a launcher of the same MPI, but no launcher: linking with another MPI is not what is wrong
launch 0 env PMI_SIZE=4 PMI_RANK=0 "$ch12" --doctor
if [ $code -eq 1 ] && [ "$(grep -c . "$dir/err")" -eq 1 ] \
    && grep -q "^error: .*/ch12 runs as one rank alone, though its environment says PMI_SIZE=4: .*; type mpiexec.* -n 4 .*/ch12, or unset PMI_SIZE$" "$dir/err"; then good
else bad "PMI_SIZE without a launcher: exit code $code"; fi
for which in mnist auto; do
    launch 1 env "DTRAIN_DATA=$dir/data" "$top/ch09" --data $which : -n 1 env "DTRAIN_DATA=$dir/nothing" "$top/ch09" --data $which
    if [ $code -ne 0 ] && [ "$(grep -c "^error" "$dir/err")" -eq 1 ] && grep -q "^error: rank 1: host .* does not have the data (mnist); type .make data." "$dir/err"; then good
    else bad "--data $which on one of two hosts: exit code $code"; fi
done

# ---- no room in /dev/shm: the same weights, and what to do
for room in ro size=64k; do
    if ! unshare -rm mount -t tmpfs -o $room none /dev/shm 2>/dev/null; then echo "skipped: /dev/shm (mounts are not allowed here)"; continue; fi
    timeout 60 unshare -rm sh -c "mount -t tmpfs -o $room none /dev/shm && \"\$@\"" sh "$mpiexec" -n 2 "$ch12" --epochs 2 --seed 5 --csv "$csv" >"$dir/out" 2>"$dir/err"
    code=$?
    if [ $code -eq 0 ] && [ "$(column)" = "$together" ]; then good; else bad "/dev/shm with $room: exit code $code, weights $(column)"; fi
    if [ $room = ro ] || grep -q "make room in /dev/shm" "$dir/out"; then good; else bad "/dev/shm with $room: no word about it"; fi
done

# ---- the doctor sees what crashed jobs have left in /dev/shm: two files; not one in use (a running program's), nor a new one
leftovers='mount -t tmpfs none /dev/shm && cp "$(command -v sleep)" /dev/shm/ucx_shm_posix_used && chmod 755 /dev/shm/ucx_shm_posix_used
head -c 3000000 /dev/zero >/dev/shm/mpich_shar_tmpAbCd && head -c 3000000 /dev/zero >/dev/shm/ucx_shm_posix_1f && : >/dev/shm/mine
touch -d "5 minutes ago" /dev/shm/* && : >/dev/shm/ucx_shm_posix_new
/dev/shm/ucx_shm_posix_used 60 & sleeper=$!
"$@"; code=$?; kill $sleeper; exit $code'
if ! unshare -rm mount -t tmpfs none /dev/shm 2>/dev/null; then echo "skipped: leftovers in /dev/shm (mounts are not allowed here)"
else
    timeout 60 unshare -rm sh -c "$leftovers" sh "$mpiexec" -n 2 "$ch12" --doctor >"$dir/out" 2>"$dir/err"
    code=$?
    if [ $code -eq 0 ] && [ "$(grep -c "^warning: host .*: 2 files of 6.0 MB in /dev/shm are left over from MPI jobs.* type rm -f /dev/shm/mpich_shar_tmp\* /dev/shm/ucx_shm_posix_\*$" "$dir/out")" -eq 1 ]
    then good; else bad "leftovers in /dev/shm: exit code $code"; fi
fi

# ---- --trace: JSON in which each rank has a name, and its intervals are not negative and lie in each other or apart
launch 3 "$ch12" --epochs 1 --trace "$dir/trace.json"
python=python3
if ! command -v $python >/dev/null 2>&1; then echo "skipped: --trace (there is no python3)"
elif $python "$top/tests/check_trace.py" "$dir/trace.json" 3 >"$dir/err" 2>&1; then good
else bad "--trace"; fi

# ---- a clean end on a signal: 130, and the results so far
# all_of JOB: the process numbers of a job, its launcher's and all that descend from it
all_of() {
    ps -eo pid=,ppid= | awk -v job="$1" '{ parent[$1] = $2 }
        END { for (p in parent) for (q = p; q > 1; q = parent[q]) if (q == job) { printf "%s ", p; break } }'
}
# underway: waits until $job has printed that it begins, and a moment longer
underway() {
    tries=0
    until [ -s "$dir/out" ] || [ $tries -gt 200 ]; do sleep 0.05; tries=$((tries + 1)); done
    sleep 0.3
}
# stops SIGNAL WORDS COMMAND ...; whom=all: every process of the job gets the signal, and not the launcher alone
stops() {
    signal=$1 words=$2
    shift 2
    : >"$dir/out"                           # not the one of the run before
    "$@" >"$dir/out" 2>"$dir/err" </dev/null &
    job=$!
    underway
    # shellcheck disable=SC2046  # a list of numbers
    if [ "$whom" = all ]; then kill -"$signal" $(all_of $job); else kill -"$signal" $job; fi
    from=$(date +%s)
    wait $job
    code=$?
    if [ $(($(date +%s) - from)) -gt 15 ]; then bad "$signal to $*: took $(($(date +%s) - from)) s"
    elif [ $code -eq 130 ] && grep -q "$words" "$dir/out"; then good; else bad "$signal to $whom $*: exit code $code"; fi
}
whom=launcher
stops TERM "stopped early" "$mpiexec" -n 2 "$ch12" --epochs 1000000 --csv "$dir/stopped.csv"
if [ "$(grep -c "^sync,2," "$dir/stopped.csv" 2>/dev/null)" -eq 1 ]; then good; else bad "no row of a run that was stopped"; fi
stops TERM "stopped early" "$mpiexec" -n 1 "$ch12" --epochs 1000000
stops INT "stopped early" "$mpiexec" -n 1 "$ch12" --epochs 1000000
whom=all
stops TERM "stopped early" "$mpiexec" -n 2 "$ch12" --epochs 1000000
stops INT "stopped early" "$mpiexec" -n 1 "$ch12" --epochs 1000000
#   as on a busy machine: a rank is slow to end, and meanwhile mpiexec passes on what each process has had 0.8 s before
: >"$dir/out"
"$mpiexec" -n 2 "$ch12" --epochs 1000000 >"$dir/out" 2>"$dir/err" </dev/null &
job=$!
underway
slow=$(ps -eo pid=,ppid= | awk -v job=$job '{ parent[$1] = $2 } END { for (p in parent) if (parent[parent[parent[p]]] == job) rank = p; print rank }')
kill -STOP $job "$slow"
# shellcheck disable=SC2046  # a list of numbers
kill -TERM $(all_of $job)
sleep 0.8
kill -CONT $job
sleep 0.3
kill -CONT "$slow"
wait $job
code=$?
if [ $code -eq 130 ] && grep -q "stopped early" "$dir/out"; then good; else bad "TERM to all, and late by mpiexec: exit code $code"; fi
whom=launcher
stops TERM "^stopped early" "$mpiexec" -n 2 "$top/ch08" --data synthetic --epochs 1000000 --png "$dir/x.png"
stops TERM "^stopped early" "$mpiexec" -n 2 "$top/ch09" --images 640 --epochs 10000 --png "$dir/x"
stops TERM "^stopped early" "$top/ch10" --images 640 --png "$dir/x"
: >"$dir/out"
"$ch12" --epochs 1000000 >"$dir/out" 2>"$dir/err" </dev/null &
job=$!
underway
kill -TERM $job
wait $job
code=$?
if [ $code -eq 130 ] && grep -q "stopped early" "$dir/out"; then good; else bad "SIGTERM: exit code $code"; fi

# ---- output files: asked for before the work, written through links and devices, in no one's way
refuses 1 "/nowhere/at/all.st: cannot write it: No such file or directory" --epochs 1000000 --quiet --save /nowhere/at/all.st
refuses 1 "/nowhere/at/all.json" --epochs 1000000 --quiet --trace /nowhere/at/all.json
refuses 1 "/nowhere/at/all.csv" --epochs 1000000 --quiet --csv /nowhere/at/all.csv
refuses 1 "/nowhere/at/all.csv" --epochs 1000000 --quiet --epoch-csv /nowhere/at/all.csv
refuses 1 "other,columns" --epochs 1000000 --quiet --csv "$dir/other.csv"
refuses 1 "cannot write it" --epochs 1000000 --quiet --save ""
says_first() { # NAME WORDS ARGUMENTS ...: exit code 1 and the words, before anything is measured
    name=$1 words=$2
    shift 2
    launch 0 "$top/$name" "$@"
    if [ $code -eq 1 ] && [ "$(grep -c . "$dir/err")" -eq 1 ] && [ ! -s "$dir/out" ] && grep -qF -e "$words" "$dir/err"; then good
    else bad "$name $*: exit code $code, or not at once one line with \"$words\""; fi
}
for name in ch01 ch02 ch03 ch04 ch05 ch06; do says_first $name "/nowhere/$name" --figures /nowhere; done
for option in save checkpoint; do
    says_first resnet9_cifar10 "/nowhere/x: cannot write it" --data random --$option /nowhere/x
    says_first wideresnet "/nowhere/x: cannot write it" --data synthetic --$option /nowhere/x
    says_first ch12 "/nowhere/x: cannot write it" --$option /nowhere/x
done
says_first ch07 "/nowhere/x.png" --png /nowhere/x.png
says_first ch08 "/nowhere/x.png" --png /nowhere/x.png
says_first ch09 "/nowhere/x" --png /nowhere/x
says_first ch10 "/nowhere/x" --png /nowhere/x
says_first cpp_app "/nowhere/x.st" /nowhere/x.st
mkdir "$dir/real"
: >"$dir/real/net.st"
: >"$dir/real/trace.json"
chmod 640 "$dir/real/net.st"
ln -s real/net.st "$dir/link.st"
ln -s real/trace.json "$dir/link.json"
echo mine >"$dir/real/net.st.part"
launch 2 "$ch12" --epochs 1 --quiet --save "$dir/link.st" --trace "$dir/link.json"
if [ $code -eq 0 ] && [ -L "$dir/link.st" ] && [ -L "$dir/link.json" ] && [ -s "$dir/real/net.st" ] && [ -s "$dir/real/trace.json" ] &&
   [ "$(cat "$dir/real/net.st.part")" = mine ] && [ "$(ls "$dir/real" | grep -c .)" -eq 3 ] && [ "$(ls -l "$dir/real/net.st" | cut -c1-10)" = -rw-r----- ]; then good
else bad "--save and --trace through links: exit code $code"; fi
launch 0 "$ch12" --epochs 1 --quiet --save /dev/null
if [ $code -eq 0 ] && [ -c /dev/null ]; then good; else bad "--save /dev/null: exit code $code"; fi
launch 0 "$ch12" --epochs 1 --quiet --save /dev/full
if [ $code -eq 1 ] && grep -q "^/dev/full: cannot write it: No space left on device" "$dir/err"; then good; else bad "--save /dev/full: exit code $code"; fi
launch 2 "$ch12" --epochs 1 --quiet --checkpoint /dev/full
if [ $code -eq 0 ] && [ "$(grep -c . "$dir/err")" -eq 1 ] && grep -q "^/dev/full: cannot write it: No space left on device; training went on" "$dir/err"; then good
else bad "--checkpoint /dev/full: exit code $code, or not one line about it"; fi
mkfifo "$dir/unread"
for option in csv epoch-csv save trace; do
    launch 0 "$ch12" --epochs 1 --quiet --$option "$dir/unread"
    if [ $code -eq 1 ] && grep -q "^$dir/unread: cannot write it: it is a pipe that nobody reads" "$dir/err"; then good; else bad "--$option to a pipe that nobody reads: exit code $code"; fi
done

# ---- --report: counts that no int holds are no row of ch12
launch 0 "$ch12" --report "$top/tests/fuzz/seeds/rows/2.csv"
if [ $code -eq 1 ] && grep -q "rows/2.csv: line 2 is not a row of ch12" "$dir/err"; then good; else bad "--report of 1e32 cores: exit code $code"; fi

# ---- --forecast: nothing is faster than Amdahl's bound, nor P ranks than P times; the pictures; the rows of --csv, and their report
timeout 60 "$mpiexec" -n 2 "$ch12" --forecast --data synthetic --png "$dir/forecast" --csv "$dir/checks.csv" >"$dir/out" 2>"$dir/err" </dev/null
code=$?
if [ $code -eq 0 ] && [ -s "$dir/forecast_strong.png" ] && [ -s "$dir/forecast_weak.csv" ] && [ "$(grep -cE '^(sync|local) +(ring|doubling|halving) ' "$dir/out")" -eq 6 ] &&
    awk '/^Strong/ { kind = 1 } /^The same/ { kind = 2 } /^Weak/ { kind = 3 } /^Tsync/ { kind = 4 }
        $1 + 0 == 0 { next }
        kind == 1 { for (i = 4; i <= NF; ++i) if ($i > $3 * 1.02 + 0.06) exit 1; rows++; strong[$1] = $0 }
        kind == 2 { split(strong[$1], s); for (i = 2; i <= NF; ++i) if ($i < s[i + 2]) exit 1; rows++ }
        kind == 3 { for (i = 2; i <= NF; ++i) if ($i > $1 * 1.001) exit 1; rows++ }
        END { exit rows != 33 }' "$dir/out"; then good; else bad "--forecast: exit code $code"; fi
launch 0 "$ch12" --forecast --report "$dir/checks.csv" --png "$dir/forecast"
if [ $code -eq 0 ] && grep -q " of 6 forecasts of a step's time are within 15 %" "$dir/out" && [ -s "$dir/forecast_check.png" ]; then good; else bad "--forecast --report: exit code $code"; fi
launch 0 "$ch12" --forecast --report "$csv"
if [ $code -eq 1 ] && grep -q "not a file of ch12 --forecast --csv" "$dir/err"; then good; else bad "--forecast --report of runs: exit code $code"; fi

# ---- standard output that is lost: a full device, a closed one, a reader that went away
mkfifo "$dir/gone"
exec 3<>"$dir/gone" 4>"$dir/gone" 3>&-     # a pipe whose reader has gone
lost() { # NAME ARGUMENTS ...
    for way in full closed gone; do
        case $way in
            full) timeout 60 "$@" >/dev/full 2>"$dir/err" </dev/null; code=$? ;;
            closed) timeout 60 "$@" >&- 2>"$dir/err" </dev/null; code=$? ;;
            gone) timeout 60 "$@" >&4 2>"$dir/err" </dev/null; code=$? ;;
        esac
        if [ "$code" -eq 1 ] && [ "$(grep -c "^standard output: not all that was printed could be written" "$dir/err")" -eq 1 ]; then good
        else bad "$* with its output $way: exit code $code"; fi
    done
}
lost "$ch12" --epochs 1
lost "$ch12" --doctor
lost "$ch12" --help
lost "$ch12" --report "$csv"
lost "$top/infer" --load "$dir/net.safetensors"
for name in ch01 ch02 ch03 ch04 ch05 ch06 ch07 ch08 ch09 ch10 lenet_mnist resnet9_cifar10 wideresnet infer; do lost "$top/$name" --help; done
lost "$top/ch01" --quick --figures "$dir"
lost "$top/lenet_mnist" --quick --images 128
launch 0 sh -c '"$@" >&-' sh "$ch12" --epochs 1 --quiet
if [ $code -eq 0 ] && [ ! -s "$dir/err" ]; then good; else bad "--quiet has nothing to lose: exit code $code"; fi
launch 0 sh -c '"$@" >&-' sh "$ch12" --epochs 1 --quiet --save "$dir/closed.st"
if [ $code -eq 0 ] && "$top/infer" --load "$dir/closed.st" >/dev/null; then good; else bad "--save with standard output closed: exit code $code"; fi
exec 4>&-
for program in dropin cpp_app; do
    timeout 60 "$top/$program" >/dev/full 2>"$dir/err"
    code=$?
    if [ $code -eq 1 ] && grep -q "^standard output" "$dir/err"; then good; else bad "$program >/dev/full: exit code $code"; fi
done

# ---- what $DTRAIN_DATA names is asked for: if it holds nothing, what is there, also with --quiet; its names may have dots
mkdir "$dir/zipped" "$dir/zipped/mnist" "$dir/dotted" "$dir/dotted/mnist"
for name in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do
    gzip -c "$files/$name" >"$dir/zipped/mnist/$name.gz"
    cp "$files/$name" "$dir/dotted/mnist/$(echo $name | sed s/-idx/.idx/)"
done
DTRAIN_DATA=$dir/zipped
refuses 1 "only there as gzip files in $dir/zipped/mnist: unpack them with gunzip" --epochs 1
refuses 1 "unpack them with gunzip" --epochs 1 --quiet
DTRAIN_DATA=$dir/nothing/such
refuses 1 "no MNIST or Fashion-MNIST in DTRAIN_DATA=$dir/nothing/such (No such file or directory)" --epochs 1 --quiet
DTRAIN_DATA=$dir
refuses 1 "(it holds " --epochs 1
DTRAIN_DATA=$dir/dotted
launch 2 "$ch12" --epochs 1 --batch 512
if [ $code -eq 0 ] && grep -q "^data  *MNIST, 640 images: $dir/dotted/mnist" "$dir/out"; then good; else bad "dotted names: exit code $code"; fi
rm "$dir/dotted/mnist/t10k-images.idx3-ubyte"
mkfifo "$dir/dotted/mnist/t10k-images.idx3-ubyte"
refuses 1 "t10k-images.idx3-ubyte is not a plain file but a pipe" --epochs 1

# ---- no data at all: synthetic digits, and says so
unset DTRAIN_DATA
launch 2 "$ch12" --epochs 1 --batch 512
if [ $code -eq 0 ] && grep -q "^data  *synthetic digits" "$dir/out"; then good; else bad "no data: exit code $code"; fi
refuses 1 "MNIST" --data mnist

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
