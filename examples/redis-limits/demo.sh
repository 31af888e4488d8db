#!/bin/sh
# Two server processes share their limits through one Redis. Then Redis goes away, and comes back.
set -eu
cd "$(dirname "$0")"

for tool in redis-server curl cargo; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "this needs $tool; for redis-server: apt-get install redis-server, or brew install redis" >&2
        exit 1
    }
done

redis_port=${REDIS_PORT:-6390}
one=${PORT_ONE:-3001}
two=${PORT_TWO:-3002}
running=
trap 'kill $running 2>/dev/null || true; wait 2>/dev/null || true' EXIT INT TERM

start_redis() {
    redis-server --port "$redis_port" --save '' --appendonly no --loglevel warning >/dev/null &
    redis=$!
    running="$running $redis"
}

ask() {
    curl -s -o /dev/null -w '%{http_code} ' "http://127.0.0.1:$1/"
}

both() {
    for _ in $(seq "$1"); do
        ask "$one"
        ask "$two"
    done
    echo
}

cargo build --quiet
start_redis
for port in "$one" "$two"; do
    REDIS_URL="redis://127.0.0.1:$redis_port" PORT=$port cargo run --quiet &
    running="$running $!"
done
for port in "$one" "$two"; do
    until curl -s -o /dev/null "http://127.0.0.1:$port/"; do sleep 0.1; done
done

# Lets the requests that waited for the servers drain from the limit.
sleep 3
echo "== sixteen requests in turn: the two processes admit ten together, not ten each"
both 8
echo "== either process answers a refusal with the time to retry"
curl -s -i "http://127.0.0.1:$two/" | grep -i -E '^(HTTP|ratelimit|retry-after)'
echo "== Redis goes away: each process admits its share, five"
sleep 11
kill -9 "$redis"
both 8
echo "== Redis is back, and they count together again"
start_redis
sleep 1
curl -s "http://127.0.0.1:$one/"
curl -s "http://127.0.0.1:$two/"
