use super::layer::ThrottleLayer;
use super::options::Options;
use super::response_options::ResponseOptions;
use crate::limit::LimitTree;

/// What replaces the limits of all followers.
pub(crate) struct Next<'a> {
    pub(crate) limits: LimitTree,
    /// Changes the options that the rules say something about.
    pub(crate) adjust: &'a dyn Fn(&mut Options, &mut ResponseOptions),
    /// The candidate that the rules name: its name, and a layer of its limits.
    pub(crate) candidate: Option<(&'a str, &'a ThrottleLayer)>,
}
