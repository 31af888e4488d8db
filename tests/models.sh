#!/bin/sh
# Checks the memory store's models: every order in which three threads can take their steps, as far as threads lose their
# processor at most once in a run (a thread that has to wait for another one is not counted).
#
#   sh tests/models.sh                          what a change must pass: half a minute
#   LOOM_MAX_PREEMPTIONS=2 sh tests/models.sh   more orders: an hour or more
#
# The models need a build of their own, because the checker's atomics and locks take the place of the real ones.
set -eu
cd "$(dirname "$0")/.."
RUSTFLAGS="${RUSTFLAGS:-} --cfg throttle_models" exec \
    cargo test --package tower-throttle-core --lib --target-dir target/models memory::models
