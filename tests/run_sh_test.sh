#!/bin/sh
# Tests that .ci/run, tests/run.sh and the scripts beside it fail when they must: runs copies of them with a fake cargo.
#
#   sh tests/run_sh_test.sh
set -eu
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/bin" "$folder/project/tests/extra" "$folder/project/.ci"
cp tests/run.sh "$folder/project/tests/run.sh"
cp tests/extra.sh "$folder/project/tests/extra.sh"
cp tests/fuzz.sh "$folder/project/tests/fuzz.sh"
cp tests/models.sh "$folder/project/tests/models.sh"
cp tests/new_seeds.sh "$folder/project/tests/new_seeds.sh"
cp tests/quick.sh "$folder/project/tests/quick.sh"
cp tests/extra/requirements.txt "$folder/project/tests/extra/requirements.txt"
cp -r tests/extra/sdks "$folder/project/tests/extra/sdks"
cp .ci/run "$folder/project/.ci/run"
echo : >"$folder/project/tests/run_sh_test.sh"
: >"$folder/project/Cargo.lock"

# The only programs of this machine that the copies find: no cargo, no redis-server, no sudo.
for tool in awk bash cat chrt cp dirname env getconf grep id mkdir mktemp nice od rm sed sh sleep sort tee tr; do
    ln -s "$(command -v $tool)" "$folder/bin/$tool"
done

pretend() {
    printf '#!/bin/sh\n%s\n' "$2" >"$folder/bin/$1"
    chmod +x "$folder/bin/$1"
}

# $SAYS is the output of the tests, $TREE that of `cargo tree`, and $FAILS the subcommand that fails.
pretend cargo '
echo "cargo $* cases=${PROPTEST_CASES:-none} golden=${THROTTLE_GOLDEN:-none} seed=${PROPTEST_RNG_SEED:-none}" >>"$CALLS"
case $1 in
    test) printf "%b\n" "$SAYS" ;;
    tree) printf "%b\n" "$TREE" ;;
esac
[ "$1" != "${FAILS:-}" ]'
for program in redis-server prometheus promtool chromium chromedriver nginx goaccess fail2ban-server c++ rustc tar valgrind; do
    pretend $program ':'
done
# shellcheck disable=SC2016 # The fake script expands it.
pretend python3 '
for last; do :; done
case $2 in
    venv) /bin/mkdir -p "$last/bin" && /bin/cp "$0" "$last/bin/python" ;;
    pip) [ -z "${NO_PACKAGES:-}" ] ;;
esac'
# An old Node.js fails when it is asked for its version.
# shellcheck disable=SC2016
pretend node '[ -z "${OLD_NODE:-}" ]'
# shellcheck disable=SC2016
pretend npm '[ -z "${NO_CLIENTS:-}" ]'

result='test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s'
empty='test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s'
failures=0

# Runs a script with the given variables; compares its exit status and looks for WORDS in its output.
#   check NAME ok|fails SCRIPT WORDS [VARIABLE=VALUE…]
check() {
    name=$1 wanted=$2 script=$3 words=$4
    shift 4
    : >"$folder/calls"
    ended=ok
    env -i PATH="$folder/bin" TMPDIR="$folder" CALLS="$folder/calls" SAYS="$result" TREE='tower-throttle-core v0.1.0\ntower-throttle v0.1.0' "$@" \
        "$folder/project/$script" >"$folder/said" 2>&1 </dev/null || ended=fails
    if [ "$ended" = "$wanted" ] && grep -q -e "$words" "$folder/said"; then
        echo "test run_sh::$name ... ok"
    else
        echo "test run_sh::$name ... FAILED: $ended, wanted: $wanted and \"$words\" in:"
        cat "$folder/said"
        failures=$((failures + 1))
    fi
}

called() {
    if ! grep -q -e "$1" "$folder/calls"; then
        echo "    cargo should be called with \"$1\", and was called with:"
        cat "$folder/calls"
        failures=$((failures + 1))
    fi
}

