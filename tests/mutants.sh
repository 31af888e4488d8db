#!/bin/sh
# Changes one expression at a time of what decides (algorithms, sets, the memory store), and runs the tests of
# tower-throttle-core. Lists the changes that no test notices: each needs a test, or a reason why it changes nothing.
#
#   sh tests/mutants.sh 3/40              the third of forty parts; all of them take days
#   sh tests/mutants.sh 3/40 --jobs 2     with options of cargo-mutants
#   sh tests/mutants.sh 3/40 --list       only names the changes
#
# The results are in target/mutants. Installs cargo-mutants into target/tools.
set -eu
cd "$(dirname "$0")/.."

shard=${1:-1/40}
[ $# -eq 0 ] || shift
PATH=$PWD/target/tools/bin:$PATH
command -v cargo-mutants >/dev/null || cargo install --quiet --locked --debug --root target/tools cargo-mutants@27.1.0
PROPTEST_CASES=${PROPTEST_CASES:-64}
PROPTEST_RNG_SEED=15
export PROPTEST_CASES PROPTEST_RNG_SEED

# Formatting, and what only shows, is not decided by. The arguments of cargo keep it from building other tests.
mkdir -p target/mutants
cargo mutants --package tower-throttle-core --all-features --shard "$shard" --output target/mutants --no-shuffle \
    --file 'throttle-core/src/algorithm/**' --file 'throttle-core/src/set/**' --file 'throttle-core/src/memory/**' \
    --exclude '**/tests/**' --exclude '**/tests.rs' --exclude '**/models.rs' --exclude-re 'impl (fmt::)?(Debug|Display)' \
    --cargo-arg=--lib --cargo-arg=--test=laws --cargo-arg=--test=golden "$@"
