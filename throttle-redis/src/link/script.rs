use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;

/// A script, and the name that a server knows it by.
pub(crate) struct Script {
    source: Arc<str>,
    sha: String,
}

/// The sources in use, by their names. Sets that differ in their numbers only have the same, and there may be a
/// thousand of them, one for each customer with numbers of its own.
static IN_USE: LazyLock<Mutex<HashMap<String, Weak<str>>>> = LazyLock::new(Mutex::default);

impl Script {
    pub(crate) fn new(source: String) -> Self {
        let sha = sha1_smol::Sha1::from(source.as_bytes()).digest().to_string();
        let mut in_use = IN_USE.lock();
        let same = in_use.get(&sha).and_then(Weak::upgrade);
        let source = same.unwrap_or_else(|| {
            let source: Arc<str> = source.into();
            in_use.retain(|_, source| source.strong_count() > 0);
            in_use.insert(sha.clone(), Arc::downgrade(&source));
            source
        });
        Self { source, sha }
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// SHA-1 of the source, in hexadecimal.
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_one_text_share_it() {
        let script = |text: &str| Script::new(format!("return '{text}'"));
        let (one, same, other) = (script("shared"), script("shared"), script("other"));
        assert!(Arc::ptr_eq(&one.source, &same.source) && one.sha() == same.sha());
        assert!(!Arc::ptr_eq(&one.source, &other.source) && one.sha() != other.sha());
        drop((one, same));
        let again = script("shared");
        assert_eq!((again.source(), Arc::strong_count(&again.source)), ("return 'shared'", 1));
    }
}
