#!/bin/sh
# Reads texts that a fuzzer makes as rule files, one target after the other: `read` reads them, `replace` puts them in
# force instead of live rules. A text on which one of them fails is left in target/fuzz.
#
#   sh tests/fuzz.sh               each target for five minutes
#   sh tests/fuzz.sh 20            each for 20 seconds
#   sh tests/fuzz.sh 20 -seed=1    with options of libFuzzer
#   target/fuzz/*/release/read target/fuzz/read-crash-…    that one text again
#
# What was found to be worth keeping is in target/fuzz/corpus, where the next run starts. Needs a C++ compiler, and
# installs cargo-fuzz into target/tools. No nightly compiler is needed: without `unsafe` there is nothing to sanitize.
set -eu
cd "$(dirname "$0")/.."

seconds=300
if [ $# -gt 0 ]; then
    seconds=$1
    shift
fi
PATH=$PWD/target/tools/bin:$PATH
command -v cargo-fuzz >/dev/null || cargo install --quiet --locked --debug --root target/tools cargo-fuzz@0.13.2
target=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
cargo fuzz build --fuzz-dir tests/fuzz --sanitizer none --target-dir "$target"

files=throttle-tower/src/rules/tests
for name in read replace; do
    mkdir -p "$target/corpus/$name"
    # A text that takes 10 seconds is a failure too. Rule files have field names that no fuzzer guesses.
    "$target"/*/release/$name -dict=tests/fuzz/fields.dict -timeout=10 -rss_limit_mb=1024 -max_len=16384 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="$target/$name-" -max_total_time="$seconds" "$@" \
        "$target/corpus/$name" $files/good $files/bad
    echo "$name: no failure"
done
