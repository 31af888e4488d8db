//! The Redis backend of throttle: rate limits that many processes share.
//!
//! ```no_run
//! use throttle_redis::RedisBackend;
//! use throttle_core::{Gcra, Key, PolicySet, Limiter, Policy, Rate};
//! use throttle_core::backend::Call;
//!
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = RedisBackend::new("redis://127.0.0.1:6379")?;
//! let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_minute(100)))?)?;
//! let limiter = Limiter::new(backend, set)?;
//! let decision = limiter.decide(&[Call::from(Key::from("ada"))]).await?;
//! println!("{} left", decision.remaining());
//! # Ok(())
//! # }
//! ```
//!
//! With the layer of `tower-throttle`:
//! `ThrottleLayer::builder(limits).on_error(OnError::Open).backend(backend).build()?`.
//!
//! # What it promises
//!
//! * **The same decisions as in memory, bit for bit.** The script on the server reads the time and
//!   the states, decides whether the request is admitted, and writes. It replies with the time and
//!   the states, and this crate computes the decision from them with the code of the in-memory
//!   backend. All numbers are integers below 2^53, which a Lua number holds exactly.
//! * **One round trip**, whatever the number of limits; all of them charged, or none. The
//!   exceptions are a request whose keys are in several [slots of a
//!   cluster](RedisBuilder::per_key_slot), and [the application's pool](Pool::existing), whose
//!   connections are checked before each call.
//! * **At most once.** A command is repeated only after an answer that proves that it did not run.
//!   If an answer is lost, the decision fails with an error that states whether it may have been
//!   charged ([`BackendError::is_uncharged`](throttle_core::BackendError::is_uncharged)), and it is
//!   never charged twice. A future may be dropped at any point.
//! * **Never slower than its deadline** (25 ms by default). After five failures in a row a breaker
//!   opens, and decisions fail immediately until the store gives a [sign of
//!   life](RedisBuilder::breaker_threshold). Connecting never blocks the start of a service.
//! * **The end of an idle connection costs no decision.** It is noticed when it comes, and
//!   decisions wait for the next connection within their deadlines. If a connection ends without a
//!   word, because packets are dropped, the decisions of one deadline fail. Connections use RESP3,
//!   in which the client reports the end; where a proxy only knows RESP2, the first decision after
//!   the end fails.
//! * **One state for a key**, whatever parameters decide: a tier, a key's own parameters, or those
//!   of another version of the program. The value names the parameters that wrote it, and others
//!   read it as so many used units.
//! * **Every key expires.** A key lives until the end of the five seconds in which its reset lies,
//!   plus ten seconds. A charge that leaves the reset within the same five seconds keeps the
//!   expiry.
//!
//! # Which connection
//!
//! | connector | feature | for |
//! |---|---|---|
//! | [`Single`] | | one server over one connection, which is enough for all that the server can process. The default |
//! | [`Pool`] | `pool` | one server over a few connections |
//! | [`Pool::existing`] | `pool` | the `bb8_redis` pool that the application has |
//! | [`Sentinel`] | `sentinel` | the master that the Sentinels name; each new connection asks them again |
//! | [`Cluster`] | `cluster` | a Redis Cluster |
//! | your own | | implement [`Connector`] |
//!
//! `rediss://` needs the feature `tls`. The server's certificate is always verified; a URL with
//! `#insecure` is refused. Each connector that takes a URL has a `with_tls`, for a certificate
//! authority and a client certificate of your own; [`Pool::existing`] has the TLS of its pool. The
//! backend installs a crypto provider for rustls unless the application has installed one.
//!
//! An attempt to connect may take a second, and longer with
//! [`connect_timeout`](RedisBuilder::connect_timeout): set it if the server is far away.
//!
//! A proxy that knows no `HELLO` (twemproxy, older Envoy) is connected to in RESP2. The scripts
//! need `EVALSHA` and `EVAL`; `SCRIPT` is not used.
//!
//! ## Passwords that change
//!
//! A connector reads its URL once. If the password is rotated, the open connection stays in use,
//! and the next attempt to connect is refused. A connector of your own can ask for the credentials
//! at each attempt, and wrap another one:
//!
//! ```
//! use std::time::Duration;
//! use throttle_redis::{Connection, Connector, Fault, FaultKind, ConnectionFuture, RedisBackend, Single};
//!
//! /// Reads the password from a file that a secret store keeps up to date.
//! struct FromFile;
//!
//! impl Connector for FromFile {
//!     fn connect(&self, timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
//!         Box::pin(async move {
//!             let fault = |why: String| Fault::new(FaultKind::NotSent, why);
//!             let password = std::fs::read_to_string("/run/secrets/redis")
//!                 .map_err(|error| fault(format!("/run/secrets/redis: {error}")))?;
//!             let url = format!("redis://limiter:{}@redis.internal", password.trim());
//!             let single = Single::new(&url).map_err(|error| fault(error.to_string()))?;
//!             single.connect(timeout).await
//!         })
//!     }
//! }
//!
//! RedisBackend::builder(FromFile).build()?;
//! # Ok::<_, throttle_core::ConfigError>(())
//! ```
//!
//! A password with a character that URLs reserve must be percent-encoded.
//!
//! # Which placement on a cluster
//!
//! A cluster runs a script only if all of its keys are on one server. So there are three
//! placements, and no default:
//!
//! ```text
//!  .single_slot("api")                            .per_key_slot()
//!
//!  slot of {api} ─► server 1                      slot of {ada}       ─► server 1   per-user
//!    {api}per-ip:…  {api}per-user:…  {api}pool:…  slot of {192.0.2.1} ─► server 2   per-ip
//!                                                 slot of {*}         ─► server 3   pool
//!  one atomic step, one server for this backend   each policy where its key is; what was charged
//!  (other backends: other tags, other servers)    in vain is given back exactly
//!
//!  .slot_by_first_part()
//!
//!  slot of {acme} ─► server 1   per-tenant:     per-user:acme,ada   per-route:acme,/orders
//!  slot of {umbra} ─► server 2  per-tenant:     per-user:umbra,eve  per-route:umbra,/orders
//!
//!  one atomic step for the limits of one customer, all servers for the customers together
//! ```
//!
//! | | `single_slot` | `slot_by_first_part` | `per_key_slot` |
//! |---|---|---|---|
//! | load | one server for each tag | all servers, by first part | all servers, by key |
//! | one policy, or several with the same key | atomic, one round trip | the same | the same |
//! | several with different keys that begin with the same part | atomic, one round trip | atomic, one round trip | as below |
//! | several with keys that begin with different parts | atomic, one round trip | as with `per_key_slot` | each atomic by itself, concurrently; a second round trip after a refusal |
//! | admits more than the limit | never | never | never |
//! | refuses although there was room | never | as with `per_key_slot`, only if keys begin with different parts | possibly, while another request holds units that it then gives back |
//! | a refusal after a change of parameters | writes nothing | the same | may leave what is used with the new parameters |
//!
//! Choose `slot_by_first_part` if most requests have several limits that belong to one customer,
//! and write the customer first in each key: `(Tenant, ClientIp::peer())`. Do not choose it if the
//! first part is nearly constant, such as a route or a region: all keys with that part are on one
//! server. Keys of a customer with more requests than one server decides are spread by
//! `per_key_slot` alone.
//!
//! # What is on the server
//!
//! Keys are called `prefix{tag}policy:key` with `single_slot`, `prefix{key}policy:` with
//! `per_key_slot`, and `prefix{first part}policy:key` with `slot_by_first_part`, where a key of one
//! part is called as with `per_key_slot`. The policy's name is escaped. The key is a digest
//! (SipHash-2-4, 128 bits, under [`secret`](RedisBuilder::secret)), or escaped text if keys are
//! [readable](RedisBuilder::readable_keys). In both forms, nothing that a client sends can end a
//! name or a tag. With a digest under a secret, clients cannot choose a slot either. Values are
//! strings: a tag of the algorithm and its parameters, then the state, as
//! [`Algorithm::tag`](throttle_core::Algorithm::tag) and
//! [`State::to_wire`](throttle_core::algorithm::State::to_wire) list them byte by byte.
//! [`RedisBackend::inspect`] shows what a key holds; so does `redis-cli`, here for a GCRA:
//!
//! ```text
//! $ redis-cli --eval /dev/stdin 'throttle{all}per-user:Zk…' <<< "
//!     local kind, p, q, depth, arrival, part = struct.unpack('<c2ddddd', redis.call('GET', KEYS[1]))
//!     return {kind, string.format('%.0f', arrival), string.format('%.0f', part)}"
//! ```
//!
//! # Setting up the server
//!
//! * `maxmemory-policy noeviction`, or an instance of its own. An eviction resets limits, so a
//!   client that can fill the memory could reset its own. A full server refuses new keys; the
//!   decision then fails, and `OnError` sets what happens.
//! * The Redis user needs exactly these rights (for the prefix `throttle`):
//!
//!   ```text
//!   # on each server with keys
//!   ACL SETUSER limiter on >secret ~throttle{* -@all
//!       +evalsha +eval +get +set +time +del +scan +getrange +pttl +select
//!   # with Pool::existing, also
//!   ACL SETUSER limiter +ping
//!   # with Sentinel, also, on the master and on its replicas
//!   ACL SETUSER limiter +role
//!   # with Cluster, also, on each server
//!   ACL SETUSER limiter +cluster|slots +asking
//!   # on each Sentinel, if its default user is disabled
//!   ACL SETUSER limiter on >secret -@all +sentinel|get-master-addr-by-name
//!   ```
//!
//!   | right | without it fails |
//!   |---|---|
//!   | `evalsha` `eval` `get` `set` `time` | every decision, settlement, strike and exception |
//!   | `del` | `reset`, `reset_all`, lifting an exception |
//!   | `scan` | `reset_all`, `exceptions` |
//!   | `getrange` | `exceptions` |
//!   | `pttl` | [`inspect`](RedisBackend::inspect) |
//!   | `select` | connecting to a database other than 0 |
//!   | `ping` `role` `cluster\|slots` and that on the Sentinels | connecting |
//!   | `asking` | decisions about a slot that moves to another server |
//!
//!   The error says what the server said. Redis before 7.2 does not name the command that it denies
//!   to a script; the error then lists the commands of the scripts.
//! * Redis 6.2 or later, or Valkey; the README lists the versions that are tested. The scripts are
//!   Lua 5.1 and use the `struct` library.
//! * On a cluster, set `cluster-require-full-coverage no`: slots whose primary is up are then
//!   served while others are down.
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `cluster` | no | [`Cluster`] |
//! | `metrics` | no | [`RedisBuilder::metrics`], which reports [these metrics](mod@metrics) |
//! | `pool` | no | [`Pool`], also over a pool of the crate `bb8_redis` 0.26 |
//! | `sentinel` | no | [`Sentinel`] |
//! | `tls` | no | `rediss://`, with rustls, and [`Tls`] for your own certificates |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod breaker;
mod builder;
mod counters;
mod decide;
mod except;
mod inspect;
mod keyspace;
mod link;
mod links;
#[cfg(feature = "metrics")]
pub mod metrics;
mod once_per_minute;
mod pages;
mod reset;
mod script;
#[cfg(feature = "metrics")]
mod series;
mod shared_backend;
mod shortcut;
mod stats;
#[cfg(test)]
mod tests;

pub use backend::RedisBackend;
pub use builder::RedisBuilder;
pub use decide::set::RedisSet;
pub use inspect::Inspection;
#[cfg(feature = "cluster")]
pub use link::connection::Cluster;
#[cfg(feature = "pool")]
pub use link::connection::Pool;
#[cfg(feature = "sentinel")]
pub use link::connection::Sentinel;
#[cfg(feature = "tls")]
pub use link::connection::Tls;
pub use link::connection::{
    Address, Command, Connection, ConnectionFuture, Connector, Fault, FaultKind, Reply, Single,
};
pub use stats::Stats;
