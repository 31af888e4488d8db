#!/bin/sh
# Changes one expression at a time of what decides (algorithms, sets, the memory store, the steps of a layer), and lists
# the changes that no test notices: each needs a test, or a reason why it changes nothing. Short tests meet every change:
# the golden vectors, or the unit tests of throttle-tower. Long ones meet only those that are left, in minutes each.
#
#   sh tests/mutants.sh algorithm/gcra.rs set/decide.rs     files of throttle-core/src
#   sh tests/mutants.sh throttle-tower/src/throttle/steps/decide.rs   files of throttle-tower
#   sh tests/mutants.sh 'memory/**' --shard 1/10            with options of cargo-mutants
#   sh tests/mutants.sh 'algorithm/**' --list               only names the changes
#
# The results are in target/mutants. Installs cargo-mutants into target/tools.
set -euf
cd "$(dirname "$0")/.."

PATH=$PWD/target/tools/bin:$PATH
command -v cargo-mutants >/dev/null || cargo install --quiet --locked --debug --root target/tools cargo-mutants@27.1.0

files= package=tower-throttle-core
while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do
    case $1 in
        throttle-tower/rules/*) files="$files --file $1" package=tower-throttle-rules ;;
        throttle-tower/*) files="$files --file $1" package=tower-throttle ;;
        *) files="$files --file throttle-core/src/$1" ;;
    esac
    shift
done
case $package$files in tower-throttle*" throttle-core/"*) echo "mutants.sh: files of one package at a time" >&2; exit 2 ;; esac
[ -n "$files" ] || { sed -n 's/^#   sh/usage: sh/p' "$0" >&2; exit 2; }

# One folder for all builds: what a change costs is mostly what the build before it has not left.
export CARGO_TARGET_DIR="$PWD/target/mutants/build" CARGO_INCREMENTAL=1
export PROPTEST_CASES="${PROPTEST_CASES:-16}" PROPTEST_RNG_SEED=15

# A stage leaves out what was noticed before, also by an earlier run. Missed changes and timeouts are no failure of it.
stage() {
    cargo mutants --config tests/mutants.toml --package "$package" --output target/mutants --iterate \
        --no-shuffle $files "$@" || [ $? -lt 4 ]
}

mkdir -p target/mutants
case " $* " in *" --list "*) stage "$@"; exit ;; esac
if [ "$package" != tower-throttle-core ]; then
    stage "$@" --all-features --cargo-arg=--lib
    stage "$@" --all-features --test-package=throttle-tests --cargo-arg=--test=layer --cargo-arg=--test=usage
    exit
fi
stage "$@" --test-package=throttle-core-tests --cargo-arg=--test=golden --cargo-arg=--config \
    --cargo-arg=profile.dev.package.tower-throttle-core.opt-level=0
stage "$@" --cargo-arg=--lib --cargo-arg=--test=laws
