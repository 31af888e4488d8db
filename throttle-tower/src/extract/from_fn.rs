use std::fmt;

use http::request::Parts;
use throttle_core::Key;

use super::key_extractor::KeyExtractor;

/// An extractor that calls a function; see [`from_fn`].
///
/// ```
/// use http::request::Parts;
/// use throttle_tower::KeyExtractor;
/// use throttle_tower::extract::{FromFn, Host, from_fn};
///
/// fn tenant(parts: &Parts) -> Option<String> {
///     let host = Host::name(parts)?;
///     host.split_once('.').map(|(tenant, _)| tenant.to_owned())
/// }
///
/// let by_tenant: FromFn<fn(&Parts) -> Option<String>> =
///     from_fn(tenant as fn(&Parts) -> Option<String>);
/// let request = http::Request::get("http://ACME.example.com/").body(())?;
/// assert_eq!(
///     by_tenant.extract(&request.into_parts().0),
///     Some("acme".into())
/// );
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

/// An extractor that calls a function of the request's head; `None` where the request has no key.
///
/// ```
/// use http::request::Parts;
/// use throttle_tower::extract::from_fn;
/// use throttle_tower::{Key, KeyExtractor};
///
/// /// The customer's number, as the authentication before this layer has found it.
/// #[derive(Clone)]
/// struct Customer(u64);
///
/// let by_customer =
///     from_fn(|parts: &Parts| parts.extensions.get().map(|Customer(number)| *number));
/// let request = http::Request::get("/").extension(Customer(7)).body(())?;
/// assert_eq!(by_customer.extract(&request.into_parts().0), Some(Key::from(7)));
/// # Ok::<(), http::Error>(())
/// ```
pub fn from_fn<F, K>(f: F) -> FromFn<F>
where
    F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    K: Into<Key>,
{
    FromFn(f)
}

impl<F, K> KeyExtractor for FromFn<F>
where
    F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    K: Into<Key>,
{
    fn extract(&self, parts: &Parts) -> Option<Key> {
        (self.0)(parts).map(Into::into)
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}
