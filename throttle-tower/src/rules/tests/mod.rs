#[cfg(feature = "admin")]
mod administered;
mod bad;
mod coming_from;
mod explained;
mod good;
mod hostile;
mod replaced;
mod requests;
mod round_trip;
// It makes links.
#[cfg(all(unix, feature = "watch"))]
mod watched;

pub(super) use self::bad::registry;
pub(super) use self::good::EVERYTHING;
