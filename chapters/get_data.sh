#!/bin/sh
# make data: puts MNIST, Fashion-MNIST and CIFAR-10 into ./data/mnist, ./data/fashion and ./data/cifar10 as plain files.
#
#   get_data.sh [folder [set ...]]      folder: instead of ./data beside the Makefile; sets: mnist fashion cifar10, default all
#
# Each file of MNIST and Fashion-MNIST comes from the first place that has it right, plain or with gzip:
#   1. the folder itself: what is there and right stays untouched
#   2. ../shared/data, a class's common copy beside the checkout
#   3. /usr/share/datasets, Debian's package dataset-fashion-mnist
#   4. the public mirrors, with curl
# "Right" is a SHA-256 sum of the plain file. A set is moved into place when all four files are right, never in part.
# CIFAR-10 comes whole: as cifar-10-binary.tar.gz, whose MD5 sum is published, from the same places and the mirror. Where a
# common copy holds CIFAR-10 as JPEG with a program "unpack" beside it, that is taken before the mirror is asked; its pixels
# are nearly those of the original, and so it goes into ./data/cifar10-jpeg: programs print the folder that they read.
# Ends with 1 if MNIST could not be completed. Another set missing is only reported: nothing needs it unasked.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
data=${1:-$root/data}
[ $# -gt 1 ] && shift && wanted=$* || wanted="mnist fashion cifar10"
places=${DTRAIN_DATA_PLACES-"$root/../shared/data:/usr/share/datasets"} # for tests: other places, split at colons
mirrors_of_mnist="https://ossci-datasets.s3.amazonaws.com/mnist https://storage.googleapis.com/cvdf-datasets/mnist"
mirrors_of_fashion="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
mirrors_of_cifar10="https://www.cs.toronto.edu/~kriz"

sums_of_mnist="\
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5 train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7 t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2 t10k-labels-idx1-ubyte"
sums_of_fashion="\
c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888 train-images-idx3-ubyte
bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9 train-labels-idx1-ubyte
5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b t10k-images-idx3-ubyte
0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34 t10k-labels-idx1-ubyte"

archive_of_cifar10=cifar-10-binary.tar.gz
md5_of_cifar10=c32a1d4ab5d03f1284b67883e8d87530

say() { echo "make data: $*"; }

sha256() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum <"$1"
    elif command -v shasum >/dev/null 2>&1; then shasum -a 256 <"$1"
    else openssl dgst -sha256 -r <"$1"
    fi | cut -c1-64
}
right() { [ -f "$1" ] && [ "$(sha256 "$1")" = "$2" ]; } # file  sum

# Everything is gathered here and only moved out whole; a second make data at the same time has a folder of its own.
mkdir -p -- "$data" || exit 1
stage=$data/.incoming.$$
trap 'rm -rf -- "$stage"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP PIPE

dead= # mirrors that did not answer: not asked for every file again

# A file that is already on this machine, plain or with gzip.  file  sum  folder
copy_from() {
    if [ -f "$3/$1" ]; then
        cp -- "$3/$1" "$stage/$1" 2>/dev/null
    elif [ -f "$3/$1.gz" ]; then
        gzip -dc <"$3/$1.gz" >"$stage/$1" 2>/dev/null
    else
        return 1
    fi
    if right "$stage/$1" "$2"; then
        say "$set/$1 from $3"
        return 0
    fi
    say "$set/$1 in $3 is not the published file (its SHA-256 differs): not used"
    return 1
}

copy_from_places() { # file  sum
    old_ifs=$IFS
    IFS=:
    # shellcheck disable=SC2086  # split at the colons
    set -- "$1" "$2" $places
    IFS=$old_ifs
    file=$1
    sum=$2
    shift 2
    for place in "$@"; do
        for folder in $folders; do
            copy_from "$file" "$sum" "$place/$folder" && return 0
        done
    done
    return 1
}

download() { # file  sum
    command -v curl >/dev/null 2>&1 || { dead="$dead no-curl"; return 1; }
    for mirror in $mirrors; do
        case " $dead " in *" $mirror "*) continue ;; esac
        # 20 s to connect; given up below 1 kB/s for 30 s. Only a 404 or the like is worth asking for the next file.
        curl -fsSL --connect-timeout 20 --speed-limit 1000 --speed-time 30 -o "$stage/$1.gz" "$mirror/$1.gz"
        status=$?
        if [ "$status" -ne 0 ]; then
            [ "$status" -eq 22 ] || dead="$dead $mirror"
            continue
        fi
        gzip -dc <"$stage/$1.gz" >"$stage/$1" 2>/dev/null
        rm -f -- "$stage/$1.gz"
        if right "$stage/$1" "$2"; then
            say "$set/$1 from $mirror"
            return 0
        fi
        say "$set/$1 from $mirror is not the published file (its SHA-256 differs): not used"
    done
    return 1
}

