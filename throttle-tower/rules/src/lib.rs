//! Limits as a file: which limits there are is deployment data, and can change without the program.
//!
//! [`Rules::from_path`] reads a TOML file, and [`Rules::layer`] makes a
//! [`ThrottleLayer`](throttle_tower::ThrottleLayer) of it, which
//! [follows the file](#while-the-program-runs). What a key or a cost *is* stays in the program: a
//! [`Registry`] gives it a name that the file uses.
//!
//! ```
//! use std::collections::HashSet;
//!
//! use throttle_rules::{Registry, Rules};
//! use throttle_tower::{Header, MemoryBackend};
//!
//! let text = r#"
//! version = 1
//!
//! [client-ip]
//! source = "x-forwarded-for"
//! trusted = ["10.0.0.0/28"]
//!
//! [[limit]]
//! name = "per-ip"
//! gcra = { rate = "10/second", burst = 20 }
//! by = "client-ip"
//!
//! [[limit]]
//! name = "login"
//! sliding-log = { rate = "5/15m" }
//! by = "client-ip"
//! match = { methods = ["POST"], routes = ["/login", "/users/{id}/password"] }
//! refund = "successful"
//!
//! [[limit]]
//! name = "month"
//! calendar-quota = { count = 10_000, per = "month", utc-offset = "+01:00" }
//! by = "api-key"
//! on-missing = "skip"
//! "#;
//! let issued = HashSet::from([b"live_ada".to_vec()]); // every key that exists
//! let registry = Registry::new().key(
//!     "api-key",
//!     Header::new("x-api-key").accept(move |key| issued.contains(key)),
//! );
//! let rules = Rules::from_str("throttle.toml", text, registry)?;
//! let (throttle, handle) = rules.layer(MemoryBackend::new())?;
//! # Ok::<(), throttle_rules::RulesError>(())
//! ```
//!
//! A file with a mistake is refused as a whole. The [error](RulesError) lists all problems, each
//! with its line, its column and what to write instead:
//!
//! ```text
//! throttle.toml:10:30: limit "per-ip": gcra.brust is not a field; did you mean "burst"?
//!    |
//! 10 | gcra = { rate = "10/second", brust = 20 }
//!    |                              ^^^^^
//! ```
//!
//! # In an editor
//!
//! An editor that knows the [schema](SCHEMA) of the format completes fields and words, shows what
//! they mean, and marks mistakes. Editors with taplo inside, such as VS Code with Even Better TOML,
//! find it by the first line of the file:
//!
//! ```toml
//! #:schema ./throttle.schema.json
//! ```
//!
//! What follows is a path from the file's folder, or a URL. `throttle.schema.json` lies in the
//! folder of this crate. A program can write the one of the version that it uses:
//!
//! ```no_run
//! std::fs::write("throttle.schema.json", throttle_rules::SCHEMA)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The reader is stricter than the schema: it compares names with each other, and computes with
//! numbers. What the program [registers](Registry) is any text to the schema. A program that writes
//! its own copy can list its names there, as an `enum` in the definitions `registered-key`,
//! `registered-key-of-a-future`, `registered-cost`, `registered-classes`, `registered-condition`,
//! `registered-lookup` and `registered-refund`.
//!
//! # While the program runs
//!
//! A [`Handle`] puts another file in force for the layer, its clones and its services:
//!
//! | call | what it does |
//! |---|---|
//! | [`reload`](Handle::reload) | reads the file again, for example when the program gets a signal |
//! | `watch` (feature `watch`) | does so whenever the file changes, also through the links of a Kubernetes `ConfigMap` |
//! | [`replace`](Handle::replace) | takes a text instead, for example from a configuration service |
//! | [`status`](Handle::status), [`on_reload`](Handle::on_reload) | tell which file is in force, and whether the last attempt has failed |
//! | [`explain`](Handle::explain) | tells what would happen to a request, why, and when it would be admitted, without charging it |
//! | [`except`](Handle::except), [`exceptions`](Handle::exceptions) | treats a key differently for a while: exempt, blocked, or under another limit; lists such keys |
//! | [`drain`](Handle::drain) | uses up what a key has left; it recovers from there |
//! | `admin` (feature `admin`) | a router of axum's with all that, for operators |
//!
//! The new file is in force from one instant on, or, if anything is wrong with it, not at all. The
//! [`Change`] that comes of it names the limits under which nothing counts as used, because they
//! are new, renamed or have another key. For all others, what was used stays used. Where a limit
//! holds no more than before and its window is shorter, a key that has used it up can be refused
//! for as long as the former window.
//!
//! Requests that [wait](#limits) for their turn (`wait-up-to`) when the file changes wait by the
//! former rules. Later requests do not queue after them, so that a higher limit helps immediately.
//! Later requests may take the room that earlier ones wait for. A request that is overtaken is
//! refused when it cannot be admitted within its `wait-up-to` any more. Once the longest
//! `wait-up-to` of the former file has passed, no request waits by that file. Until then, up to
//! `max-waiting` requests may wait by each file. No limit admits more because of that.
//!
//! [Observers](throttle_tower::Observer) go on with the new limits: metrics, lists of offenders and
//! the page count on by the names of limits. What plans have looked up is looked up again.
//!
//! To see what the next file would do before it is in force, make a layer of it, on a store of its
//! own, and hand it over as a [candidate](throttle_tower::Candidate::of). Both files can be
//! reloaded:
//!
//! ```
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use throttle_rules::{Registry, Rules};
//! use throttle_tower::{Candidate, ThrottleLayer};
//!
//! let program = ThrottleLayer::builder(()).max_waiting(1_000);
//! let (layer, next) = Rules::from_path("next.toml", Registry::new())?.layer_with(program)?;
//! let candidate = Candidate::of("next", layer)?;
//! let program = ThrottleLayer::builder(()).observe(candidate.clone());
//! let (throttle, _now) = Rules::from_path("throttle.toml", Registry::new())?.layer_with(program)?;
//! println!("{} more would be refused", candidate.flips().would_refuse);
//! next.reload()?; // after an edit; the counts go on
//! # drop(throttle);
//! # Ok(())
//! # }
//! ```
//!
//! # The file
//!
//! `-` and `_` in the names of fields are the same: `on-error`, `on_error`.
//!
//! | section | what it says |
//! |---|---|
//! | `version = 1` | the format; required |
//! | [`[client-ip]`](#the-clients-address) | where the client's address comes from |
//! | [`[defaults]`](#defaults-and-the-layer) | rules for limits without their own |
//! | [`[layer]`](#defaults-and-the-layer) | headers, and bounds of the layer |
//! | [`[[limit]]`](#limits) | a [`limit`](throttle_tower::limit()) |
//! | [`[[plans]]`](#plans) | a limit that depends on the client's plan: [`plans`](mod@throttle_tower::plans) |
//! | [`[[concurrency]]`](#requests-in-flight) | a limit on requests in flight: [`InFlight`](throttle_tower::InFlight) |
//! | [`compose`](#composition) | before the first `[[limit]]`: how they are composed; by default all of them must admit a request |
//! | [`when`](#defaults-and-the-layer) | at the top, before the first section: which requests the layer applies to; by default all |
//!
//! [`coming_from`] shows the rule sets of other limiters as such files.
//!
//! A file without limits must say `limit = []` (or `plans = []`, or `concurrency = []`). It has at
//! most 1,023 limits, and 1 MiB.
//!
//! Values as text:
//!
//! | value | as in |
//! |---|---|
//! | rate | `"10/second"`, `"100/15m"`, `"1000 per hour"`: see [`Rate`](throttle_core::Rate) |
//! | duration | `"500ms"`, `"15m"`, `"1 day"`; at least 1 microsecond |
//!
//! # Limits
//!
//! | field | value | default |
//! |---|---|---|
//! | `name` | text: clients read it in headers | required |
//! | an [algorithm](#algorithms) | a table | required, one |
//! | `by` | a [key](#keys) | required |
//! | `match` | [which requests](#which-requests) it applies to, as data | all |
//! | `when` | a registered condition, `{ not = "…" }`, or a list of which all must hold; `preflight` is [built in](throttle_tower::is_preflight) | all |
//! | `cost` | a whole number, or a registered cost | 1 |
//! | `unit` | text: what is counted | requests |
//! | `classes` | a registered function that names the class of a request: see [`priority`](throttle_tower::Limit::priority) | none |
//! | `reserve` | the units that each class leaves free, as in `{ interactive = 0, batch = 40 }`; a class with less is above one with more | required with `classes` |
//! | `on-missing` | `"share"`, `"skip"`, `{ reject = 401 }`: requests without a key | `"share"` |
//! | `on-error` | `"open"`, `"closed"`, `"local/4"`: a store that fails, see [`OnError`](throttle_tower::OnError) | none: required with a backend that can fail |
//! | `refund` | `"successful"`, `"failed"`, `"server-errors"`, `"aborted"`, a registered refund, or a list of these. A successful response is 2xx or 3xx: a login form that redirects after a wrong password needs a registered refund | none |
//! | `charge-refused` | `true`: [refused requests are charged](throttle_tower::Limit::charge_refused) | `false` |
//! | `ban` | keys that do not stop are [banned](throttle_tower::Limit::ban): `{ after = 5, within = "10m", lasting = "10m", growing = 2, up-to = "1d", forgotten-after = "7d" }`, of which `after` is required and the others have these defaults; `even-if-spoofable = true` where a client could choose another's key | none |
//! | `strike-if` | statuses of responses that are strikes, as refusals are, as in `[401, 403]`; only with `ban` | none |
//! | `settled-later` | `true`: [the handler settles the cost](throttle_tower::Limit::settled_later), which is an estimate | `false` |
//! | `wait-up-to` | a duration: [requests queue](throttle_tower::Limit::wait_up_to) instead of being refused | none |
//! | `mode` | `"enforce"`, `"audit"` (the limit is decided and [refuses no request](throttle_tower::Limit::audit)), `"audit-announced"` (so, and headers [list it](throttle_tower::Audit::Announced)) | `"enforce"` |
//! | `warn-at` | a part of the capacity, as in `0.8`: a request that brings its key there is [reported](throttle_tower::Limit::warn_at) | none; 0.8 for metrics |
//! | `key-deadline` | a duration: how long a key that a future returns may take; only with such a key, so not in plans | `"1s"` |
//!
//! ## Algorithms
//!
//! | table | fields |
//! |---|---|
//! | `gcra`, `token-bucket` | `rate`; `burst` (units), by default the count of the rate |
//! | `leaky-meter` | `rate`; `capacity` (units), by default the count of the rate |
//! | `interval-bucket` | `capacity`, `refill` (units), `interval` (duration); `aligned = true` |
//! | `fixed-window` | `rate`; `offset`: a duration, `"-30m"` for earlier |
//! | `sliding-window` | `rate`; `buckets`, by default 10 |
//! | `sliding-log` | `rate` |
//! | `calendar-quota` | `count`; `per = "day"`, `"week"` or `"month"`, or `fixed = "10d"`, or `rolling = "30d"`; `anchor-day = 15` (of a month, or `"last"`; of a week 1 to 7), `anchor-hour = 6`; `utc-offset = "+01:00"` |
//!
//! ## Keys
//!
//! | key | whose budget |
//! |---|---|
//! | `"client-ip"` | the client's address, [found](#the-clients-address) as the file says |
//! | `{ client-ip = { ipv4 = 24, ipv6 = 48 } }` | its network; by default 32 and 64 bits |
//! | `"header:x-tenant"` | a header's value, byte for byte. The client chooses it: alone or as a part, it bounds only honest clients. A registered key can [accept](throttle_tower::Header::accept) values that the program knows |
//! | `{ header = "x-user", normalize = "identity" }` | the same, as user names are compared (feature `unicode`); `"lowercase"` folds ASCII letters |
//! | `"host"` | [the host](throttle_tower::extract::Host) that the request names, of HTTP/1.1 and HTTP/2, in one spelling. The client chooses it |
//! | `"route"`, `"method"`, `"constant"` | [the template, the method, all requests](throttle_tower::extract) |
//! | `"api-key"` | what the program has registered |
//! | `["client-ip", "route"]` | all parts together; missing where one is |
//! | `{ first-of = ["api-key", "client-ip"] }` | the first that is not missing |
//!
//! ## Which requests
//!
//! `match` is a table. A request matches if it matches each field that is there, and one element of
//! it. There is no priority: all limits that match apply.
//!
//! | field | elements |
//! |---|---|
//! | `methods` | `"POST"`, in upper case. `"GET"` includes HEAD, which the same handlers serve. A WebSocket over HTTP/2 starts with `"CONNECT"` rather than with `"GET"` |
//! | `routes` | templates as axum 0.8 writes them, `"/users/{id}"`, compared with what [`Route`](throttle_tower::Route) finds, whatever the parameters are called. A route of a nested router is written with the prefix, `"/api/users/{id}"`. A template that the router does not have matches nothing, and nothing warns of it: compare a new one with the router, or call [`explain`](Handle::explain) with the head of a real request. The layer must be inside the router; a [warning](throttle_tower::Warning::RouteUnknown) says if it is not |
//! | `paths` | patterns for services without routes: `*` is one segment, `**` at the end any number, `"/api/**"`; at most 100 segments. Upper and lower case differ. A path matches in any spelling: `%61`, `//`, `.`, `..`, `%2f`, a backslash and `;parameters` are no way around it |
//! | `hosts` | `"api.example.com"`, or `"*.example.com"` for all hosts below it, without ports |
//!
//! Limits with `routes` or `paths` are found by them, and those that do not apply cost a request
//! nothing: a file may have a thousand. Each limit without them is asked whether it applies.
//!
//! A path is matched as the client sent it. Inside a nested router of axum, whose handlers see it
//! without the prefix, it has the prefix (feature `axum` of `tower-throttle`): write
//! `"/api/users/*"`.
//!
//! A host is that of the URI or of `Host`. The client chooses what it sends, and `X-Forwarded-Host`
//! and `Forwarded` are not read: behind a proxy that rewrites `Host`, match what the proxy sends.
//!
//! **Where a path or a host can be read in several ways, the limit applies if one of them
//! matches**, and if such a path has more than 1,000 segments. That is the safe side if all limits
//! must admit a request. In an [`any`](#composition) it is not: a member that applies is one more
//! budget, a request to which no member applies is admitted, and the client chooses the spelling.
//! Let the members of an `any` match by `routes`, or not at all.
//!
//! # Plans
//!
//! All fields of limits but the algorithm, and:
//!
//! | field | value | default |
//! |---|---|---|
//! | `tiers` | a table of tiers, each with an algorithm; their order is that of their [numbers](throttle_core::Policy::tiered) | required |
//! | `lookup` | a registered lookup of a tier's name, or of [parameters of the identity's own](throttle_tower::plans::Tier::own) | required |
//! | `unknown` | the tier of identities that the lookup does not know | required |
//! | `cache` | `{ identities = 10_000, keep-for = "1m" }` | these |
//! | `lookups` | `{ at-once = 256, deadline = "1s" }` | these |
//! | `unknown-as-missing` | `true`: see [`unknown_as_missing`](throttle_tower::plans::Plans::unknown_as_missing) | `false` |
//!
//! # Requests in flight
//!
//! `[[concurrency]]` has `most`, a whole number, and as limits have them `name` (by default
//! `in-flight`), `by` (by default all requests together), `cost`, `match`, `when`, `on-missing`,
//! `classes` and `reserve`.
//!
//! # Composition
//!
//! ```toml
//! compose = ["per-ip", "login", { any = ["month", "pool"] }]
//! ```
//!
//! A list must be admitted by [all](throttle_tower::all()) of its members. `{ any = […] }` is
//! [`any`](throttle_tower::any()) of at most 16 members, and with `charge = "every-admitting"`
//! charges each that admits; `{ all = […] }` is a list within. Each limit is named once. Without `compose`, all
//! limits must admit a request, in the file's order.
//!
//! # The client's address
//!
//! | field of `[client-ip]` | value |
//! |---|---|
//! | `source` | `"peer"` (without the section), `"x-forwarded-for"`, `"forwarded"`, `"fly-io"`, `"google-cloud-load-balancer"`, `{ header = "cf-connecting-ip" }`: see [`client_ip`](throttle_tower::client_ip) |
//! | `trusted` | the addresses and networks of your proxies, for a header |
//! | `hops` | instead of them, how many proxies append to a list header |
//! | `nat64` | the prefix of your network's own NAT64, as in `"2001:db8:64::/96"`: see [`ClientIp::nat64`](throttle_tower::ClientIp::nat64) |
//! | `trust-everyone` | `true`: admits networks as broad as `0.0.0.0/0`; only where a firewall admits nothing but proxies |
//!
//! # Defaults and the layer
//!
//! | field | value |
//! |---|---|
//! | `on-error`, `on-missing` of `[defaults]` | for limits without their own |
//! | `headers` of `[layer]` | `"draft-11"` (the default), `"draft-07"`, `"draft-06"`, `"draft-03"`, `"x-ratelimit"`, `"x-ratelimit-epoch"`, `"openai"`, `"none"`: see [`Dialect`](throttle_tower::Dialect) |
//! | `sdk-hints` of `[layer]` | a duration: refusals [tell SDKs](throttle_tower::ThrottleBuilder::sdk_hints) in milliseconds when to retry, and not to retry if the wait is longer |
//! | `retry-jitter`, `max-waiting`, `report-in-response` (`true` is `ReportIn::Both`), `grpc-refusals`, `unavailable-retry-after` (a duration) of `[layer]` | as the methods of [`ThrottleBuilder`](throttle_tower::ThrottleBuilder) |
//!
//! `when` at the top of the file, before the first section, is for the whole layer: a registered
//! condition, or what else [a limit's `when`](#limits) may be. Requests for which it does not hold
//! [pass untouched](throttle_tower::ThrottleBuilder::when), for example
//! `when = { not = "internal" }`. A `when` that the [program sets](Rules::layer_with) goes before
//! the file's.
//!
//! # Features
//!
//! | feature | gives |
//! |---|---|
//! | `watch` | [`Handle::watch`]: reads a rule file again whenever it changes |
//! | `admin` | [`Handle::admin`]: rules in force and explanations as a router of axum's |
//! | `unicode` | `normalize = "identity"` of [keys](#keys) that are headers |
//!
//! None is enabled by default. Routes, and paths in nested routers, need the feature `axum` of
//! `tower-throttle`.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "admin")]
mod admin;
#[cfg(feature = "admin")]
mod admin_keys;
#[cfg(feature = "admin")]
mod admin_request;
mod algorithm;
mod any_layer;
mod bounds;
mod change;
mod client_ip;
#[doc = include_str!("coming_from.md")]
pub mod coming_from {}
mod compose;
mod context;
mod document;
mod entry;
mod explain;
mod explanation;
mod file;
mod file_value;
mod form;
mod handle;
mod key;
mod layer;
mod matching;
mod names;
mod options;
mod peek;
mod problem;
mod registry;
mod rules;
mod rules_layer;
mod schema;
mod shown;
#[cfg(test)]
mod tests;
mod value_text;
mod values;
mod walk;
#[cfg(feature = "watch")]
mod watch;

pub use self::change::{Change, ChangedField};
pub use self::explanation::{ExplainedLimit, Explanation, KeyBalance, Verdict};
pub use self::handle::{Handle, Status};
pub use self::problem::{Problem, RulesError};
pub use self::registry::Registry;
pub use self::rules::Rules;
pub use self::schema::SCHEMA;
#[cfg(feature = "watch")]
pub use self::watch::Watch;
pub use throttle_core::backend::{ExceptedKey, Exception, Treatment};
