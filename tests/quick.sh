#!/bin/sh
# Checks one crate while it is being changed: format, clippy and its unit tests, with few random cases and no server.
#
#   sh tests/quick.sh                           tower-throttle-core
#   sh tests/quick.sh tower-throttle            another crate
#   sh tests/quick.sh tower-throttle queues::   only its tests with such names
set -eu
cd "$(dirname "$0")/.."

crate=${1:-tower-throttle-core}
[ $# -eq 0 ] || shift
PROPTEST_CASES=32
PROPTEST_RNG_SEED=15
export PROPTEST_CASES PROPTEST_RNG_SEED

echo "==> format, clippy and unit tests of $crate"
cargo fmt --package "$crate" --check
cargo clippy --package "$crate" --all-features --lib -- -D warnings
cargo test --quiet --package "$crate" --all-features --lib -- "$@"