# Completes one set in $data/$set.  set  name  folders it goes by elsewhere  mirrors  sums
fetch_set() {
    set=$1
    name=$2
    folders=$3
    mirrors=$4
    sums=$5
    lacking=
    mkdir -p -- "$stage" || return 1
    while read -r sum file; do
        right "$data/$set/$file" "$sum" && continue
        [ -e "$data/$set/$file" ] && say "$set/$file is there, but is not the published file: to be replaced"
        copy_from_places "$file" "$sum" || download "$file" "$sum" || lacking="$lacking $file"
    done <<SUMS
$sums
SUMS
    if [ -n "$lacking" ]; then
        say "$name is NOT complete; no place has:$lacking" >&2
        rm -rf -- "$stage"
        return 1
    fi
    mkdir -p -- "$data/$set" || return 1
    for file in "$stage"/*-ubyte; do
        [ -e "$file" ] || break # nothing was missing
        chmod 644 "$file" && mv -f -- "$file" "$data/$set/" || return 1
    done
    rm -rf -- "$stage"
    say "$name is complete in $data/$set"
}

# CIFAR-10: six files of 10 000 records of 3073 bytes.  folder
whole_cifar10() {
    for file in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
        [ -f "$1/$file.bin" ] && [ "$(wc -c <"$1/$file.bin")" -eq 30730000 ] || return 1
    done
}

# The published archive, if it is that: unpacked into $stage.  file  where it is from
unpack_cifar10() {
    if command -v md5sum >/dev/null 2>&1; then sum=$(md5sum <"$1"); else sum=$(openssl dgst -md5 -r <"$1"); fi
    case $sum in
    $md5_of_cifar10*) tar -C "$stage" -xzf "$1" && whole_cifar10 "$stage/cifar-10-batches-bin" && say "cifar10 from $2" ;;
    *) say "$archive_of_cifar10 in $2 is not the published file (its MD5 differs): not used"; return 1 ;;
    esac
}

# What was gathered in $stage takes its place.  folder's name
place_cifar10() {
    for file in "$stage"/cifar-10-batches-bin/*.bin; do chmod 644 "$file" || return 1; done
    mkdir -p -- "$data/$1" && mv -f -- "$stage"/cifar-10-batches-bin/*.bin "$data/$1/" && say "CIFAR-10 is complete in $data/$1"
}

fetch_cifar10() {
    for name in cifar10 cifar10-jpeg; do
        whole_cifar10 "$data/$name" && { say "CIFAR-10 is complete in $data/$name"; return 0; }
    done
    mkdir -p -- "$stage" || return 1
    old_ifs=$IFS
    IFS=:
    # shellcheck disable=SC2086  # split at the colons
    set -- $places
    IFS=$old_ifs
    for place in "$@"; do
        archive=$place/cifar10/$archive_of_cifar10
        [ -f "$archive" ] && unpack_cifar10 "$archive" "$place/cifar10" && { place_cifar10 cifar10; return; }
    done
    for place in "$@"; do
        [ -x "$place/cifar10/unpack" ] || continue
        say "cifar10 is there as JPEG in $place/cifar10: unpacking it, about a minute"
        "$place/cifar10/unpack" "$stage" >/dev/null && whole_cifar10 "$stage/cifar-10-batches-bin" &&
            say "these pixels went through JPEG once, and the order is another: results differ a little from the original's" &&
            { place_cifar10 cifar10-jpeg; return; }
    done
    command -v curl >/dev/null 2>&1 || dead="$dead no-curl"
    for mirror in $mirrors_of_cifar10; do
        case " $dead " in *" no-curl "* | *" $mirror "*) continue ;; esac
        say "cifar10 from $mirror: 170 MB"
        if curl -fsSL --connect-timeout 20 --speed-limit 1000 --speed-time 30 -o "$stage/$archive_of_cifar10" "$mirror/$archive_of_cifar10"; then
            unpack_cifar10 "$stage/$archive_of_cifar10" "$mirror" && { place_cifar10 cifar10; return; }
        else
            dead="$dead $mirror"
        fi
    done
    say "CIFAR-10 is NOT there; no place has it" >&2
    return 1
}

mnist=0 fashion=0 cifar10=0
for set in $wanted; do
    case $set in mnist | fashion | cifar10) ;; *) say "no set is named \"$set\": mnist, fashion and cifar10 are" >&2; exit 2 ;; esac
done
is_wanted() { case " $wanted " in *" $1 "*) ;; *) return 1 ;; esac; }
if is_wanted mnist; then
    fetch_set mnist MNIST "mnist MNIST MNIST/raw" "$mirrors_of_mnist" "$sums_of_mnist"
    mnist=$?
fi
if is_wanted fashion; then
    fetch_set fashion Fashion-MNIST "fashion-mnist fashion FashionMNIST/raw" "$mirrors_of_fashion" "$sums_of_fashion"
    fashion=$?
fi
if is_wanted cifar10; then
    fetch_cifar10
    cifar10=$?
    rm -rf -- "$stage"
fi

if [ "$mnist$fashion$cifar10" != 000 ]; then
    case $dead in
    *no-curl*) say "curl is not installed: make deps" >&2 ;;
    ?*) say "no answer from:$dead" >&2 ;;
    esac
    cat >&2 <<TEXT
make data: without the network, fetch the .gz files elsewhere, from
             MNIST          $mirrors_of_mnist
             Fashion-MNIST  $mirrors_of_fashion
             CIFAR-10       $mirrors_of_cifar10/$archive_of_cifar10
           put them into $root/../shared/data/mnist, fashion and cifar10, and run make data again.
           On Debian, "apt-get install dataset-fashion-mnist" brings Fashion-MNIST.
           Until then the programs run on what there is; with neither of the first two, on the built-in synthetic digits.
TEXT
fi
[ "$mnist" -eq 0 ]
