use std::fmt;
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::any_layer::{AnyLayer, FindLayer};
use super::change::Change;
use super::problem::RulesError;
use super::{Rules, file};

/// Replaces the rules of a layer while requests run, and tells what is in force: see
/// [`Rules::layer`]. Clones are the same handle.
///
/// ```
/// use throttle_tower::MemoryBackend;
/// use throttle_rules::{Registry, Rules};
///
/// let file = |count| {
///     format!(
///         "version = 1\n[[limit]]\nname = \"all\"\nby = \"constant\"\nfixed-window = {{ rate = \"{count}/minute\" }}"
///     )
/// };
/// let (throttle, handle) =
///     Rules::from_str("throttle.toml", &file(60), Registry::new())?.layer(MemoryBackend::new())?;
/// assert!(handle.replace(&file(0)).is_err()); // 60 a minute stay in force
/// handle.replace(&file(90))?;
/// assert_eq!(handle.status().revision, 2);
/// # let _ = throttle;
/// # Ok::<(), throttle_rules::RulesError>(())
/// ```
#[derive(Clone)]
pub struct Handle(Arc<Inner>);

struct Inner {
    find_layer: Box<FindLayer>,
    /// Held while rules are replaced, so that attempts follow each other.
    replacing: Mutex<()>,
    state: Mutex<State>,
    hooks: Mutex<Vec<Hook>>,
}

struct State {
    rules: Rules,
    status: Status,
}

impl State {
    fn of(rules: Rules, revision: u64) -> Self {
        let (file, hash, loaded_at) =
            (rules.file.to_string(), hash(&rules.text), SystemTime::now());
        Self {
            rules,
            status: Status {
                file,
                revision,
                hash,
                loaded_at,
                failing_since: None,
                last_error: None,
            },
        }
    }
}

type Hook = Arc<dyn Fn(Result<&Change, &RulesError>) + Send + Sync>;

impl Handle {
    pub(super) fn new(rules: Rules, find_layer: Box<FindLayer>) -> Self {
        let (replacing, state, hooks) = (
            Mutex::default(),
            Mutex::new(State::of(rules, 1)),
            Mutex::default(),
        );
        Self(Arc::new(Inner {
            find_layer,
            replacing,
            state,
            hooks,
        }))
    }

    /// Reads the file again and puts it in force, if nothing is wrong with it. A file that says the
    /// same as before is left in force. For rules that were read from a text there is no file: see
    /// [`replace`](Self::replace).
    ///
    /// It blocks; asynchronous code calls it in `tokio::task::spawn_blocking`.
    ///
    /// The layer, its clones and its services have the new rules from one instant on. A request is
    /// decided by the rules that it began with, also if it waits for its turn meanwhile, and its
    /// charges are settled by them. Requests that come later do not queue after those that wait by
    /// the former rules.
    ///
    /// What was used of a limit stays used as long as its name and its key stay. So do permits of
    /// requests in flight. [`Change::unused`] names the limits for which it does not. Where a limit
    /// holds no more than before and its window is shorter, a key that has used it up can be
    /// refused for as long as the former window. To end that earlier, [reset](Self::reset) the key.
    ///
    /// In memory, and for the shares by which a process decides while its store fails, there can be
    /// 1,023 different names in the life of the process. What exceeds them is refused.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, if anything is wrong with what it says, or if the backend
    /// refuses it. The former rules then stay in force, all of them.
    pub fn reload(&self) -> Result<Change, RulesError> {
        self.attempt(|rules| match &rules.path {
            Some(path) => file::read(path, &rules.file),
            None => Ok(rules.text.to_string()),
        })
    }

    /// Puts a text in force instead of the file, if nothing is wrong with it: for rules that do not
    /// come from a file of this machine. Apart from that it is like [`reload`](Self::reload), which
    /// returns to the file.
    ///
    /// # Errors
    ///
    /// If anything is wrong with what it says, or if the backend refuses it. The former rules then
    /// stay in force.
    pub fn replace(&self, text: &str) -> Result<Change, RulesError> {
        self.attempt(|_| Ok(text.to_owned()))
    }

    /// What is in force, and whether the last attempt to replace it has failed.
    #[must_use]
    pub fn status(&self) -> Status {
        lock(&self.0.state).status.clone()
    }

