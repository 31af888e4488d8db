use std::cell::Cell;

use super::*;
use crate::headers::policy_lists::PolicyLists;

/// The lists of some sets of policies, each asked for twice, and how often one was written.
fn lists_of(sets: &[Vec<usize>]) -> (Vec<HeaderValue>, usize) {
    let (lists, writes) = (PolicyLists::default(), Cell::new(0));
    let list = |set: &Vec<usize>| {
        let write = || {
            writes.set(writes.get() + 1);
            HeaderValue::from_str(&format!("{set:?}")).ok()
        };
        let policies: Vec<_> = set
            .iter()
            .map(|number| {
                open(
                    PolicyTerms {
                        number: *number,
                        ..terms("p", 1, 1)
                    },
                    1,
                    1,
                )
            })
            .collect();
        lists.get(&policies, write).unwrap()
    };
    (sets.iter().chain(sets).map(list).collect(), writes.get())
}

fn expected(sets: &[Vec<usize>]) -> Vec<String> {
    sets.iter()
        .chain(sets)
        .map(|set| format!("{set:?}"))
        .collect()
}

#[test]
fn list_is_written_once_for_each_set_of_policies() {
    let sets = [vec![], vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2]];
    let (lists, writes) = lists_of(&sets);
    assert_eq!(lists, expected(&sets));
    assert_eq!(writes, sets.len());
}

/// Some of them are written again.
#[test]
fn list_is_that_of_its_own_policies_however_many_sets_there_are() {
    let sets: Vec<_> = (0..20)
        .flat_map(|one| (0..20).map(move |other| vec![one, 20 + other]))
        .collect();
    let (lists, writes) = lists_of(&sets);
    assert_eq!(lists, expected(&sets));
    assert!(writes > sets.len(), "there is no room for all");
}
