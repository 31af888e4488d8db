use std::fmt;
use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;
use throttle_core::{ConfigError, Key};

use super::key_extractor::KeyExtractor;

/// The value of one header, byte for byte.
///
/// The key is missing when the header is absent, empty, longer than [`MAX_LEN`](Self::MAX_LEN), or
/// present more than once. With two values a client could choose which one is used.
///
/// A client can send any value, and each is a budget of its own: [`accept`](Self::accept) only
/// values that exist, all of the value and not its beginning.
///
/// ```
/// use throttle_tower::{Header, Key, KeyExtractor};
///
/// let key = |request: http::request::Builder| {
///     Header::new("x-api-key").extract(&request.body(()).unwrap().into_parts().0)
/// };
/// let once = http::Request::builder().header("x-api-key", "s3cret");
/// assert_eq!(key(once), Some(Key::builder().bytes(b"s3cret").finish()));
/// let twice = http::Request::builder().header("x-api-key", "s3cret").header("x-api-key", "other");
/// assert_eq!(key(twice), None);
/// ```
#[derive(Clone)]
pub struct Header {
    name: Result<HeaderName, ConfigError>,
    accept: Option<Predicate>,
    normalize: Option<Normalize>,
}

type Predicate = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;
type Normalize = Arc<dyn Fn(&str) -> String + Send + Sync>;

impl Header {
    /// Longest value taken for a key, in bytes.
    pub const MAX_LEN: usize = 1024;

