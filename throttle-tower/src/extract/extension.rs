use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::request::Parts;
use throttle_core::Key;

use super::key_extractor::KeyExtractor;

/// A value that an earlier layer left in the request's extensions, such as the user who is logged
/// in.
///
/// ```
/// use throttle_tower::KeyExtractor;
/// use throttle_tower::extract::Extension;
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let per_user: Extension<User> = Extension::by(|user: &User| user.id);
/// let (logged_out, ()) = http::Request::new(()).into_parts();
/// assert_eq!(per_user.extract(&logged_out), None);
/// ```
pub struct Extension<T> {
    key: Arc<dyn Fn(&T) -> Key + Send + Sync>,
    value: PhantomData<fn(&T)>,
}

impl<T: Send + Sync + 'static> Extension<T> {
    /// Keys by the result of `key`, called with the extension of type `T`. The result is owned; it
    /// cannot borrow from the extension.
    ///
    /// ```
    /// use throttle_tower::extract::Extension;
    /// use throttle_tower::{Key, KeyExtractor};
    ///
    /// #[derive(Clone)]
    /// struct User { id: u64 }
    ///
    /// let per_user = Extension::by(|user: &User| user.id);
    /// let request = http::Request::builder().extension(User { id: 7 }).body(())?;
    /// assert_eq!(per_user.extract(&request.into_parts().0), Some(Key::from(7)));
    /// # Ok::<(), http::Error>(())
    /// ```
    #[must_use]
    pub fn by<K: Into<Key>>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        Self {
            key: Arc::new(move |value| key(value).into()),
            value: PhantomData,
        }
    }
}

impl<T: Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        parts.extensions.get::<T>().map(|value| (self.key)(value))
    }
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self {
            key: Arc::clone(&self.key),
            value: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension<{}>", std::any::type_name::<T>())
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn clone_reads_the_same_extension() {
        let by_user = Extension::by(|user: &u32| u64::from(*user) + 1);
        let key = |by: &Extension<u32>, request: http::request::Builder| {
            by.extract(&request.body(()).unwrap().into_parts().0)
        };
        for by in [&by_user, &by_user.clone()] {
            assert_eq!(
                key(by, Request::builder().extension(7_u32)),
                Some(Key::from(8))
            );
            assert_eq!(
                key(by, Request::builder().extension(7_u64)),
                None,
                "of another type"
            );
            assert_eq!(key(by, Request::builder()), None);
        }
    }
}
