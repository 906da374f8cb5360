#!/bin/sh
# The full experiment of chapter 12: every method with every number of workers, then the tables and charts.
# usage: sh chapters/experiment.sh      (from the project's root, after `make ch12`)
# Environment: DATA (auto), EPOCHS (10), WORKERS ("1 2 3 4 5"), RUNS (5: of Hogwild and of PSGD, each with a seed of its own),
# MPIEXEC, OUT (out), the folder for tables and charts
DATA=${DATA:-auto} EPOCHS=${EPOCHS:-10} WORKERS=${WORKERS:-1 2 3 4 5} RUNS=${RUNS:-5}
MPIEXEC=${MPIEXEC:-$(command -v mpiexec.mpich || echo mpiexec)}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

say() { # the last row, in words
    tail -n 1 "$dir/runs.csv" | awk -F, '{ printf "%-8s %d worker%s  %7.2f s  %7.0f images/s  accuracy %.4f  %s\n", $1, $2, $2 == 1 ? " " : "s", $7, $8, $11, $12 }'
}

files="--csv $dir/runs.csv --epoch-csv $dir/runs_epochs.csv --quiet"
for p in $WORKERS; do
    # shellcheck disable=SC2086
    "$MPIEXEC" -n "$p" ./ch12 --method sync --data "$DATA" --epochs "$EPOCHS" $files || exit 1
    say
done
# other seeds: where the result depends on the number of workers, it is a matter of luck as well, so show how much
for n in $WORKERS; do
    run=0
    while [ "$run" -lt "$RUNS" ]; do
        # shellcheck disable=SC2086
        ./ch12 --method hogwild --threads "$n" --data "$DATA" --seed $((1234 + run)) $files || exit 1
        run=$((run + 1))
    done
    say
done
for p in $WORKERS; do
    run=0
    while [ "$run" -lt "$RUNS" ]; do
        # shellcheck disable=SC2086
        "$MPIEXEC" -n "$p" ./ch12 --method psgd --data "$DATA" --epochs "$EPOCHS" --seed $((1234 + run)) $files || exit 1
        run=$((run + 1))
    done
    say
done

# the data's name as a file's: mnist, fashion (of Fashion-MNIST), synthetic (of synthetic digits)
name=$(awk -F, 'NR == 2 { print tolower($4) }' "$dir/runs.csv" | sed 's/[- ].*//')
out=${OUT:-out}
mkdir -p "$out"
cp "$dir/runs.csv" "$out/$name.csv" && cp "$dir/runs_epochs.csv" "$out/${name}_epochs.csv" || exit 1
echo
./ch12 --report "$out/$name.csv" > "$out/$name.txt"
status=$?
cat "$out/$name.txt"
[ $status -eq 0 ] && echo && echo "written: $out/$name.csv, $out/$name.txt, $out/${name}_time.png, ${name}_speedup.png, ${name}_accuracy.png"
exit $status
