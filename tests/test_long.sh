#!/bin/sh
# make test-long: EPOCHS=200 of synthetic digits on three ranks, on a machine that has other work (two loops that only count), twice.
# Memory stays flat, throughput stays flat, and the second run ends in the bits of the first. Minutes; not part of make test.
set -u
cd "$(dirname "$0")/.." || exit 1
epochs=${EPOCHS:-200}
mpiexec=${MPIEXEC:-mpiexec}
out=build/tests/long
rm -rf $out && mkdir -p $out || exit 1
cp ch12 $out/ch12_long || exit 1
passed=0
failed=0
say() { # NAME TRUE?
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); echo "ok      $1"; else failed=$((failed + 1)); echo "FAILED  $1"; fi
}

sh -c 'while :; do :; done' & a=$!
sh -c 'while :; do :; done' & b=$!
trap 'kill $a $b 2>/dev/null' EXIT INT TERM

# resident memory in KiB of this run's ranks together
resident() {
    total=0
    for p in /proc/[0-9]*; do
        case $(readlink "$p/exe" 2>/dev/null) in */$out/ch12_long)
            rss=$(awk '/^VmRSS:/ { print $2 }' "$p/status" 2>/dev/null)
            total=$((total + ${rss:-0})) ;;
        esac
    done
    echo "$total"
}

for run in 1 2; do
    "$mpiexec" -n 3 $out/ch12_long --data synthetic --epochs "$epochs" --epoch-csv $out/epochs$run.csv --save $out/net$run.safetensors --csv $out/run$run.csv --quiet >$out/said$run.txt 2>&1 &
    job=$!
    while kill -0 $job 2>/dev/null; do
        sleep 2
        r=$(resident)
        [ "$r" -eq 0 ] || echo "$r" >>$out/memory$run.txt
    done
    wait $job
    say "run $run: $epochs epochs" $?
    # from a tenth of the run on: in its first seconds pages are touched for the first time
    awk '{ m[NR] = $1 } END { if (NR < 10) exit 1; from = int(NR / 10) + 1; low = high = m[from]; for (i = from; i < NR; ++i) { if (m[i] > high) high = m[i]; if (m[i] < low) low = m[i] }
        mid = m[int(NR / 2)]; last = m[NR - 1]; printf "        memory %.1f MB in the middle, %.1f MB at the end, at most %.1f MB\n", mid / 1024, last / 1024, high / 1024; exit last > 1.01 * mid }' $out/memory$run.txt
    say "run $run: memory is flat (the end within 1 % of the middle)" $?
    # the column of an epoch's seconds, by its name; the median of the second tenth and of the last one
    awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i ~ == "seconds") c = i; if (!c) exit 2; next } { t[++n] = $c }
        function median(from, to,    i, j, x, s, k) { k = 0; for (i = from; i <= to; ++i) s[++k] = t[i]; for (i = 2; i <= k; ++i) { x = s[i]; for (j = i - 1; j > 0 && s[j] > x; --j) s[j + 1] = s[j]; s[j + 1] = x } return s[int((k + 1) / 2)] }
        END { if (n < 20) exit 1; a = median(int(n / 10) + 1, int(n / 5)); b = median(n - int(n / 10) + 1, n); printf "        %.3f s an epoch early, %.3f s late\n", a, b; exit b > 1.25 * a }' $out/epochs$run.csv
    say "run $run: throughput is flat (late epochs within 25 % of early ones)" $?
done
cmp -s $out/net1.safetensors $out/net2.safetensors
say "both runs end in the same bits" $?
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
