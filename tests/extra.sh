#!/bin/sh
# Runs the tests that need other programs: a Prometheus, a browser, an nginx, GoAccess, a fuzzer, validators of TOML,
# packages of Python and Node.js. The last line counts them. Before them it counts the instructions of decisions and
# requests with valgrind, and fails if a figure is more than 5 % above tests/peers/instructions.txt.
#
#   sh tests/extra.sh                         all of them
#   THROTTLE_SCREENSHOT=1 sh tests/extra.sh   the same, and takes the pictures in examples/dashboard and examples/replay
#   THROTTLE_SOAK=600 sh tests/extra.sh       the mixed load of tests/soak lasts so many seconds, and not 60
#   THROTTLE_FLOOD=100 sh tests/extra.sh      so many million keys flood a memory store, and not 10
#
# Fails if a test fails or is ignored. No test is left out: if a program is missing and cannot be installed, none runs.
#
# Needs Rust and Debian's packages prometheus, chromium, chromium-driver, nginx-light, goaccess, fail2ban, redis-server,
# g++, python3-venv, nodejs (20 or later), npm and valgrind. If one of them is missing, this script installs it with
# apt-get (as root or with sudo), and says so first. So it does with the Python packages of tests/extra/requirements.txt and
# those of Node.js of tests/extra/sdks/package.json, in folders of their own below the target folder. With
# THROTTLE_NO_INSTALL=1 it stops instead. The tests start servers of their own, on free ports of 127.0.0.1, and end
# them.
set -eu
cd "$(dirname "$0")/.."
# Where Debian puts nginx, which no user but root has in the path.
PATH=$PATH:/usr/sbin

stop() {
    echo "tests/extra.sh: $*" >&2
    exit 1
}

command -v cargo >/dev/null 2>&1 || stop "there is no cargo; install Rust 1.95 or later, then run this again"

# Most tests wait for other programs, or for time to pass: two of them for each processor.
RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
export RUST_TEST_THREADS

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
log=$folder/log

# Shows an installer's output only if it fails.
quietly() {
    "$@" >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}

missing=
needs() {
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
find_missing() {
    missing=
    needs prometheus prometheus
    needs promtool prometheus
    needs chromium chromium
    needs chromedriver chromium-driver
    needs nginx nginx-light
    needs goaccess goaccess
    needs fail2ban-server fail2ban
    needs redis-server redis-server
    needs c++ g++
    needs node nodejs
    needs npm npm
    needs valgrind valgrind
    python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
    # A package that provides two programs is named once.
    missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
    missing=${missing% }
}

by_hand() {
    echo "tests/extra.sh: $1; install by hand, then run this again:" >&2
    echo "    apt-get update && apt-get install $missing    (as root)" >&2
    exit 1
}

install_missing() {
    command -v apt-get >/dev/null 2>&1 || return 1
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || return 1
        as_root=sudo
    fi
    echo "==> about to run: $as_root apt-get install $missing"
    echo "    to prevent that: THROTTLE_NO_INSTALL=1 sh tests/extra.sh"
    if [ -t 1 ]; then
        echo "    or press Ctrl-C within 5 seconds"
        sleep 5
    fi
    # The package lists may be missing or out of date.
    quietly $as_root apt-get update || return 1
    # shellcheck disable=SC2086 # The names are words of their own.
    quietly $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing || return 1
    for package in prometheus nginx-light fail2ban; do
        case " $missing " in
            *" $package "*)
                # The package starts a server, on all addresses or on this machine's logs, which no test needs.
                if [ -d /run/systemd/system ]; then
                    echo "    about to run: $as_root systemctl disable --now ${package%-light}"
                    quietly $as_root systemctl disable --now "${package%-light}" || return 1
                fi
                ;;
        esac
    done
}

find_missing
if [ -n "$missing" ]; then
    [ -z "${THROTTLE_NO_INSTALL:-}" ] || by_hand "programs are missing, and THROTTLE_NO_INSTALL is set"
    install_missing || by_hand "could not install $missing"
    find_missing
    [ -z "$missing" ] || by_hand "programs are still missing"
fi

