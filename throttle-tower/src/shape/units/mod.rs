//! Several paces in one turn: requests, and other units such as tokens. Open it to see how long a
//! call's turn takes, and what becomes of units that were estimated wrongly.

// Each pace is a policy of one set, so the backend decides about all of them in one step. A turn is
// due when every pace that the call uses has had its time.

mod unit_paces;
mod usage;

pub(super) use self::unit_paces::{UnitPaces, check_length};
pub use self::usage::ShapeUsage;
