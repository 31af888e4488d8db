#[cfg(feature = "admin")]
mod administered;
mod bad;
mod coming_from;
mod explained;
mod good;
mod hostile;
mod replaced;
mod requests;
#[cfg(feature = "watch")]
mod watched;
