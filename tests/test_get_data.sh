#!/bin/sh
# make data (chapters/get_data.sh) for CIFAR-10, without the network: a curl that reaches nobody, and common copies made here.
# What comes from where, what is refused, and that a folder which is whole is left alone.
set -u
cd "$(dirname "$0")/.." || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0
good() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; cat "$dir/out"; }
mkdir -p "$dir/bin" "$dir/place/cifar10"
printf '#!/bin/sh\necho "$@" >>"%s/asked"\nexit 6\n' "$dir" >"$dir/bin/curl"
chmod +x "$dir/bin/curl"

# wants CODE WORDS ...: runs make data for that set, and looks for the words in what it says
wants() {
    code=$1
    shift
    PATH="$dir/bin:$PATH" DTRAIN_DATA_PLACES="$dir/none:$dir/place" sh chapters/get_data.sh "$dir/data" "${set:-cifar10}" >"$dir/out" 2>&1
    got=$?
    if [ "$got" -eq "$code" ] && grep -qF "$*" "$dir/out"; then good; else bad "code $got and not $code, or not \"$*\""; fi
}

wants 0 "CIFAR-10 is NOT there; no place has it"
if grep -q "cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" "$dir/asked" && [ ! -e "$dir/data/cifar10" ]; then good; else bad "the mirror was not asked"; fi

# an archive that is not the published one
echo no archive >"$dir/place/cifar10/cifar-10-binary.tar.gz"
wants 0 "cifar-10-binary.tar.gz in $dir/place/cifar10 is not the published file (its MD5 differs): not used"

# a common copy as JPEG: first one that unpacks one file too few, then a whole one
cat >"$dir/place/cifar10/unpack" <<'TEXT'
#!/bin/sh
mkdir -p "$1/cifar-10-batches-bin"
for i in ${FILES:-data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch}; do truncate -s 30730000 "$1/cifar-10-batches-bin/$i.bin"; done
TEXT
chmod +x "$dir/place/cifar10/unpack"
FILES="data_batch_1 test_batch"
export FILES
wants 0 "CIFAR-10 is NOT there"
unset FILES
wants 0 "these pixels went through JPEG once"
if [ -f "$dir/data/cifar10-jpeg/test_batch.bin" ] && [ ! -e "$dir/data/cifar10" ]; then good; else bad "not in cifar10-jpeg"; fi

# whole: left alone, nobody asked; not whole: made again
rm -f "$dir/asked" "$dir/place/cifar10/cifar-10-binary.tar.gz"
wants 0 "CIFAR-10 is complete in $dir/data/cifar10-jpeg"
if [ ! -e "$dir/asked" ] && ! grep -q unpacking "$dir/out"; then good; else bad "fetched again"; fi
truncate -s 30729999 "$dir/data/cifar10-jpeg/data_batch_3.bin"
wants 0 "unpacking it"

set=mars
wants 2 'no set is named "mars": mnist, fashion and cifar10 are'
if [ -z "$(find "$dir/data" -name '.incoming*')" ]; then good; else bad "left something behind"; fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
