//! The least that a rate limiter on a Redis does: a counter with an expiry, in a script.

use redis::Script;
use redis::aio::MultiplexedConnection;
use throttle_test_servers::Server as Redis;

use super::load::{Client, IN_FLIGHT};

const COUNTER: &str = "
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], 60000) end
return count";

/// A connection that waits for each answer.
pub struct Bare {
    connection: MultiplexedConnection,
    script: Script,
}

impl Bare {
    pub async fn connected(redis: &Redis) -> Vec<Self> {
        let client = redis::Client::open(redis.url()).expect("a URL");
        let mut clients = Vec::new();
        for _ in 0..IN_FLIGHT {
            let connection = client.get_multiplexed_async_connection().await;
            clients.push(Self {
                connection: connection.expect("the Redis answers"),
                script: Script::new(COUNTER),
            });
        }
        clients
    }
}

impl Client for Bare {
    async fn ask(&mut self, number: u32) {
        let key = format!("bare:{}", number % 10_000);
        let call = self.script.key(key);
        let counted = call.invoke_async::<u64>(&mut self.connection).await;
        counted.expect("the Redis counts");
    }
}
