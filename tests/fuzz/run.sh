#!/bin/sh
# make fuzz: each target of tests/fuzz/fuzz.c for SECONDS (60), from the seeds beside it and from what earlier runs have found, which stays in
# build/fuzz/found. An input that breaks something is left as build/fuzz/NAME-crash-...; run it again with
#     FUZZ_TARGET=NAME build/fuzz/fuzz build/fuzz/NAME-crash-...
set -u
cd "$(dirname "$0")/../.." || exit 1
passed=0
failed=0
for seeds in tests/fuzz/seeds/*; do
    name=${seeds##*/}
    mkdir -p "build/fuzz/found/$name"
    log=build/fuzz/$name.txt
    FUZZ_TARGET=$name build/fuzz/fuzz -max_total_time="${SECONDS_EACH:-60}" -max_len=16384 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/$name-" "build/fuzz/found/$name" "$seeds" >"$log" 2>&1 </dev/null
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %-12s %9d inputs, %d that reached something new\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
            "$(sed -n 's/^stat::new_units_added: *//p' "$log")"
    else
        failed=$((failed + 1))
        echo "FAILED  $name: $(grep -a -m 1 -E 'does not hold|runtime error|SUMMARY' "$log")"
        grep -a 'Test unit written to' "$log"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
