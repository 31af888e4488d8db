#!/bin/sh
# Runs every test of the project and ends with one line that counts them.
#
#   sh tests/run.sh                      what a change must pass
#   PROPTEST_CASES=20000 sh tests/run.sh the same, with more random cases for each law (default 256)
#   THROTTLE_GOLDEN=file sh tests/run.sh the same, with another file of golden vectors
#
# It needs Rust. Some tests start Redis servers of their own, on free ports; redis-server is installed here when it is
# missing (apt-get as root or by sudo, or Homebrew). Whatever else a test comes to need is to be installed here too.
set -eu
cd "$(dirname "$0")/.."

if ! command -v cargo >/dev/null 2>&1; then
    echo "tests/run.sh: there is no cargo; install Rust 1.95 or later, then run this again" >&2
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Installers talk much; what they said is shown only when they fail.
quietly() {
    "$@" >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}

install_redis() {
    if command -v apt-get >/dev/null 2>&1; then
        as_root=
        [ "$(id -u)" -eq 0 ] || as_root=sudo
        if [ -n "$as_root" ] && ! command -v sudo >/dev/null 2>&1; then
            return 1
        fi
        # Lists of packages may be missing or too old to find anything by.
        quietly $as_root apt-get update &&
            quietly $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends redis-server
    elif command -v brew >/dev/null 2>&1; then
        quietly brew install redis
    else
        return 1
    fi
}

if ! command -v redis-server >/dev/null 2>&1; then
    echo "==> there is no redis-server; installing it"
    if ! install_redis || ! command -v redis-server >/dev/null 2>&1; then
        echo "tests/run.sh: could not install redis-server; do it by hand, then run this again:" >&2
        echo "    apt-get update && apt-get install redis-server    (as root; macOS: brew install redis)" >&2
        exit 1
    fi
fi

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
