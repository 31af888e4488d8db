//! `examples/ratelimit-server` on a Redis that sentinels watch, and on a cluster, each by the URL
//! that a user writes.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use throttle_extra::child::{self, Child};
use throttle_extra::web;
use throttle_test_servers::{Cluster, Sentinel};

/// No window ends during a test: it is a year.
const LIMITS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 50 }
  - key: path
    rate_limit: { unit: year, requests_per_unit: 40 }
";

/// Two servers that share a store.
struct Servers {
    running: [Child; 2],
    urls: [String; 2],
}

impl Servers {
    fn start(scheme: &str, stores: &[String], rest: &str, is_per_key: bool) -> Self {
        let hosts: Vec<_> = stores
            .iter()
            .map(|url| url.strip_prefix("redis://").unwrap())
            .collect();
        let store = format!("{scheme}://{}{rest}", hosts.join(","));
        let ports = [(); 2].map(|()| child::free_port());
        Self {
            running: ports.map(|port| server(&store, port, is_per_key)),
            urls: ports.map(|port| format!("http://127.0.0.1:{port}/json")),
        }
    }

    /// How many of so many requests are admitted, which ask both servers in turn.
    async fn admitted(&self, requests: usize, entries: &[(&str, &str)]) -> usize {
        let mut admitted = 0;
        for turn in 0..requests {
            match self.status(turn, entries).await {
                200 => admitted += 1,
                status => assert_eq!(status, 429, "{}", self.running[turn % 2].output()),
            }
        }
        admitted
    }

    async fn status(&self, turn: usize, entries: &[(&str, &str)]) -> u16 {
        let descriptors: Vec<_> = entries
            .iter()
            .map(|(key, value)| json!({ "entries": [{ "key": key, "value": value }] }))
            .collect();
        let body = json!({ "domain": "shop", "descriptors": descriptors });
        let request = web::client()
            .post(&self.urls[turn % 2])
            .header("content-type", "application/json")
            .body(body.to_string());
        request.send().await.unwrap().status().as_u16()
    }
}

fn server(store: &str, port: u16, is_per_key: bool) -> Child {
    let program = std::env::var_os("THROTTLE_EXAMPLE_RATELIMIT_SERVER").map(PathBuf::from);
    let program = program.expect(
        "THROTTLE_EXAMPLE_RATELIMIT_SERVER names the program; `sh tests/extra.sh` builds it",
    );
    let folder = child::folder();
    fs::write(folder.join("limits.yaml"), LIMITS).unwrap();
    // A machine that is busy must not make a decision fail.
    let settings = format!(
        "limits = \"limits.yaml\"\nstore = \"{store}\"\nstore-milliseconds = 10000\n\
         per-key-slot = {is_per_key}\nhttp = \"127.0.0.1:{port}\"\n\
         grpc = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n"
    );
    fs::write(folder.join("throttle.toml"), settings).unwrap();
    let server = Child::start(folder, &program, &["throttle.toml"], &[]);
    server.wait_for_output("listening");
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_name_the_store_and_its_successor_keeps_the_counts() {
    let group = Sentinel::start(3);
    let rest = format!("/{}", Sentinel::NAME);
    let servers = Servers::start("redis+sentinel", &group.urls(), &rest, false);
    let both = [("user", "ada"), ("path", "/")];
    assert_eq!(servers.admitted(60, &both).await, 40);
    let master = group.master();
    assert_eq!(master.query::<u64>(&["WAIT", "1", "20000"]), 1);
    master.kill();
    group.wait_for_failover_from(master);
    web::until(Duration::from_secs(30), "the successor", async || {
        for turn in 0..2 {
            match servers.status(turn, &[("user", "eve")]).await {
                200 => {}
                status => return Err(format!("{status}")),
            }
        }
        Ok(())
    })
    .await;
    assert_eq!(servers.admitted(10, &both).await, 0);
    assert_eq!(
        servers.admitted(20, &[("user", "ada")]).await,
        10,
        "a refused request has charged nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_shares_the_limits_in_one_slot_and_in_many() {
    let cluster = Cluster::start();
    for (is_per_key, user, path) in [(false, "ada", "/a"), (true, "eve", "/b")] {
        let servers = Servers::start("redis+cluster", &cluster.urls(), "", is_per_key);
        let both = [("user", user), ("path", path)];
        assert_eq!(servers.admitted(60, &both).await, 40, "{is_per_key}");
        assert_eq!(
            servers.admitted(20, &both[..1]).await,
            10,
            "a refused request has charged nothing"
        );
        let keys = cluster.keys("ratelimit*");
        let slots: std::collections::BTreeSet<_> = keys.iter().map(|key| tag(key)).collect();
        assert_eq!(slots.len() > 1, is_per_key, "{slots:?}");
    }
}

/// What of a key says where it is: all in braces, or the key.
fn tag(key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    tag.map_or(key.to_string(), |(tag, _)| tag.to_owned())
}
