#!/bin/sh
# Runs every test of the project and ends with one line that counts them.
#
#   sh tests/run.sh                      what a change must pass
#   PROPTEST_CASES=20000 sh tests/run.sh the same, with more random cases for each law (default 256)
#   THROTTLE_GOLDEN=file sh tests/run.sh the same, with another file of golden vectors
#
# It needs Rust and nothing else. Whatever a test comes to need beside it is to be installed here when it is missing.
set -eu
cd "$(dirname "$0")/.."

if ! command -v cargo >/dev/null 2>&1; then
    echo "tests/run.sh: there is no cargo; install Rust 1.95 or later, then run this again" >&2
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

echo "==> unit, integration and documentation tests of every crate, all features"
status=0
# A pipe would hide the exit status, and a file alone would hide the progress.
{ cargo test --workspace --all-features --no-fail-fast 2>&1 || echo "cargo test failed" >"$log.failed"; } | tee "$log"
if [ -e "$log.failed" ]; then
    rm -f "$log.failed"
    status=1
fi

awk -v status="$status" '
    /^test result:/ { passed += $4; failed += $6 }
    /^test .* FAILED$/ { names = names "\n  " $2 }
    END {
        if (names != "") print "\nfailed:" names
        if (status != 0 && failed == 0) print "\nthe build itself failed; see above"
        printf "\nall tests: %d passed, %d failed\n", passed, failed
        exit status != 0 || failed > 0 || passed == 0
    }' "$log"
