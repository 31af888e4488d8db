#[cfg(feature = "admin")]
mod administered;
mod bad;
mod coming_from;
mod explained;
mod folder;
mod good;
mod hostile;
mod replaced;
mod requests;
mod routed;
mod schema;
// It makes links.
#[cfg(all(unix, feature = "watch"))]
mod watched;

pub(super) use self::bad::registry;
pub(super) use self::folder::Folder;
