use super::options::Options;
use super::response_options::ResponseOptions;
use crate::limit::LimitTree;

/// What replaces the limits of all followers.
pub(crate) struct Next<'a> {
    pub(crate) limits: LimitTree,
    /// Changes the options that the rules say something about.
    pub(crate) adjust: &'a dyn Fn(&mut Options, &mut ResponseOptions),
}
