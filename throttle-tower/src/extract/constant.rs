use http::request::Parts;
use throttle_core::Key;

use super::key_extractor::KeyExtractor;

/// One budget for all requests.
///
/// ```
/// use throttle_tower::{Constant, KeyExtractor};
///
/// let key =
///     |path: &str| Constant.extract(&http::Request::get(path).body(()).unwrap().into_parts().0);
/// assert_eq!(key("/one"), key("/other"));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Constant;

impl KeyExtractor for Constant {
    fn extract(&self, _: &Parts) -> Option<Key> {
        Some(Key::CONSTANT)
    }

    fn is_spoofable(&self) -> bool {
        true
    }
}
