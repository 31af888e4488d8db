use std::sync::OnceLock;

use http::HeaderValue;

use super::policy_status::PolicyStatus;

/// The lists of policies that responses announce, each written once and cloned by reference from
/// then on. There is one for each set of policies that apply together, in the tiers of the request.
/// Clients expect the list to be stable.
///
/// It holds few lists whatever requests come. A list for which there is no room is written for each
/// response.
#[derive(Default)]
pub(crate) struct PolicyLists([OnceLock<Written>; ROOM]);

struct Written {
    /// The policies by the numbers of their terms.
    of: Box<[usize]>,
    list: Option<HeaderValue>,
}

const ROOM: usize = 16;

impl PolicyLists {
    /// The list of the policies that apply. `write` writes it.
    #[inline(always)]
    pub(crate) fn get(
        &self,
        applying: &[PolicyStatus<'_>],
        write: impl Fn() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        let numbers = || applying.iter().map(|policy| policy.terms.number);
        for room in &self.0 {
            let written = room.get_or_init(|| Written::new(numbers().collect(), write()));
            if written.of.iter().copied().eq(numbers()) {
                return written.list.clone();
            }
        }
        write()
    }
}

impl Written {
    #[cold]
    fn new(of: Box<[usize]>, list: Option<HeaderValue>) -> Self {
        // The first clone of a value allocates its reference count.
        drop(list.clone());
        Self { of, list }
    }
}
