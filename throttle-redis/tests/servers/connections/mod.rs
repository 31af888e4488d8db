//! Every way to reach a server: TLS, users with the documented rights, databases, pools, Sentinels,
//! custom connections.

mod app_pool;
mod proxies;
mod rights;
mod slow;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LimitTree, policy};
use throttle_core::backend::KeyStep;
use throttle_core::{Backend, FixedWindow, Key, Rate};
use throttle_redis::{
    Cluster, Command, Connection, ConnectionFuture, Connector, FaultKind, Pool, RedisBackend,
    RedisBuilder, Reply, Sentinel, Single, Tls,
};
use throttle_test_servers::{Cluster as Servers, Proxy, Sentinel as Sentinels, Server};

const PATIENT: Duration = Duration::from_secs(5);

fn day(limit: u64) -> throttle_core::Policy {
    policy("p", FixedWindow::new(Rate::per_day(limit)))
}

fn patient(connector: impl Connector) -> RedisBuilder {
    RedisBackend::builder(connector).deadline(PATIENT)
}

async fn decides(backend: &RedisBackend) {
    let limits = LimitTree::new(backend, day(3));
    for left in [2, 1, 0] {
        assert_eq!(limits.take("ada", 1).await.remaining(), left);
    }
    assert!(!limits.take("ada", 1).await.is_admitted());
    backend
        .run(&limits.prepared, 0, KeyStep::Reset(Key::from("ada")))
        .await
        .unwrap();
    assert_eq!(limits.left("ada").await, 3);
}

#[tokio::test]
async fn tls_works_without_anything_installed_beforehand() {
    let server = Server::builder().tls().start();
    let single = Single::new(&server.tls_url()).unwrap();
    // The server's certificate is signed by an unknown authority, and must be refused.
    let backend = patient(single).build().unwrap();
    let limits = LimitTree::new(&backend, day(3));
    let error = backend
        .decide(&limits.prepared, &limits.calls("ada", 1))
        .await
        .unwrap_err();
    assert!(error.is_uncharged(), "{error}");
    // A URL comes from configuration, and must not switch verification off.
    let url = format!("{}#insecure", server.tls_url());
    let refused = [
        Single::new(&url).err(),
        Pool::new(&url, 3).err(),
        Cluster::new([url.as_str()]).err(),
        Sentinel::new([url.as_str()], "master", None).err(),
        Sentinel::new(["redis://host"], "master", Some(&url)).err(),
    ];
    for error in refused {
        let error = error.expect("refused").to_string();
        assert!(
            error.contains("#insecure") && error.contains("Tls::authority"),
            "{error}"
        );
    }
}

/// The text of an error and of all its sources.
fn whole_message(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(
        || error.to_string(),
        |source| format!("{error}: {}", whole_message(source)),
    )
}

#[tokio::test]
async fn errors_of_connecting_tell_the_address_and_what_the_server_said() {
    let server = Server::builder().password("s3cret").start();
    let (address, nowhere) = (
        format!("127.0.0.1:{}", server.port()),
        "127.0.0.1:1".to_owned(),
    );
    let single = |url: &str| patient(Single::new(url).unwrap()).build().unwrap();
    let pooled = |url: &str| patient(Pool::new(url, 3).unwrap()).build().unwrap();
    let database = format!("redis://:s3cret@{address}/99");
    let wrong = format!("redis://:hunter2@{address}");
    let clustered = patient(Cluster::new(["redis://:hunter2@127.0.0.1:1"]).unwrap())
        .per_key_slot()
        .build()
        .unwrap();
    let sentinels = Sentinel::new(["redis://:hunter2@127.0.0.1:1"], "main", None).unwrap();
    for (backend, address, why) in [
        (single(&database), &address, "DB index is out of range"),
        (pooled(&database), &address, "DB index is out of range"),
        (single(&wrong), &address, "WRONGPASS"),
        (single("redis://:hunter2@127.0.0.1:1"), &nowhere, "refused"),
        (pooled("redis://:hunter2@127.0.0.1:1"), &nowhere, "refused"),
        (clustered, &nowhere, "refused"),
        (patient(sentinels).build().unwrap(), &nowhere, "\"main\""),
    ] {
        let limits = LimitTree::new(&backend, day(3));
        let error = backend
            .decide(&limits.prepared, &limits.calls("ada", 1))
            .await
            .unwrap_err();
        let text = whole_message(&error);
        assert!(
            text.contains(address.as_str()) && text.contains(why),
            "{text}"
        );
        assert!(
            !text.contains("s3cret") && !text.contains("hunter2"),
            "{text}"
        );
        assert!(error.is_uncharged(), "{text}");
    }
}