    /// The header of that name. A wrong name is reported when the layer is built.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let rule = "it must be a header name, as in \"x-api-key\"";
        let name = HeaderName::try_from(name)
            .map_err(|_| ConfigError::new("header", format_args!("{name:?}"), rule));
        Self {
            name,
            accept: None,
            normalize: None,
        }
    }

    /// Accepts only values for which `known` returns true; for any other the key is missing. So a
    /// client cannot get a fresh budget with an invented value. Defaults to accepting all.
    #[must_use]
    pub fn accept(mut self, known: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        self.accept = Some(Arc::new(known));
        self
    }

    /// Maps values that mean the same to one key. Use the same rule as your authentication: with a
    /// looser rule different users share a budget, with a stricter one each spelling has a budget
    /// of its own. The key is missing for a value that is not UTF-8. Defaults to none.
    #[must_use]
    pub fn normalize(mut self, fold: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.normalize = Some(Arc::new(fold));
        self
    }

    /// Normalizes values as user names and e-mail addresses are usually compared: without
    /// surrounding white space, in lower case, in Unicode's compatibility form (NFKC). Not for
    /// tokens.
    #[cfg(feature = "unicode")]
    #[must_use]
    pub fn normalize_identity(self) -> Self {
        use unicode_normalization::UnicodeNormalization;
        // Letter by letter, so that a sigma is the same sigma wherever it stands in the word.
        let lower = |c: char| c.to_lowercase().map(|c| if c == 'ς' { 'σ' } else { c });
        // Composed again afterwards: of some letters only the small one has a code point of its
        // own.
        self.normalize(move |value| {
            value
                .nfkc()
                .flat_map(lower)
                .nfkc()
                .collect::<String>()
                .trim()
                .to_owned()
        })
    }

    fn value<'a>(&self, parts: &'a Parts) -> Option<&'a [u8]> {
        let mut values = parts.headers.get_all(self.name.as_ref().ok()?).iter();
        let value = values.next()?.as_bytes();
        let single = values.next().is_none();
        (single && (1..=Self::MAX_LEN).contains(&value.len())).then_some(value)
    }
}

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts) -> Option<Key> {
        let value = self
            .value(parts)
            .filter(|value| self.accept.as_ref().is_none_or(|known| known(value)))?;
        let Some(fold) = &self.normalize else {
            return Some(Key::builder().bytes(value).finish());
        };
        let folded = fold(std::str::from_utf8(value).ok()?);
        (!folded.is_empty()).then(|| Key::builder().bytes(folded.as_bytes()).finish())
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.name.clone().map(drop)
    }

    /// Unless the value is [checked](Self::accept).
    fn is_spoofable(&self) -> bool {
        self.accept.is_none()
    }

    fn describe(&self) -> String {
        self.name.as_ref().map_or_else(
            |_| "Header".to_owned(),
            |name| format!("Header({:?})", name.as_str()),
        )
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    fn key(header: &Header, value: &[u8]) -> Option<Key> {
        let request = Request::builder()
            .header("x-user", HeaderValue::from_bytes(value).unwrap())
            .body(())
            .unwrap();
        header.extract(&request.into_parts().0)
    }

    #[test]
    fn spellings_that_fold_to_one_text_are_one_key() {
        // As a login that ignores case and dots would compare names.
        let header =
            Header::new("x-user").normalize(|name| name.replace('.', "").to_ascii_lowercase());
        let ada = key(&header, b"adalovelace");
        assert!(ada.is_some());
        for spelling in ["Ada.Lovelace", "ADALOVELACE", "a.d.a.lovelace."] {
            assert_eq!(key(&header, spelling.as_bytes()), ada, "{spelling}");
        }
        assert_ne!(key(&header, b"grace"), ada);
        // The key is the folded text, so a header that is not folded agrees where the spelling
        // does.
        assert_eq!(key(&Header::new("x-user"), b"adalovelace"), ada);
        assert_ne!(key(&Header::new("x-user"), b"Ada.Lovelace"), ada);
    }

    /// Compatibility forms are folded before the case, too: some have capitals only in their
    /// compatibility form.
    #[cfg(feature = "unicode")]
    #[test]
    fn spellings_of_one_identity_are_one_key() {
        let header = Header::new("x-user").normalize_identity();
        let capitals_by_form = ("tel", " \u{2121}\u{a0}");
        // The capital of this letter has no code point of its own.
        let composed_when_small = ("\u{1f0}", "J\u{30c}");
        for (name, spelling) in [
            capitals_by_form,
            composed_when_small,
            ("ada", "\u{ff21}DA"),
            ("σίσυφοσ", "ΣΊΣΥΦΟΣ"),
            ("é", "E\u{301}"),
        ] {
            assert!(key(&header, name.as_bytes()).is_some());
            assert_eq!(
                key(&header, spelling.as_bytes()),
                key(&header, name.as_bytes()),
                "{spelling}"
            );
        }
    }

    #[test]
    fn value_that_is_not_text_or_folds_to_nothing_is_missing() {
        let header = Header::new("x-user").normalize(|name| name.trim_matches('.').to_owned());
        assert_eq!(key(&header, b"caf\xe9"), None, "not UTF-8");
        assert!(key(&header, "café".as_bytes()).is_some());
        assert_eq!(key(&header, b"..."), None, "nothing is left");
    }

    #[test]
    fn value_longer_than_the_bound_is_missing() {
        assert_eq!(Header::MAX_LEN, 1_024);
        let header = Header::new("x-user");
        assert!(key(&header, b"a").is_some());
        assert!(key(&header, &[b'a'; Header::MAX_LEN]).is_some());
        assert_eq!(key(&header, &[b'a'; Header::MAX_LEN + 1]), None);
        assert_eq!(key(&header, b""), None);
    }

    #[test]
    fn name_is_shown_and_checked() {
        let header = Header::new("X-User");
        assert!(header.check().is_ok());
        assert_eq!(header.describe(), "Header(\"x-user\")");
        assert_eq!(format!("{header:?}"), "Header { name: Ok(\"x-user\"), .. }");
        let wrong = Header::new("x user");
        assert_eq!(wrong.check().unwrap_err().value(), "\"x user\"");
        assert_eq!(wrong.describe(), "Header");
    }

    #[test]
    fn accept_sees_the_value_before_it_is_folded() {
        let header = Header::new("x-user")
            .normalize(str::to_ascii_lowercase)
            .accept(|name| name == b"Ada");
        assert!(key(&header, b"Ada").is_some());
        assert_eq!(key(&header, b"ada"), None);
    }

    #[test]
    fn header_that_occurs_more_than_once_is_missing() {
        let key = |values: &[&str]| {
            let request = values.iter().fold(Request::builder(), |request, value| {
                request.header("x-user", *value)
            });
            Header::new("x-user").extract(&request.body(()).unwrap().into_parts().0)
        };
        assert!(key(&["ada"]).is_some());
        for values in [
            &[][..],
            &["ada", "bob"],
            &["ada", "ada"],
            &["ada", ""],
            &["", "ada"],
            &["a", "b", "c"],
        ] {
            assert_eq!(key(values), None, "{values:?}");
        }
    }
}
