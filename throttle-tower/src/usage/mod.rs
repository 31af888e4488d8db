//! Charges that depend on how the request ends: refunds by outcome, and estimates that are settled
//! later.
//!
//! A handler reports what a request really used through its [`Usage`]. [`Settlements`] counts the
//! corrections that are pending, done and failed.

// decision ──► Account: a Tally for each limit whose charge may change   refund_and_settle  tally
//                 │  updated by the handler (Usage), the head of the response, the end of its body
//                 ▼
//               Steps ──► ErasedLayer: on any backend   throttle/steps/correct_charges
//                            │  polled once; what is not done then runs in the background
//                            ▼
//                          Settlements: how many are under way, done, failed   background

mod background;
mod error;
#[cfg(feature = "axum")]
mod extract;
mod handle;
mod refund_and_settle;
mod standings;
mod tally;

pub use background::Settlements;
pub(crate) use background::{Background, OnSettleError, StepFuture};
pub use error::UsageError;
#[cfg(feature = "axum")]
pub use extract::MissingUsage;
pub use handle::Usage;
pub(crate) use refund_and_settle::{Account, Open};
pub(crate) use standings::{ChargeChange, Standings};
pub(crate) use tally::{Step, Tally};