    /// The status, and the text that it is about.
    #[cfg(feature = "admin")]
    pub(super) fn status_and_text(&self) -> (Status, String) {
        let state = lock(&self.0.state);
        (state.status.clone(), state.rules.text.to_string())
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Rules {
        lock(&self.0.state).rules.clone()
    }

    /// Calls `hook` after each attempt to replace the rules: with what has changed, or with what
    /// was wrong. A file that says the same as before is no attempt. The hook runs on the thread
    /// that has made the attempt, and must not make another one. Every hook that is set is called.
    /// Defaults to none.
    ///
    /// ```
    /// # use throttle_rules::{Registry, Rules};
    /// # use throttle_tower::MemoryBackend;
    /// # let rules = Rules::from_str("throttle.toml", "version = 1\nlimit = []", Registry::new())?;
    /// let (throttle, handle) = rules.layer(MemoryBackend::new())?;
    /// handle.on_reload(|reloaded| match reloaded {
    ///     Ok(change) => println!("{change}"),
    ///     Err(error) => eprintln!("the former limits stay:\n{error}"),
    /// });
    /// # Ok::<(), throttle_rules::RulesError>(())
    /// ```
    pub fn on_reload(&self, hook: impl Fn(Result<&Change, &RulesError>) + Send + Sync + 'static) {
        lock(&self.0.hooks).push(Arc::new(hook));
    }

    /// The layer, if it is left.
    pub(super) fn layer(&self) -> Option<Box<dyn AnyLayer>> {
        (self.0.find_layer)()
    }

    /// The file, if the rules have one.
    #[cfg(feature = "watch")]
    pub(super) fn path(&self) -> Option<std::path::PathBuf> {
        lock(&self.0.state).rules.path.clone()
    }

    pub(super) fn attempt(
        &self,
        read: impl FnOnce(&Rules) -> Result<String, RulesError>,
    ) -> Result<Change, RulesError> {
        let _replacing = lock(&self.0.replacing);
        let former = self.rules();
        let text = match read(&former) {
            Ok(text) if *text == *former.text => {
                let status = &mut lock(&self.0.state).status;
                (status.failing_since, status.last_error) = (None, None);
                return Ok(Change::none(status.revision));
            }
            text => text,
        };
        let replaced = text.and_then(|text| self.put_in_force(&former, text));
        if let Err(error) = &replaced {
            let status = &mut lock(&self.0.state).status;
            status.failing_since.get_or_insert_with(SystemTime::now);
            status.last_error = Some(error.clone());
        }
        let hooks = lock(&self.0.hooks).clone();
        for hook in hooks {
            // A hook that panics ends neither the watch nor the hooks after it.
            let _ = catch_unwind(AssertUnwindSafe(|| hook(replaced.as_ref())));
        }
        replaced
    }

    fn put_in_force(&self, former: &Rules, text: String) -> Result<Change, RulesError> {
        let (file, path) = (Arc::clone(&former.file), former.path.clone());
        let rules = Rules::read(file, path, text.into(), former.registry.clone())?;
        if let Some(layer) = self.layer() {
            layer.replace(&rules).map_err(|error| rules.error(&error))?;
        }
        let mut state = lock(&self.0.state);
        let change = Change::between(&former.document, &rules.document, state.status.revision + 1);
        *state = State::of(rules, change.revision);
        Ok(change)
    }
}

/// Locks a mutex whose content is consistent at every point where a panic can happen.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A digest of a text by which people compare files, 32 hexadecimal digits. It keeps no secret.
fn hash(text: &str) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    hexadecimal(hasher.finish128().as_u128())
}

fn hexadecimal(digest: u128) -> String {
    format!("{digest:032x}")
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.0.state);
        f.debug_struct("Handle")
            .field("rules", &state.rules)
            .field("revision", &state.status.revision)
            .finish_non_exhaustive()
    }
}

/// Which file is in force, and whether the last attempt to read it again has failed.
///
/// ```
/// use throttle_tower::MemoryBackend;
/// use throttle_rules::{Registry, Rules};
///
/// let rules = Rules::from_str("throttle.toml", "version = 1\nlimit = []", Registry::new())?;
/// let (_throttle, handle) = rules.layer(MemoryBackend::new())?;
/// assert!(handle.replace("version = 2\nlimit = []").is_err());
/// let status = handle.status();
/// assert_eq!((status.revision, status.failing_since.is_some()), (1, true));
/// assert!(status.last_error.unwrap().to_string().starts_with("throttle.toml:1:11: version is 2"));
/// # Ok::<(), throttle_rules::RulesError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The file's name.
    pub file: String,
    /// 1 for the first file that was in force, one more with each that replaced it.
    pub revision: u64,
    /// A digest of the file that is in force, 32 hexadecimal digits: the same in each process that
    /// has the same file.
    pub hash: String,
    /// When it was put in force.
    pub loaded_at: SystemTime,
    /// Since when attempts to replace it fail; `None` if the last one has not failed.
    pub failing_since: Option<SystemTime>,
    /// Why the last attempt has failed; `None` if it has not.
    pub last_error: Option<RulesError>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_shown_with_its_leading_zeros() {
        for (digest, shown) in [
            (0, "00000000000000000000000000000000"),
            (0xab, "000000000000000000000000000000ab"),
            (u128::MAX >> 4, "0fffffffffffffffffffffffffffffff"),
            (1 << 127, "80000000000000000000000000000000"),
        ] {
            assert_eq!(hexadecimal(digest), shown);
        }
    }
}
