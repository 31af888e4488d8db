//! Whose budget a request spends: extractors that make a [`Key`] from a request's head.
//!
//! | extractor | key | missing when |
//! |---|---|---|
//! | [`ClientIp`](crate::client_ip::ClientIp) | the client's address; IPv6 by its /64 | no address is known, as in a test without a connection |
//! | [`Header`] | one header's value, byte for byte | absent, empty, repeated, over 1 KiB, or not [accepted](Header::accept) |
//! | [`Route`] | the route's template, `<unmatched>` otherwise | never |
//! | [`Method`] | the method; HEAD counts as GET, unknown ones as one | never |
//! | [`Extension`] | something an earlier layer left in the request | it did not |
//! | [`Constant`] | one budget for everybody | never |
//! | [`from_fn`] | what you say | you say so |
//! | a tuple of extractors | all of them together | one of them is |
//! | [`a.or(b)`](KeyExtractor::or) | `a`, or where it is missing `b` | both are |
//!
//! What a missing key means is said with [`Limit::on_missing`](crate::Limit::on_missing): by default, requests without a key
//! share one budget. A limit that never finds a key [warns](crate::ThrottleLayer::on_warning).
//!
//! # What not to key by
//!
//! A value that the client may choose freely, and nothing else: each new value would be a new budget. Key by it *in
//! addition* to the address (`all([per_ip, per_token])`), or accept only values you know and fall back to the address:
//!
//! ```
//! use throttle_tower::{ClientIp, Header, KeyExtractor};
//!
//! # fn is_known(key: &[u8]) -> bool { key == b"s3cret" }
//! let key = Header::new("x-api-key").accept(is_known).or(ClientIp::peer());
//! ```

mod address;
mod combine;
mod header;
mod request;

pub(crate) use address::peer;
pub use address::{Masked, PeerAddr};
pub use combine::{Constant, FromFn, Or, from_fn};
pub use header::Header;
pub use request::{Extension, MatchedRoute, Method, Route};

use std::sync::Arc;

use http::request::Parts;
use throttle_core::{ConfigError, Key};

/// Makes a key from a request's head.
///
/// ```
/// use http::request::Parts;
/// use throttle_tower::{Key, KeyExtractor};
///
/// /// Whose mailbox it is: `/boxes/ada/…`.
/// struct Mailbox;
///
/// impl KeyExtractor for Mailbox {
///     fn extract(&self, parts: &Parts) -> Option<Key> {
///         let owner = parts.uri.path().strip_prefix("/boxes/")?.split('/').next()?;
///         Some(owner.into())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whose budget a request spends",
    label = "expected a key extractor such as `ClientIp::peer()`",
    note = "for a header's value write `Header::new(\"x-api-key\")`; for a closure `from_fn(|parts: &Parts| Some(key))`; for \
            one budget for everybody `Constant`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key, or `None` where the request has none.
    fn extract(&self, parts: &Parts) -> Option<Key>;

    /// Whether the extractor can work at all; asked once, when the layer is built. Defaults to yes.
    ///
    /// # Errors
    ///
    /// Names the setting that is wrong.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Whether the key depends on the [`Route`]; asked once, when the layer is built. Say so in an extractor that wraps
    /// `Route`, and [`Warning::RouteUnknown`](crate::Warning::RouteUnknown) covers it too. Defaults to no.
    fn uses_route(&self) -> bool {
        false
    }

    /// Whether the key depends on the peer's address; asked once, when the layer is built. Say so in an extractor that
    /// wraps [`ClientIp`](crate::client_ip::ClientIp), and [`Warning::PeerUnknown`](crate::Warning::PeerUnknown) covers it
    /// too. Defaults to no.
    fn uses_peer(&self) -> bool {
        false
    }

    /// What a [`Warning`](crate::Warning) calls the extractor. Defaults to the name of its type.
    fn describe(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// This key, or where it is missing, another. Keys of the two never meet unless they are equal in kind and content.
    fn or<E: KeyExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or(self, other)
    }
}

macro_rules! pointer {
    ($($pointer:ident)*) => {$(
        impl<E: KeyExtractor + ?Sized> KeyExtractor for $pointer<E> {
            fn extract(&self, parts: &Parts) -> Option<Key> {
                (**self).extract(parts)
            }

            fn check(&self) -> Result<(), ConfigError> {
                (**self).check()
            }

            fn uses_route(&self) -> bool {
                (**self).uses_route()
            }

            fn uses_peer(&self) -> bool {
                (**self).uses_peer()
            }

            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    )*};
}

pointer! { Arc Box }
