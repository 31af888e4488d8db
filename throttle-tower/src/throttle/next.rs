use super::options::Options;
use super::response_options::ResponseOptions;
use crate::limit::LimitTree;

/// What replaces the limits of all followers.
pub(crate) struct Next<'a> {
    /// The limits as they are written.
    pub(crate) limits: LimitTree,
    /// The same, as those replace the parameters of former ones that are in use on the backends of the followers.
    pub(crate) replacing: LimitTree,
    /// Changes the options that the rules say something about.
    pub(crate) adjust: &'a dyn Fn(&mut Options, &mut ResponseOptions),
}
