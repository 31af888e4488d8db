//! The server: one route for each way in which a limit holds something, each with its limit. Every
//! layer counts its events, and a middleware before it the requests that arrive and those that are
//! dropped.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::get;
use throttle_redis::{RedisBackend, Single};
use throttle_rules::{Handle, Registry, Rules};
use throttle_tower::shape::Shaper;
use throttle_tower::throttle_core::Backend;
use throttle_tower::{
    Constant, Event, Gcra, Header, InFlight, MemoryBackend, OnError, Pace, Rate, ThrottleBuilder,
    ThrottleLayer, Usage, all, limit,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The routes, each with a layer of its name.
pub(crate) const ROUTES: [&str; 7] = [
    "memory",
    "held",
    "permits",
    "settled",
    "redis",
    "redis-held",
    "rules",
];

/// Requests a second of each key, and at once.
pub(crate) const RATE: u64 = 40;
pub(crate) const BURST: u64 = 20;
/// Calls a second of each shaper.
const PACE: u64 = 100;
const PERMITS: u64 = 2;

/// What the keys begin with that have most of the requests.
pub(crate) const BUSY: &str = "key-";

/// What one layer and its clients have done.
#[derive(Default)]
pub(crate) struct Count {
    arrived: AtomicU64,
    dropped: AtomicU64,
    events: AtomicU64,
    /// Admitted requests of the busy keys.
    admitted: Mutex<BTreeMap<String, u64>>,
}

pub(crate) struct App {
    pub(crate) url: String,
    pub(crate) shapers: (Shaper, Shaper),
    counts: BTreeMap<&'static str, Arc<Count>>,
    permits: ThrottleLayer<MemoryBackend>,
    settled: Vec<ThrottleLayer<MemoryBackend>>,
    redis: Vec<ThrottleLayer<RedisBackend>>,
    rules: Handle,
    stopping: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

fn per_key(name: &str) -> throttle_tower::Limit {
    limit(name, Gcra::new(Rate::per_second(RATE)).burst(BURST)).by(Header::new("x-api-key"))
}

fn rules_text(revision: u32) -> String {
    let burst = BURST - u64::from(revision % 2) * 10;
    format!(
        "version = 1\n[[limit]]\nname = \"rules\"\ngcra = {{ rate = \"{RATE}/second\", burst = \
            {burst} }}\nby = \"api-key\"\n"
    )
}

/// Counts a request that was dropped before its response was there.
struct Arrival<'a>(&'a Count, bool);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0
            .dropped
            .fetch_add(u64::from(!self.1), Ordering::SeqCst);
    }
}

impl Count {
    fn event(&self, event: &Event<'_>) {
        self.events.fetch_add(1, Ordering::SeqCst);
        if event.outcome.is_passed_on() {
            let key = event.parts.headers["x-api-key"]
                .to_str()
                .expect("a key of these tests");
            // A new key has one request, and so many of them would be counted as growth.
            if key.starts_with(BUSY) {
                *self
                    .admitted
                    .lock()
                    .expect("no panic")
                    .entry(key.to_owned())
                    .or_default() += 1;
            }
        }
    }
}

impl App {
    /// Connections to Redis: the backend keeps one, and may be opening another.
    pub(crate) const CONNECTIONS: usize = 2;

