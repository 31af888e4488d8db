use std::fmt;

use http::request::Parts;
use throttle_core::{ConfigError, Key};

use super::KeyExtractor;

/// One budget for everybody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Constant;

impl KeyExtractor for Constant {
    fn extract(&self, _: &Parts) -> Option<Key> {
        Some(Key::CONSTANT)
    }
}

/// One extractor's key, or another's; see [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(pub(super) A, pub(super) B);

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        self.0.extract(parts).or_else(|| self.1.extract(parts))
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.0.check()?;
        self.1.check()
    }

    fn uses_route(&self) -> bool {
        self.0.uses_route() || self.1.uses_route()
    }

    fn uses_peer(&self) -> bool {
        self.0.uses_peer() || self.1.uses_peer()
    }

    fn describe(&self) -> String {
        format!("{} or {}", self.0.describe(), self.1.describe())
    }
}

/// An extractor that is a function; see [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

/// The key that a function makes of a request's head; `None` where there is none.
///
/// ```
/// use http::request::Parts;
/// use throttle_tower::extract::from_fn;
///
/// let by_host = from_fn(|parts: &Parts| parts.uri.host().map(str::to_owned));
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

macro_rules! tuple {
    ($($extractor:ident $index:tt),+) => {
        /// All parts together; missing where one of them is.
        impl<$($extractor: KeyExtractor),+> KeyExtractor for ($($extractor,)+) {
            fn extract(&self, parts: &Parts) -> Option<Key> {
                let key = Key::builder();
                $(let key = key.key(&self.$index.extract(parts)?);)+
                Some(key.finish())
            }

            fn check(&self) -> Result<(), ConfigError> {
                $(self.$index.check()?;)+
                Ok(())
            }

            fn uses_route(&self) -> bool {
                false $(|| self.$index.uses_route())+
            }

            fn uses_peer(&self) -> bool {
                false $(|| self.$index.uses_peer())+
            }

            fn describe(&self) -> String {
                let parts: &[String] = &[$(self.$index.describe()),+];
                format!("({})", parts.join(", "))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