chmod +x "$folder/project/tests/run.sh" "$folder/project/tests/new_seeds.sh" "$folder/project/tests/quick.sh" "$folder/project/tests/extra.sh" "$folder/project/.ci/run"
run=tests/run.sh
extra=tests/extra.sh

check all_pass ok $run 'all tests: 3 passed, 0 failed'
called 'cases=none golden=none seed=15'
check build_fails fails $run 'the build failed' SAYS='error: no' FAILS=test
check a_test_fails fails $run '1 failed' \
    SAYS='test a ... FAILED\ntest result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out'
check a_process_is_killed_after_good_tests fails $run 'ended its process' FAILS=test
check a_failed_test_that_no_result_counts fails $run '^  x$' SAYS="test x ... FAILED\n$result"
check a_failed_result_that_counts_no_test fails $run '0 failed' \
    SAYS='test result: FAILED. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'
check a_program_without_a_test fails $run '^  Running unittests src/main.rs (target/debug/deps/bare-1)$' \
    SAYS="     Running tests/full.rs (target/debug/deps/full-1)\n$result\n     Running unittests src/main.rs (target/debug/deps/bare-1)\n$empty\n   Doc-tests full\n$result"
check a_program_without_an_example fails $run '^  Doc-tests bare$' SAYS="$result\n   Doc-tests bare\n$empty"
check no_tests fails $run '0 passed' SAYS='nothing to do'
check an_ignored_test fails $run '1 tests are ignored' \
    SAYS='test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'
check a_filtered_test fails $run '1 tests were left out' \
    SAYS='test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out'
check results_are_added_up ok $run 'all tests: 6 passed' SAYS="$result\n$result"

check more_cases ok $run 'all tests: 3 passed' PROPTEST_CASES=20000
called 'cases=20000'
check inherited_empty_cases ok $run 'all tests: 3 passed' PROPTEST_CASES=
called 'cases=none'
check inherited_fewer_cases fails $run 'less than the default' PROPTEST_CASES=1
check inherited_cases_without_a_number fails $run 'is not a number' PROPTEST_CASES=many
check another_seed ok $run 'all tests: 3 passed' PROPTEST_RNG_SEED=7
called 'seed=7'
check inherited_seed_without_a_number fails $run 'is not a number' PROPTEST_RNG_SEED=any
check other_vectors_come_on_top ok $run 'again, with other.json' THROTTLE_GOLDEN=other.json
called 'cargo test --workspace --all-features --no-fail-fast cases=none golden=none seed=15'
called 'golden cases=none golden=other.json'
check other_vectors_that_fail fails $run 'FAILED' THROTTLE_GOLDEN=other.json \
    SAYS='test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out'

check python_packages_asked_not_to_install fails $extra 'THROTTLE_NO_INSTALL is set' THROTTLE_NO_INSTALL=1
check python_packages_that_cannot_be_installed fails $extra 'could not install' NO_PACKAGES=1
check python_packages_are_named_before_they_are_installed fails $extra 'about to install the Python packages' NO_CLIENTS=1
check clients_asked_not_to_install fails $extra 'THROTTLE_NO_INSTALL is set' THROTTLE_NO_INSTALL=1
check clients_that_cannot_be_installed fails $extra 'could not install package-lock.json' NO_CLIENTS=1
check a_node_that_is_too_old fails $extra 'need 20' OLD_NODE=1
check clients_are_named_before_they_are_installed ok $extra 'about to install the packages of tests/extra/sdks'
check all_extra_tests_pass ok $extra 'extra tests: 3 passed, 0 failed' NO_PACKAGES=1 NO_CLIENTS=1
called 'cargo build --workspace --all-features --test golden .*--bin dashboard --bin api'
called 'cargo test --manifest-path tests/extra/Cargo.toml --locked'
check instructions_that_have_risen fails $extra 'instructions, beside' FAILS=run
check an_example_that_does_not_build fails $extra 'the example' FAILS=build
check extra_tests_that_do_not_build fails $extra 'the build failed' SAYS='error: no' FAILS=test
check an_extra_test_fails fails $extra '1 failed' \
    SAYS='test a ... FAILED\ntest result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out'
