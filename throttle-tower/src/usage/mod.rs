//! Charges that depend on what happened: refunds by outcome, and estimates that are settled later.
//!
//! ```text
//! decision ──► Account: a Line for each limit whose charge may change     account.rs  line.rs
//!                 │  told by the handler (Usage), the head of the response, the end of its body
//!                 ▼
//!               Steps ──► Ledger: the layer's backend, whatever its type   throttle/ledger.rs
//!                            │  polled once; what is not done then travels behind the response
//!                            ▼
//!                          Settlements: how many are under way, done, failed   post.rs
//! ```

mod account;
#[cfg(feature = "axum")]
mod extract;
mod handle;
mod line;
mod post;

pub(crate) use account::{Account, Ledger, Open};
#[cfg(feature = "axum")]
pub use extract::MissingUsage;
pub use handle::{Usage, UsageError};
pub(crate) use line::{Line, Step};
pub(crate) use post::Post;
pub use post::Settlements;
