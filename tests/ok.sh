# For scripts that test: `. tests/ok.sh` from the project's root, with $passed and $failed set.

# ok NAME COMMAND ...: must succeed and print nothing
ok() {
    name=$1
    shift
    if said=$("$@" 2>&1) && [ -z "$said" ]; then passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED  %s: %s\n' "$name" "$*"
        printf '%s\n' "$said" | head -n 12
    fi
}