check an_ignored_extra_test fails $extra '1 tests were left out' \
    SAYS='test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'
check no_extra_tests fails $extra '0 passed' SAYS='nothing to do'

seeds=tests/new_seeds.sh
check a_seed_that_is_drawn ok $seeds 'with the seed [0-9]'
called '^cargo test --quiet --workspace --all-features .* seed=[0-9]'
check random_tests_that_fail fails $seeds 'to repeat this run: PROPTEST_CASES=300 sh tests/new_seeds.sh [0-9]' \
    FAILS=test PROPTEST_CASES=300
check a_group_without_a_test fails $seeds 'there is no test of' SAYS="$empty"

check quick ok tests/quick.sh '3 passed'
called '^cargo test .*--package tower-throttle-core .* cases=32'
for gate in fmt clippy test; do
    check "quick_that_fails_$gate" fails tests/quick.sh 'unit tests of tower-throttle-core' FAILS=$gate
done

check the_gates ok .ci/run 'all gates passed'
check a_tree_that_fails fails .ci/run 'what the core must not depend on' FAILS=tree
check an_empty_tree fails .ci/run 'what the core must not depend on' TREE=
check a_runtime_in_the_core fails .ci/run 'must stay free' TREE='tower-throttle-core v0.1.0\ntokio v1.0.0'
check a_page_for_all fails .ci/run 'must stay out of the tree' TREE='tower-throttle-core v0.1.0\ntower-throttle v0.1.0\nserde_json v1.0.0'
for gate in fmt clippy doc check deny package; do
    check "a_gate_that_fails_$gate" fails .ci/run 'after' FAILS=$gate
done

rm "$folder/bin/redis-server" "$folder/bin/prometheus" "$folder/bin/promtool" "$folder/bin/chromedriver"
check nothing_to_install_with fails $run 'install it by hand'
check nothing_to_install_extra_programs_with fails $extra 'apt-get install chromium-driver prometheus redis-server '
# shellcheck disable=SC2016 # The fake script expands it.
pretend apt-get '
[ "$1" = update ] || printf "#!/bin/sh\n" >"${0%/*}/redis-server"
/bin/chmod +x "${0%/*}/redis-server" 2>/dev/null || :'
pretend sudo 'exec "$@"'
check asked_not_to_install fails $run 'THROTTLE_NO_INSTALL is set' THROTTLE_NO_INSTALL=1
check says_what_it_installs_and_how_to_prevent_it ok $run 'to prevent that: THROTTLE_NO_INSTALL=1'
rm "$folder/bin/redis-server"
check names_the_command_it_is_about_to_run ok $run 'about to run: .*apt-get install redis-server'
rm "$folder/bin/redis-server"
# shellcheck disable=SC2016 # The fake script expands it.
pretend apt-get '
[ "$1" = update ] || for program in redis-server prometheus promtool chromedriver; do
    printf "#!/bin/sh\n" >"${0%/*}/$program"
    /bin/chmod +x "${0%/*}/$program"
done'
check extra_asked_not_to_install fails $extra 'THROTTLE_NO_INSTALL is set' THROTTLE_NO_INSTALL=1
check extra_names_the_command_it_is_about_to_run ok $extra \
    'about to run: .*apt-get install chromium-driver prometheus redis-server$'
rm "$folder/bin/chromedriver"
pretend apt-get ':'
check a_program_that_is_not_in_its_package fails $extra 'still missing'
rm "$folder/bin/redis-server" "$folder/bin/cargo"
check no_cargo fails $run 'there is no cargo'

[ "$failures" -eq 0 ] || { echo "$failures of the checks above failed" >&2; exit 1; }