    pub(crate) async fn start(redis: &str) -> Self {
        let counts: BTreeMap<_, Arc<Count>> = ROUTES
            .iter()
            .map(|route| (*route, Arc::default()))
            .collect();
        let memory = MemoryBackend::builder().max_keys(10_000).build();
        let store = RedisBackend::builder(Single::new(redis).expect("a URL"))
            .build()
            .expect("options");
        fn counted<B: Backend>(
            builder: ThrottleBuilder<B>,
            count: &Arc<Count>,
        ) -> ThrottleBuilder<B> {
            let count = Arc::clone(count);
            builder.on_decision(move |event| count.event(event))
        }
        let in_memory = |route: &'static str, limits: throttle_tower::LimitTree| {
            let builder = ThrottleLayer::builder(limits).backend(memory.clone());
            counted(builder, &counts[route]).build().expect("limits")
        };
        let on_redis = |route: &'static str, limits: throttle_tower::Limit| {
            let limits = limits.on_error(OnError::local(2));
            let builder = ThrottleLayer::builder(limits).backend(store.clone());
            counted(builder, &counts[route])
                .build()
                .expect("small limits")
        };
        let held = Duration::from_millis(300);
        let plain = in_memory("memory", per_key("memory").into());
        let waiting = in_memory("held", per_key("held").wait_up_to(held).into());
        let permits = in_memory(
            "permits",
            all([
                per_key("permits").into(),
                throttle_tower::LimitTree::from(
                    limit("in-flight", InFlight::new(PERMITS)).by(Constant),
                ),
            ]),
        );
        let settled = in_memory("settled", per_key("settled").cost(4).settled_later().into());
        let redis = vec![
            on_redis("redis", per_key("redis").cost(2).settled_later()),
            on_redis("redis-held", per_key("redis-held").wait_up_to(held)),
        ];
        let registry = Registry::new().key("api-key", Header::new("x-api-key"));
        let rules = Rules::from_str("soak.toml", &rules_text(0), registry).expect("rules");
        let program = ThrottleLayer::builder(()).backend(memory.clone());
        let program = counted(program, &counts["rules"]);
        let (ruled, rules) = rules.layer_with(program).expect("room");

        let of = |route: &'static str, router: Router| {
            let count = Arc::clone(&counts[route]);
            let counting = move |request: Request, next: Next| {
                let count = Arc::clone(&count);
                async move {
                    count.arrived.fetch_add(1, Ordering::SeqCst);
                    let mut arrival = Arrival(&count, false);
                    let response = next.run(request).await;
                    arrival.1 = true;
                    response
                }
            };
            Router::new().nest(&format!("/{route}"), router.layer(from_fn(counting)))
        };
        let quick = || Router::new().route("/", get(async || "quick"));
        let slow = || {
            Router::new().route(
                "/",
                get(async || tokio::time::sleep(Duration::from_millis(5)).await),
            )
        };
        let settling = || Router::new().route("/", get(settle));
        let app = of("memory", quick().layer(plain))
            .merge(of("held", quick().layer(waiting)))
            .merge(of("permits", slow().layer(permits.clone())))
            .merge(of("settled", settling().layer(settled.clone())))
            .merge(of("redis", settling().layer(redis[0].clone())))
            .merge(of("redis-held", quick().layer(redis[1].clone())))
            .merge(of("rules", quick().layer(ruled)));
        let pace = || Pace::new(Rate::per_second(PACE)).max_wait(Duration::from_secs(1));
        let shared = Shaper::builder(pace())
            .backend(store)
            .name("shaped")
            .on_error(OnError::Closed)
            .build();
        let shapers = (
            Shaper::new(pace()).expect("a pace"),
            shared.expect("a pace"),
        );

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (stopping, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let serving = axum::serve(
                listener,
                app.into_make_service_with_connect_info::<SocketAddr>(),
            );
            serving
                .with_graceful_shutdown(async move { drop(stopped.await) })
                .await
                .expect(
                    "a \
                server",
                );
        });
        Self {
            url,
            shapers,
            counts,
            permits,
            settled: vec![settled],
            redis,
            rules,
            stopping,
            serving,
        }
    }

    /// Puts other limits in force.
    pub(crate) fn reload(&self, revision: u32) {
        self.rules
            .replace(&rules_text(revision + 1))
            .expect("good rules");
    }

    /// The numbers that the soak prints.
    pub(crate) fn shown(&self) -> String {
        let sum = |of: fn(&Count) -> &AtomicU64| {
            self.counts
                .values()
                .map(|count| of(count).load(Ordering::SeqCst))
                .sum::<u64>()
        };
        let (local, shared) = (self.shapers.0.stats(), self.shapers.1.stats());
        format!(
            "{} requests, {} dropped; {} and {} shaped calls, {} cancelled",
            sum(|count| &count.arrived),
            sum(|count| &count.dropped),
            local.sent,
            shared.sent,
            local.cancelled + shared.cancelled
        )
    }

    /// Whether nothing is held: no permit, no correction of a charge, and no waiting call.
    pub(crate) fn is_idle(&self) -> Result<(), String> {
        let pending = |of: &mut dyn Iterator<Item = u64>| of.sum::<u64>();
        let held = self.permits.in_flight("in-flight").expect("it has permits");
        let settling = pending(&mut self.settled.iter().map(|layer| layer.settlements().pending))
            + pending(&mut self.redis.iter().map(|layer| layer.settlements().pending));
        let waiting = self.shapers.0.stats().waiting + self.shapers.1.stats().waiting;
        if (held, settling, waiting) == (0, 0, 0) {
            return Ok(());
        }
        Err(format!(
            "{held} permits, {settling} corrections and {waiting} waiting calls are left"
        ))
    }

    /// Each request has one event, and no key was admitted more than its limit permits.
    pub(crate) fn check_counts(
        &self,
        sent: &BTreeMap<&'static str, u64>,
        took: Duration,
        lost: u32,
    ) {
        let seconds = took.as_secs() + 1;
        for (route, count) in &self.counts {
            let [arrived, dropped, events] =
                [&count.arrived, &count.dropped, &count.events].map(|n| n.load(Ordering::SeqCst));
            assert!(
                arrived <= sent[route],
                "{route}: {arrived} arrived of {}",
                sent[route]
            );
            // One that is dropped while it waits has none.
            assert!(
                (arrived - dropped..=arrived).contains(&events),
                "{route}: {events} events of {arrived}, {dropped} dropped"
            );
            assert!(events > 0, "{route}: no load");
            // A server that lost its states admits a burst again, and while it fails this process
            // admits its share.
            let bound = match *route {
                "redis" | "redis-held" => BURST * (2 + u64::from(lost)) + RATE * seconds * 3 / 2,
                // What is held may leave 50 ms late.
                "held" => BURST + RATE * seconds + RATE / 20,
                _ => BURST + RATE * seconds,
            };
            for (key, admitted) in &*count.admitted.lock().expect("no panic") {
                assert!(
                    *admitted <= bound,
                    "{route}: {admitted} of {bound} for {key}"
                );
            }
        }
        let shared = self.shapers.1.stats().sent;
        for (sent, lost) in [(self.shapers.0.stats().sent, 0), (shared, u64::from(lost))] {
            assert!(
                sent > 0 && sent <= PACE * seconds + 1 + lost,
                "{sent} shaped calls in \
                {seconds} s"
            );
        }
    }

    /// Ends the server and everything that it has.
    pub(crate) async fn stop(self) {
        let _ = self.stopping.send(());
        self.serving.await.expect("the server ends");
    }
}

/// Uses up to twice as much as was charged, or nothing.
async fn settle(usage: Usage) -> &'static str {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    usage
        .settle_all(NEXT.fetch_add(1, Ordering::Relaxed) % 8)
        .expect("it is settled later");
    "settled"
}
