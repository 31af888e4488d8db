#!/bin/sh
# Runs the random tests that need no server with new random cases: the laws of the core, the shaper, held requests, and
# the scripts of the Redis backend in an embedded Lua.
#
#   sh tests/new_seeds.sh        draws a seed
#   sh tests/new_seeds.sh 1234   draws the same cases as a former run with that seed
#
# Half as many cases for each law as in tests/run.sh, or PROPTEST_CASES.
#
# Fails if a test fails or a group finds no test, and then prints the command that repeats the run. After tests/run.sh
# there is nothing left to compile.
set -eu
cd "$(dirname "$0")/.."

PROPTEST_RNG_SEED=${1:-$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')}
export PROPTEST_RNG_SEED
repeat="${PROPTEST_CASES:+PROPTEST_CASES=$PROPTEST_CASES }sh tests/new_seeds.sh $PROPTEST_RNG_SEED"
PROPTEST_CASES=${PROPTEST_CASES:-128}
export PROPTEST_CASES
echo "==> random tests with the seed $PROPTEST_RNG_SEED"

log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
    echo "tests/new_seeds.sh: $1; to repeat this run: $repeat" >&2
    exit 1
}

# The packages and features are those of tests/run.sh, so that Cargo finds everything compiled.
group() {
    name=$1
    shift
    cargo test --quiet --workspace --all-features "$@" >"$log" 2>&1 || { cat "$log"; fail "$name failed"; }
    passed=$(awk '/^test result:/ { passed += $4 } END { print passed + 0 }' "$log")
    [ "$passed" -gt 0 ] || fail "there is no test of $name"
    echo "    $name: $passed passed"
}

group "the core's laws" --test laws
group "the shaper's laws" --test shape -- laws
group "held requests" --test usage -- law_15
group "the scripts" --lib -- script::tests::laws script::tests::hostile script::tests::tiers
