#!/bin/sh
# Runs all tests of the workspace. The last line counts them.
#
#   sh tests/run.sh                       what a change must pass
#   PROPTEST_CASES=20000 sh tests/run.sh  the same, with more random cases for each law (default and minimum: 256)
#   PROPTEST_RNG_SEED=7 sh tests/run.sh   the same, with other random cases (default: the same in every run)
#   THROTTLE_GOLDEN=file sh tests/run.sh  the same, then the golden tests again with another file of vectors
#
# Fails if a test fails, if a test is ignored, or if a test program runs no test. A target without tests says so in its
# Cargo.toml (`test = false`, `doctest = false`).
#
# Needs Rust. Some tests start Redis servers of their own, on free ports. If there is no redis-server, this script
# installs it with apt-get (as root or with sudo) or Homebrew, and says so first. With THROTTLE_NO_INSTALL=1 it stops
# instead.
set -eu
cd "$(dirname "$0")/.."

stop() {
    echo "tests/run.sh: $*" >&2
    exit 1
}

command -v cargo >/dev/null 2>&1 || stop "there is no cargo; install Rust 1.95 or later, then run this again"

# Both may be inherited from a shell or a CI job. Neither may make the run weaker.
golden=${THROTTLE_GOLDEN:-}
unset THROTTLE_GOLDEN
case ${PROPTEST_CASES:-} in
    '') unset PROPTEST_CASES ;;
    *[!0-9]* | ????????????*) stop "PROPTEST_CASES=$PROPTEST_CASES is not a number; unset it" ;;
    *) [ "$PROPTEST_CASES" -ge 256 ] || stop "PROPTEST_CASES=$PROPTEST_CASES is less than the default, 256; unset it" ;;
esac
# Random tests that drew new cases in each run would fail now and then on a machine where nothing is wrong.
PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-15}
export PROPTEST_RNG_SEED
case $PROPTEST_RNG_SEED in
    *[!0-9]* | ????????????????????*) stop "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED is not a number; unset it" ;;
esac

# Most tests wait for servers, or for time to pass: two of them for each processor.
RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
export RUST_TEST_THREADS

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
log=$folder/log

# Shows an installer's output only if it fails.
quietly() {
    "$@" >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}

by_hand() {
    echo "tests/run.sh: $1; install it by hand, then run this again:" >&2
    echo "    apt-get update && apt-get install redis-server    (as root; macOS: brew install redis)" >&2
    exit 1
}

install_redis() {
    as_root=
    if command -v apt-get >/dev/null 2>&1; then
        if [ "$(id -u)" -ne 0 ]; then
            command -v sudo >/dev/null 2>&1 || return 1
            as_root=sudo
        fi
        install="$as_root apt-get install redis-server"
    elif command -v brew >/dev/null 2>&1; then
        install="brew install redis"
    else
        return 1
    fi
    echo "==> there is no redis-server; about to run: $install"
    echo "    to prevent that: THROTTLE_NO_INSTALL=1 sh tests/run.sh"
    if [ -t 1 ]; then
        echo "    or press Ctrl-C within 5 seconds"
        sleep 5
    fi
    case $install in
        brew*) quietly brew install redis ;;
        *)
            # The package lists may be missing or out of date.
            quietly $as_root apt-get update &&
                quietly $as_root env DEBIAN_FRONTEND=noninteractive \
                    apt-get install -y --no-install-recommends redis-server
            ;;
    esac
}

if ! command -v redis-server >/dev/null 2>&1; then
    [ -z "${THROTTLE_NO_INSTALL:-}" ] || by_hand "there is no redis-server, and THROTTLE_NO_INSTALL is set"
    install_redis && command -v redis-server >/dev/null 2>&1 || by_hand "could not install redis-server"
fi

# A pipe would hide the exit status, and a file alone would hide the progress.
tested() {
    { "$@" 2>&1 || echo "$*" >>"$folder/failed"; } | tee -a "$log"
}

: >"$log"
echo "==> unit, integration and documentation tests of every crate, all features"
tested cargo test --workspace --all-features --no-fail-fast
if [ -n "$golden" ]; then
    echo "==> golden tests again, with $golden"
    THROTTLE_GOLDEN=$golden
    export THROTTLE_GOLDEN
    tested cargo test --workspace --all-features --no-fail-fast --lib --tests golden
    unset THROTTLE_GOLDEN
fi
status=0
[ ! -e "$folder/failed" ] || status=1

awk -v status="$status" -v golden="$golden" '
    # Cargo names each test program before it runs.
    /^ +(Running|Doc-tests) / { program = $0; sub(/^ +/, "", program) }
    /^test result:/ {
        passed += $4; failed += $6; ignored += $8
        if ($3 != "ok.") unwell = 1
        # The second run of the golden tests filters out all other tests.
        if (golden == "") filtered += $12
        if ($4 + $6 + $8 + $12 == 0) empty = empty "\n  " program
    }
    /^test .* FAILED$/ { names = names "\n  " $2 }
    END {
        if (names != "") { print "\nfailed:" names; unwell = 1 }
        if (status != 0 && failed == 0) print "\nthe build failed, or a test ended its process; see above"
        if (ignored > 0) { print "\n" ignored " tests are ignored: repair or delete them"; unwell = 1 }
        if (filtered > 0) { print "\n" filtered " tests were left out by a filter"; unwell = 1 }
        if (empty != "") { print "\nwithout a test:" empty; unwell = 1 }
        printf "\nall tests: %d passed, %d failed\n", passed, failed
        exit status != 0 || failed > 0 || passed == 0 || unwell
    }' "$log"
