//! Key extractors. An extractor reads the request's head and makes a [`Key`](throttle_core::Key):
//! the key of the budget that the request spends.
//!
//! | extractor | key | missing when |
//! |---|---|---|
//! | [`ClientIp`](crate::client_ip::ClientIp) | the client's address; IPv6 by its /64 | no address is known, as in a test without a connection |
//! | [`Header`] | one header's value, byte for byte | absent, empty, repeated, over 1 KiB, or not [accepted](Header::accept) |
//! | [`Host`] | the host that the request names, in one spelling | there is none, or it is no host |
//! | [`Route`] | the route's template, `<unmatched>` otherwise | never |
//! | [`Route::grpc`] | the gRPC method, if it is one of your list; `<unmatched>` otherwise | never |
//! | [`Method`] | the method; HEAD counts as GET, and all unknown methods as one | never |
//! | [`Extension`] | a value that an earlier layer left in the request | there is none |
//! | [`Constant`] | one budget for all requests | never |
//! | [`from_fn`] | the result of your function | it returns `None` |
//! | a tuple of extractors | all of them together | one of them is missing |
//! | [`a.or(b)`](KeyExtractor::or) | `a`, or where it is missing `b` | both are missing |
//!
//! [`Limit::on_missing`](crate::Limit::on_missing) says what happens to requests without a key. By
//! default they share one budget. A limit that never finds a key
//! [warns](crate::ThrottleBuilder::on_warning).
//!
//! # What not to key by
//!
//! Do not key only by a value that the client chooses freely: each new value would be a new budget.
//! Add a limit by address (`all([per_ip, per_token])`), or accept only known values and use the
//! address otherwise:
//!
//! ```
//! use throttle_tower::{ClientIp, Header, KeyExtractor};
//!
//! # fn is_known(key: &[u8]) -> bool { key == b"s3cret" }
//! let key = Header::new("x-api-key").accept(is_known).or(ClientIp::peer());
//!
//! let request = http::Request::builder().header("x-api-key", "made up").body(())?;
//! assert_eq!(key.extract(&request.into_parts().0), None, "neither a known key nor an address");
//! # Ok::<(), http::Error>(())
//! ```

mod client_ip;
mod constant;
mod extension;
mod from_fn;
mod grpc_route;
mod header;
mod host;
mod host_name;
pub(crate) mod key_extractor;
mod method;
mod original_path;
mod peer;
mod route;
mod tuple;

pub use self::constant::Constant;
pub use self::extension::Extension;
pub use self::from_fn::{FromFn, from_fn};
pub use self::grpc_route::GrpcRoute;
pub use self::header::Header;
pub use self::host::Host;
pub use self::key_extractor::{KeyExtractor, Or};
pub use self::method::Method;
pub use self::original_path::original_path;
pub use self::peer::PeerAddr;
pub(crate) use self::peer::peer;
pub use self::route::{MatchedRoute, Route};
