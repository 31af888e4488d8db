//! A candidate: other limits that are asked about the requests of a live layer, and change nothing
//! of what it does.
//!
//! Open this page before limits are changed, to find out what the change would do to the requests
//! that come in.
//!
//! A [`Candidate`] has limits, or a layer, and a store of its own. The page on changed limits in
//! the [guide](crate::guide) has a program. The layer of another rule file, which may be reloaded
//! meanwhile, is a candidate, too.
//!
//! ```
//! use throttle_tower::{Candidate, Constant, Gcra, Rate, ThrottleLayer, limit};
//!
//! let api = |burst| limit("api", Gcra::new(Rate::per_hour(9)).burst(burst)).by(Constant);
//! let v2 = Candidate::in_memory("v2", api(1))?;
//! let throttle = ThrottleLayer::builder(api(3)).observe(v2.clone()).build()?;
//! # let _ = throttle;
//! // Once there were requests:
//! for policy in v2.flips().by_policy {
//!     println!("{} would refuse {}", policy.policy.as_str(), policy.would_refuse);
//! }
//! # Ok::<(), throttle_tower::ConfigError>(())
//! ```
//!
//! # What it decides
//!
//! The candidate is asked once about each request that the live layer passes on or refuses: with
//! the same head, when the live layer has decided, and before the response. It decides as if it
//! were live and these were its requests. They are not quite those that would come if it were live:
//! a client that is refused comes back later.
//!
//! * It is asked about no request that is dropped before the live layer has decided, nor about one
//!   to which the live layer [does not apply](crate::ThrottleBuilder::when). A request that the
//!   live layer [holds](crate::Limit::wait_up_to) counts from the end of its wait.
//! * In memory it decides immediately. If it has to wait, for a store, for a key or plan that is
//!   looked up, or for room ([`wait_up_to`](crate::Limit::wait_up_to)), it does so in the
//!   background, on the tokio runtime. The [settlements](crate::ThrottleLayer::settlements) of the
//!   candidate's layer count these decisions. As many may be under way as its
//!   [`max_waiting`](crate::ThrottleBuilder::max_waiting) says.
//! * It decides nothing while its store fails: its [`OnError`](crate::OnError) is not used.
//! * A request without a key that the candidate [requires](crate::OnMissing::Reject) is one that it
//!   refuses.
//! * Its observers, hooks and warnings work as those of any layer. It has no headers, and no
//!   request carries its report.
//!
//! A candidate with a limit on [requests in flight](crate::InFlight), or with what depends on the
//! response ([refunds](crate::Limit::refund_if), [`settled_later`](crate::Limit::settled_later),
//! [`strike_if`](crate::Limit::strike_if)), does not build, because no request passes through it.
//! Where a reload brings such a limit, nothing is decided until another reload removes it.

mod flips;
mod observer;

pub use flips::{Flips, PolicyFlips};
pub use observer::Candidate;