/// A connector tells a mistake in its configuration from an outage, for those who wrap it.
#[tokio::test]
async fn a_server_that_refuses_the_password_is_no_server_that_is_out_of_reach() {
    let server = Server::builder().password("s3cret").start();
    let wrong = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    for (url, kind) in [
        (wrong.as_str(), FaultKind::Refused),
        ("redis://127.0.0.1:1", FaultKind::NotSent),
    ] {
        let connectors: [Box<dyn Connector>; 2] = [
            Box::new(Single::new(url).unwrap()),
            Box::new(Pool::new(url, 3).unwrap()),
        ];
        for connector in connectors {
            let fault = connector
                .connect(PATIENT)
                .await
                .err()
                .expect("it does not connect");
            assert_eq!(fault.kind(), &kind, "{fault}");
        }
    }
}

/// The task that connects starts in the stopped runtime, and never runs, or never finishes.
#[test]
fn a_backend_built_in_a_runtime_that_stands_still_connects_from_another() {
    let server = Server::start();
    for polls in 0..3 {
        let still = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let backend = still.block_on(async {
            let builder = RedisBackend::builder(Single::new(&server.url()).unwrap())
                .prefix(format!("p{polls}"));
            let backend = builder.deadline(Duration::from_secs(1)).build().unwrap();
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            backend
        });
        let running = tokio::runtime::Runtime::new().unwrap();
        running.block_on(async {
            let (started, limits) = (Instant::now(), LimitTree::new(&backend, day(3)));
            while backend
                .decide(&limits.prepared, &limits.calls("ada", 1))
                .await
                .is_err()
            {
                assert!(
                    started.elapsed() < Duration::from_secs(30),
                    "never connected"
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        drop(still);
        running.block_on(async {
            let limits = LimitTree::new(&backend, day(3));
            assert_eq!(
                limits.take("bob", 1).await.remaining(),
                2,
                "what is in use does not depend on the first runtime"
            );
        });
    }
}

#[tokio::test]
async fn a_private_authority_can_be_trusted() {
    let server = Server::builder().tls().start();
    let tls = Tls::new().authority(server.tls().authority.as_str());
    decides(
        &patient(Single::with_tls(&server.tls_url(), &tls).unwrap())
            .build()
            .unwrap(),
    )
    .await;
}

#[tokio::test]
async fn a_server_that_demands_client_certificates_is_shown_one() {
    let server = Server::builder()
        .tls()
        .arg("--tls-auth-clients", "yes")
        .start();
    let trusting = Tls::new().authority(server.tls().authority.as_str());
    let refused = patient(Single::with_tls(&server.tls_url(), &trusting).unwrap())
        .build()
        .unwrap();
    let limits = LimitTree::new(&refused, day(3));
    assert!(
        refused
            .decide(&limits.prepared, &limits.calls("ada", 1))
            .await
            .is_err(),
        "without a certificate"
    );

    let tls = trusting.client_certificate(
        server.tls().client_certificate.as_str(),
        server.tls().client_key.as_str(),
    );
    assert_eq!(format!("{tls:?}"), "Tls { authority: true, client: true }");
    let swapped = Tls::new().client_certificate(server.tls().client_key.as_str(), "");
    assert_eq!(
        Cluster::with_tls([server.tls_url().as_str()], &swapped)
            .err()
            .unwrap()
            .field(),
        "client certificate"
    );
    decides(
        &patient(Single::with_tls(&server.tls_url(), &tls).unwrap())
            .build()
            .unwrap(),
    )
    .await;
    decides(
        &patient(Pool::with_tls(&server.tls_url(), 2, &tls).unwrap())
            .prefix("pool")
            .build()
            .unwrap(),
    )
    .await;
}

#[tokio::test]
async fn passwords_and_databases_are_those_of_the_url() {
    let server = Server::builder().password("s3cret").start();
    let wrong =
        patient(Single::new(&format!("redis://:wrong@127.0.0.1:{}", server.port())).unwrap())
            .build()
            .unwrap();
    let limits = LimitTree::new(&wrong, day(3));
    let error = wrong
        .decide(&limits.prepared, &limits.calls("ada", 1))
        .await
        .unwrap_err();
    assert!(error.is_uncharged(), "{error}");
    assert!(!format!("{error:?}").contains("wrong@"), "{error:?}");
    for database in [0, 3] {
        let url = format!("{}/{database}", server.url());
        let backend = patient(Single::new(&url).unwrap()).build().unwrap();
        decides(&backend).await;
        assert!(
            LimitTree::new(&backend, day(3))
                .take("bob", 1)
                .await
                .is_admitted()
        );
    }
    assert!(
        server.info("db3").starts_with("keys=1,"),
        "a key of its own in database 3"
    );
}

#[tokio::test]
async fn a_master_and_its_sentinels_may_have_certificates_of_a_private_authority() {
    let sentinels = Sentinels::start_with_tls();
    let files = sentinels.servers()[0].tls();
    let tls = Tls::new()
        .authority(files.authority.as_str())
        .client_certificate(files.client_certificate.as_str(), files.client_key.as_str());
    let (plain, secure) = (sentinels.urls(), sentinels.sentinels()[0].tls_url());
    for (number, sentinel) in [plain[0].as_str(), secure.as_str()].into_iter().enumerate() {
        let connector = |tls| {
            let master = Some("rediss://ignored");
            Sentinel::with_tls([sentinel], Sentinels::NAME, master, tls).unwrap()
        };
        let backend = patient(connector(&tls)).prefix(format!("p{number}"));
        decides(&backend.build().unwrap()).await;
        let trusting = Tls::new().authority(files.authority.as_str());
        let refused = connector(&trusting).connect(PATIENT).await.err();
        assert!(refused.is_some(), "without a certificate");
    }
}

#[tokio::test]
async fn sentinels_are_asked_again_when_the_master_changes() {
    let sentinels = Sentinels::start(1);
    // One of the Sentinels cannot be reached.
    let urls: Vec<String> = ["redis://127.0.0.1:1".to_owned()]
        .into_iter()
        .chain(sentinels.urls())
        .collect();
    let database = Some("redis://ignored/3");
    let connector =
        Sentinel::new(urls.iter().map(String::as_str), Sentinels::NAME, database).unwrap();
    let backend = RedisBackend::builder(connector)
        .deadline(Duration::from_millis(500))
        .build()
        .unwrap();
    decides(&backend).await;
    let old = sentinels.master();
    let connector = Sentinel::new(urls.iter().map(String::as_str), Sentinels::NAME, None).unwrap();
    waits_for_a_slow_answer(&patient(connector).build().unwrap(), old).await;
    assert!(
        LimitTree::new(&backend, day(3))
            .take("eve", 1)
            .await
            .is_admitted()
    );
    assert!(
        old.info("db3").starts_with("keys=1,"),
        "the settings of the master are those of its own URL"
    );
    old.kill();
    sentinels.wait_for_failover_from(old);
    let (started, limits) = (Instant::now(), LimitTree::new(&backend, day(1_000_000)));
    while backend
        .decide(&limits.prepared, &limits.calls("bob", 1))
        .await
        .is_err()
    {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "never came to the new master"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Only the deadline of a decision bounds how long its server may take.
async fn waits_for_a_slow_answer(backend: &RedisBackend, server: &Server) {
    let limits = LimitTree::new(backend, day(3));
    assert_eq!(limits.take("slow", 1).await.remaining(), 2);
    let paused = Instant::now();
    // The client by itself would give up after 500 ms. Sentinels consider a master dead after a
    // second.
    server.command(&["CLIENT", "PAUSE", "600", "WRITE"]);
    assert_eq!(limits.take("slow", 1).await.remaining(), 1);
    assert!(
        paused.elapsed() > Duration::from_millis(550),
        "the server has answered after {:?}",
        paused.elapsed()
    );
    assert_eq!(
        (backend.stats().failures, backend.stats().connections),
        (0, 1)
    );
}

#[tokio::test]
async fn a_pool_replaces_connections_that_broke_and_opens_no_more_than_it_may() {
    let server = Server::start();
    let backend = patient(Pool::new(&server.url(), 3).unwrap())
        .max_batch(1)
        .build()
        .unwrap();
    decides(&backend).await;
    let limits = Arc::new(LimitTree::new(&backend, day(1_000_000)));
    for round in 0..3 {
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let limits = Arc::clone(&limits);
            asking.spawn(async move {
                limits
                    .backend
                    .decide(&limits.prepared, &limits.calls("x", 1))
                    .await
                    .is_ok()
            });
        }
        let answered = asking.join_all().await.into_iter().filter(|ok| *ok).count();
        assert!(answered > 0 || round > 0);
        let clients: String = server.query(&["CLIENT", "LIST", "TYPE", "normal"]);
        let ours = clients
            .lines()
            .filter(|line| line.contains("cmd=evalsha"))
            .count();
        assert!((1..=3).contains(&ours), "{clients}");
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let started = Instant::now();
        while backend
            .decide(&limits.prepared, &limits.calls("x", 1))
            .await
            .is_err()
        {
            assert!(
                started.elapsed() < Duration::from_secs(5),
                "broken connections were not replaced"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A custom connection that counts its calls.
struct Counting(Single, Arc<AtomicUsize>);

struct Counted(Box<dyn Connection>, Arc<AtomicUsize>);

impl Connector for Counting {
    fn connect(&self, timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        let (opening, count) = (self.0.connect(timeout), Arc::clone(&self.1));
        Box::pin(async move { Ok(Box::new(Counted(opening.await?, count)) as Box<dyn Connection>) })
    }
}

impl Connection for Counted {
    fn call(&self, command: Command) -> ConnectionFuture<Reply> {
        self.1.fetch_add(1, Ordering::Relaxed);
        assert!(!format!("{command:?}").contains("ada"), "no key is shown");
        self.0.call(command)
    }
}

/// Asks for the password at each attempt.
struct Rotating(u16, Arc<std::sync::Mutex<&'static str>>);

impl Connector for Rotating {
    fn connect(&self, timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        let password = *self.1.lock().unwrap();
        let url = format!("redis://limiter:{password}@127.0.0.1:{}", self.0);
        Single::new(&url).unwrap().connect(timeout)
    }
}

#[tokio::test]
async fn a_password_may_be_rotated_if_the_connector_asks_for_it_each_time() {
    let server = Server::builder()
        .user("limiter", "on >one ~* +@all")
        .start();
    let password = Arc::new(std::sync::Mutex::new("one"));
    let rotating = Rotating(server.port(), Arc::clone(&password));
    let backend = patient(rotating).build().unwrap();
    let fixed = Single::new(&server.url_of("limiter", "one")).unwrap();
    let fixed = patient(fixed).prefix("fixed").build().unwrap();
    decides(&backend).await;
    decides(&fixed).await;
    server.command(&["ACL", "SETUSER", "limiter", "<one", ">two"]);
    *password.lock().unwrap() = "two";
    decides(&fixed).await;
    server.command(&["CLIENT", "KILL", "USER", "limiter"]);
    decides(&backend).await;
    assert_eq!(backend.stats().failures, 0);
    let limits = LimitTree::new(&fixed, day(3));
    let error = backend_error(&fixed, &limits).await;
    assert!(whole_message(&error).contains("WRONGPASS"), "{error}");
}

async fn backend_error(backend: &RedisBackend, limits: &LimitTree) -> throttle_core::BackendError {
    let decided = backend.decide(&limits.prepared, &limits.calls("ada", 1));
    decided.await.unwrap_err()
}

#[tokio::test]
async fn a_decision_is_one_round_trip_whatever_the_number_of_limits() {
    let server = Server::start();
    let count = Arc::new(AtomicUsize::new(0));
    let connector = Counting(Single::new(&server.url()).unwrap(), Arc::clone(&count));
    let backend = patient(connector).build().unwrap();
    decides(&backend).await;
    let members = (0..10)
        .map(|i| policy(&format!("p{i}"), FixedWindow::new(Rate::per_day(9))).into())
        .collect();
    let ten = LimitTree::new(&backend, throttle_core::PolicyTree::All(members));
    assert!(ten.take("ada", 1).await.is_admitted());
    let before = count.load(Ordering::Relaxed);
    for _ in 0..5 {
        assert!(ten.take("ada", 1).await.is_admitted());
    }
    assert_eq!(count.load(Ordering::Relaxed) - before, 5);
}

#[tokio::test]
async fn keys_that_are_alike_are_decided_together_even_when_spread() {
    let servers = Servers::shared();
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).unwrap();
    let backend = patient(cluster)
        .prefix("alike")
        .per_key_slot()
        .build()
        .unwrap();
    let members = ["minute", "day"]
        .map(|name| policy(name, FixedWindow::new(Rate::per_day(9))).into())
        .to_vec();
    let both = LimitTree::new(&backend, throttle_core::PolicyTree::All(members));
    assert!(both.take("ada", 1).await.is_admitted());
    let calls = backend.stats().calls;
    assert!(both.take("ada", 1).await.is_admitted());
    assert_eq!(backend.stats().calls - calls, 1, "one call for both");
    backend.reset_all("").await.unwrap();
    assert_eq!(both.left("ada").await, 9);
}

#[tokio::test]
async fn a_cluster_is_reached_by_any_of_its_urls() {
    let urls = Servers::shared().urls();
    for place in [0, 1] {
        let mut two = vec![urls[0].as_str()];
        two.insert(place, "redis://127.0.0.1:1");
        let backend = patient(Cluster::new(two).unwrap())
            .prefix(format!("two{place}"))
            .per_key_slot();
        decides(&backend.build().unwrap()).await;
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_server_is_reached_by_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("throttle-{}.sock", std::process::id()));
    let path = path.to_str().unwrap();
    let server = Server::builder().arg("--unixsocket", path).start();
    let url = format!("unix://{path}");
    let (single, pool) = (Single::new(&url).unwrap(), Pool::new(&url, 2).unwrap());
    assert_eq!(
        (single.address().as_deref(), pool.address().as_deref()),
        (Some(path), Some(path))
    );
    decides(&patient(single).build().unwrap()).await;
    decides(&patient(pool).prefix("pool").build().unwrap()).await;
    // The server is killed, and leaves its socket behind.
    drop(server);
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn broken_connection_of_a_pool_is_not_used_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let backend = patient(Pool::new(&proxy.url(), 1).unwrap())
        .build()
        .unwrap();
    let limits = LimitTree::new(&backend, day(3));
    assert_eq!(limits.take("ada", 1).await.remaining(), 2);
    proxy.delay_replies(Duration::from_secs(1));
    assert_eq!(limits.take("ada", 1).await.remaining(), 1);
    proxy.delay_replies(Duration::ZERO);
    assert_eq!((proxy.connections(), backend.stats().failures), (1, 0));
    proxy.reset_all();
    let began = Instant::now();
    while backend.stats().connections < 2 {
        assert!(
            began.elapsed() < PATIENT,
            "the end of the connection is not noticed"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    backend
        .run(&limits.prepared, 0, KeyStep::Reset(Key::from("ada")))
        .await
        .unwrap();
    assert_eq!(
        (
            limits.left("ada").await,
            proxy.connections(),
            backend.stats().connections
        ),
        (3, 2, 2)
    );
}
