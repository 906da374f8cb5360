#!/bin/sh
# What Winograd's rounding does to training (chapter 4, 4.12): the Net of chapter 12 with its settings and five seeds,
# each with convolutions by the definition and by Winograd's algorithm. After `make ch12`, from the repository's folder:
#
#   sh chapters/ch04_accuracy.sh [epochs] [file]      10 epochs, out/ch04_accuracy.csv; prints means and ranges
epochs=${1:-10}
file=${2:-out/ch04_accuracy.csv}
[ -x ./ch12 ] || { echo "ch04_accuracy.sh: ./ch12 is not built: make ch12" >&2; exit 1; }
mkdir -p "$(dirname "$file")" || exit 1
row=$(mktemp) || exit 1
trap 'rm -f "$row"' EXIT

echo "convolutions,seed,dataset,epochs,train_loss,test_loss,test_accuracy,weights_hash" >"$file" || exit 1
for seed in 1 2 3 4 5; do
    for way in definition winograd; do
        rm -f "$row"
        if [ $way = definition ]; then direct=--direct; else direct=; fi
        ./ch12 --quiet $direct --seed $seed --epochs "$epochs" --csv "$row" || exit 1
        # method,workers,cores,dataset,epochs,batch,seconds,images_per_second,train_loss,test_loss,accuracy,hash
        tail -n 1 "$row" | awk -F, -v OFS=, -v way=$way -v seed=$seed '{ print way, seed, $4, $5, $9, $10, $11, $12 }' >>"$file"
    done
done
awk -F, 'NR > 1 {
    n[$1]++; sum[$1] += $7
    if (n[$1] == 1 || $7 < low[$1]) low[$1] = $7
    if (n[$1] == 1 || $7 > high[$1]) high[$1] = $7
    accuracy[$1, $2] = $7
    if ($1 == "winograd") { d = $7 - accuracy["definition", $2]; if (d < 0) d = -d; if (d > most) most = d }
} END {
    for (way in n)
        printf "%-10s  accuracy %.2f %%, from %.2f to %.2f over %d seeds\n", way, 100 * sum[way] / n[way], 100 * low[way], 100 * high[way], n[way]
    printf "one seed, the two ways: at most %.2f points apart\n", 100 * most
}' "$file"
