#!/bin/sh
# Changes one expression at a time of what decides (algorithms, sets, the memory store, a layer's steps), and runs the
# tests without servers. Lists the changes that no test notices: each needs a test, or a reason why it changes nothing.
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

# Formatting, and what only shows, is not decided by.
mutants() {
    package=$1
    shift
    mkdir -p "target/mutants/$package"
    cargo mutants --package "$package" --all-features --shard "$shard" --output "target/mutants/$package" --no-shuffle \
        --exclude '**/tests/**' --exclude '**/tests.rs' --exclude '**/models.rs' --exclude-re 'impl (fmt::)?(Debug|Display)' \
        "$@"
}
# Arguments of every cargo, so that no other test is built either.
tests() {
    printf -- '--cargo-arg=--lib '
    for name in "$@"; do printf -- '--cargo-arg=--test=%s ' "$name"; done
}
found=0
# shellcheck disable=SC2046 # Each argument is a word of its own.
mutants tower-throttle-core --file 'throttle-core/src/algorithm/**' --file 'throttle-core/src/set/**' \
    --file 'throttle-core/src/memory/**' $(tests laws golden) "$@" || found=1
# shellcheck disable=SC2046
mutants tower-throttle --file 'throttle-tower/src/throttle/steps/**' --test-package tower-throttle,throttle-tests \
    $(tests contract usage events local) "$@" || found=1
exit $found
