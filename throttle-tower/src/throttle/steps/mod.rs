//! The steps of a request, in their order.
//!
//! | step | what it does |
//! |---|---|
//! | [`narrow`] | finds the set of the limits that are selected, of many |
//! | [`ask`] | finds one key, cost and reserve per policy: the calls |
//! | [`missing_key`] | shares a budget, skips the limit or refuses, where there is no key; warns if keys are not those of clients |
//! | [`refuse_early`] | refuses a request that is refused whatever its lookups return |
//! | [`look_up`] | waits for the keys and tiers that need a lookup |
//! | [`wait_queue`] | holds a request until there is room, where a limit waits |
//! | [`decide`] | sees whether permits are free, then calls the backend; a request that is held is decided again at each turn |
//! | [`optional`] | points to what follows from limits on requests in flight, and from rules on charges |
//! | [`judge`] | takes the permits; passes the request on, or refuses it |
//! | [`refuse`] | builds the response of a refusal |
//! | [`strike`] | counts a strike after a refusal or a response, for limits that ban |
//! | [`respond`] | writes the headers of the inner service's response |
//! | [`correct_charges`] | corrects charges after the decision |
//! | [`write_headers`] | what `respond` and `refuse` write |
//! | [`notify`] | reports to observers and hooks what was decided |
//! | [`trial`] | decides a request that passes through no service, for candidates |
//! | [`dropped_decision`] | gives back what a request was charged that is dropped while it is decided |
//! | [`give_back_unserved`] | gives back what a request was charged that is refused after all, or dropped |
//!
//! [`pipeline`] runs them: immediately if nothing has to be waited for, and else as one future.

pub(super) mod ask;
mod correct_charges;
pub(super) mod decide;
mod dropped_decision;
mod give_back_unserved;
pub(super) mod judge;
pub(super) mod look_up;
mod missing_key;
mod narrow;
mod notify;
pub(super) mod optional;
pub(super) mod pipeline;
pub(super) mod refuse;
mod refuse_early;
mod respond;
mod strike;
pub(crate) mod trial;
pub(super) mod wait_queue;
pub(super) mod write_headers;
