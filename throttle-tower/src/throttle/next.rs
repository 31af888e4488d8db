use throttle_core::MemoryBackend;

use super::options::Options;
use super::response_options::ResponseOptions;
use super::shared::Shared;
use crate::limit::LimitTree;

/// What replaces the limits of all followers.
pub(crate) struct Next<'a> {
    pub(crate) limits: LimitTree,
    /// Changes the options that the rules say something about.
    pub(crate) adjust: &'a dyn Fn(&mut Options, &mut ResponseOptions),
    /// The candidate that the rules name, and its limits, on no store yet.
    pub(crate) candidate: Option<(&'a str, &'a Shared<MemoryBackend>)>,
}
