#!/bin/sh
# Feeds what reads other people's bytes, and the memory store, with what a fuzzer makes, one target after the other:
#
#   addresses   X-Forwarded-For, Forwarded and other headers, beside a naive reader
#   grpc        content types and names of limits; tonic decodes the refusals
#   read        texts as rule files
#   replace     texts in force instead of live rules
#   snapshot    records of a snapshot, restored into a memory store
#   store       requests, settlements, exceptions and clocks, beside a map of states
#   stored      values of keys on a real Redis, beside the core's decision on them
#   upstream    headers by which an upstream asks a client to wait
#
# What one of them fails on is left in target/fuzz.
#
#   sh tests/fuzz.sh                     each target for five minutes
#   sh tests/fuzz.sh 20                  each for 20 seconds
#   sh tests/fuzz.sh 20 store snapshot   these two
#   sh tests/fuzz.sh 20 -seed=1          with options of libFuzzer
#   sh tests/fuzz.sh build               only compiles the targets
#   CARGO_PROFILE_RELEASE_OPT_LEVEL=3 sh tests/fuzz.sh   compiles for longer, and reads more inputs
#   target/fuzz/*/release/read target/fuzz/read-crash-…    that one text again
#
# What was found to be worth keeping is in target/fuzz/corpus, where the next run starts. Needs a C++ compiler, and for
# `stored` a redis-server. No nightly compiler is needed: without `unsafe` there is nothing to sanitize.
set -eu
cd "$(dirname "$0")/.."

seconds=300
if [ $# -gt 0 ]; then
    seconds=$1
    shift
fi
targets=
while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do
    targets="$targets $1"
    shift
done
: "${targets:=addresses grpc read replace snapshot store stored upstream}"
target=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
# What `cargo fuzz build --sanitizer none` tells the compiler: to count the branches that an input takes, and to show
# libFuzzer what they compare. With `--target`, it does not count those of build scripts.
passes="-Cpasses=sancov-module --cfg fuzzing -Cdebug-assertions -Ccodegen-units=1"
for option in sanitizer-coverage-level=4 sanitizer-coverage-inline-8bit-counters sanitizer-coverage-pc-table \
    sanitizer-coverage-trace-compares simplifycfg-branch-fold-threshold=0; do
    passes="$passes -Cllvm-args=-$option"
done
host=$(rustc -vV | sed -n 's/^host: //p')
case $host in *-linux-*) passes="$passes -Cllvm-args=-sanitizer-coverage-stack-depth" ;; esac
RUSTFLAGS="$passes ${RUSTFLAGS:-}" \
    cargo build --manifest-path tests/fuzz/Cargo.toml --release --target "$host" --target-dir "$target"
[ "$seconds" != build ] || exit 0

files=throttle-tower/rules/src/tests
for name in $targets; do
    mkdir -p "$target/corpus/$name"
    # Rule files and headers have names that no fuzzer guesses. The other targets take decisions from the bytes, and short
    # inputs are used up before anything has happened.
    case $name in
        read | replace) options="-dict=tests/fuzz/fields.dict -max_len=16384" seeds="$files/good $files/bad" ;;
        addresses) options="-dict=tests/fuzz/addresses.dict -max_len=1024" seeds= ;;
        *) options="-len_control=0 -max_len=1024" seeds= ;;
    esac
    # An input that takes 10 seconds is a failure too.
    # shellcheck disable=SC2086 # The options and the folders are words of their own.
    "$target"/*/release/$name $options -timeout=10 -rss_limit_mb=1024 -verbosity=0 -print_final_stats=1 \
        -artifact_prefix="$target/$name-" -max_total_time="$seconds" "$@" "$target/corpus/$name" $seeds
    echo "$name: no failure"
done
