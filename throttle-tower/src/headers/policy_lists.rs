use std::sync::OnceLock;

use http::HeaderValue;

use super::policy_status::PolicyStatus;

/// The lists of policies that responses announce. Each is written once, and then cloned by
/// reference. There is one for each set of policies that apply together, in the tiers of the
/// request. Clients expect the list to be stable.
///
/// It holds 16 lists whatever requests come. Without room, a list is written for each response.
#[derive(Default)]
pub(crate) struct PolicyLists([OnceLock<PolicyList>; 16]);

struct PolicyList {
    /// The policies by the numbers of their terms.
    numbers: Box<[usize]>,
    value: Option<HeaderValue>,
}

impl PolicyLists {
    /// The list of the policies that apply. `write` writes it.
    pub(crate) fn get(
        &self,
        applying: &[PolicyStatus<'_>],
        write: impl Fn() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        let numbers = || applying.iter().map(|policy| policy.terms.number);
        for room in &self.0 {
            let list = room.get_or_init(|| PolicyList {
                numbers: numbers().collect(),
                value: write(),
            });
            if list.numbers.len() == applying.len() && numbers().eq(list.numbers.iter().copied()) {
                return list.value.clone();
            }
        }
        write()
    }
}