# The programs share what they are made of with the workspace.
target=${CARGO_TARGET_DIR:-$PWD/target}

# Python packages that the tests compare with. A finished installation has a copy of their list.
python=$target/python
list=tests/extra/requirements.txt
if [ "$(cat "$python/${list##*/}" 2>/dev/null)" != "$(cat $list)" ]; then
    [ -z "${THROTTLE_NO_INSTALL:-}" ] || stop "Python packages are missing in $python, and THROTTLE_NO_INSTALL is set"
    echo "==> about to install the Python packages of $list into $python"
    quietly python3 -m venv --clear "$python" || stop "could not make $python"
    quietly "$python/bin/python" -m pip install --disable-pip-version-check -r $list || stop "could not install $list"
    cat $list >"$python/${list##*/}"
fi
THROTTLE_PYTHON=$python/bin/python
PATH=$python/bin:$PATH
export THROTTLE_PYTHON PATH

# Clients of Node.js that the tests drive, in the same way.
node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' ||
    stop "Node.js is $(node --version), and its clients need 20; install that, then run this again"
THROTTLE_SDKS=$target/sdks
list=package-lock.json
if [ "$(cat "$THROTTLE_SDKS/installed" 2>/dev/null)" != "$(cat tests/extra/sdks/$list)" ]; then
    [ -z "${THROTTLE_NO_INSTALL:-}" ] || stop "packages are missing in $THROTTLE_SDKS, and THROTTLE_NO_INSTALL is set"
    echo "==> about to install the packages of tests/extra/sdks/$list into $THROTTLE_SDKS"
    rm -rf "$THROTTLE_SDKS"
    mkdir -p "$THROTTLE_SDKS"
    cp tests/extra/sdks/package.json tests/extra/sdks/$list "$THROTTLE_SDKS"
    (cd "$THROTTLE_SDKS" && quietly npm ci --ignore-scripts --no-audit --no-fund) || stop "could not install $list"
    cp tests/extra/sdks/$list "$THROTTLE_SDKS/installed"
fi
cp tests/extra/sdks/*.mjs "$THROTTLE_SDKS"
export THROTTLE_SDKS

echo "==> instructions, beside tests/peers/instructions.txt"
cargo run --quiet --manifest-path tests/peers/Cargo.toml --release --locked --no-default-features \
    --target-dir "$target" -- check

echo "==> the examples, and the tests of tests/extra"
# With the packages and features of tests/run.sh, and those that its tests need, so that only these programs are left
# to compile.
cargo build --workspace --all-features --test golden --target-dir "$target" \
    --bin dashboard --bin api --bin replay --bin ratelimit-server
THROTTLE_EXAMPLE=$target/debug/dashboard
THROTTLE_EXAMPLE_API=$target/debug/api
THROTTLE_EXAMPLE_REPLAY=$target/debug/replay
THROTTLE_EXAMPLE_RATELIMIT_SERVER=$target/debug/ratelimit-server
export THROTTLE_EXAMPLE THROTTLE_EXAMPLE_API THROTTLE_EXAMPLE_REPLAY THROTTLE_EXAMPLE_RATELIMIT_SERVER

# A pipe would hide the exit status, and a file alone would hide the progress.
: >"$log"
{
    cargo test --manifest-path tests/extra/Cargo.toml --locked --no-fail-fast --target-dir "$target" 2>&1 ||
        : >"$folder/failed"
} | tee -a "$log"
status=0
[ ! -e "$folder/failed" ] || status=1

awk -v status="$status" '
    /^test result:/ {
        passed += $4; failed += $6; ignored += $8 + $12
        if ($3 != "ok.") unwell = 1
    }
    /^test .* FAILED$/ { names = names "\n  " $2 }
    END {
        if (names != "") { print "\nfailed:" names; unwell = 1 }
        if (status != 0 && failed == 0) print "\nthe build failed, or a test ended its process; see above"
        if (ignored > 0) { print "\n" ignored " tests were left out"; unwell = 1 }
        printf "\nextra tests: %d passed, %d failed\n", passed, failed
        exit status != 0 || failed > 0 || passed == 0 || unwell
    }' "$log"
