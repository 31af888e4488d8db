/// Expands to a module `conformance` with a `#[test]` for every case of the
/// [kit](crate::conformance), for a [`Harness`](crate::conformance::Harness) that is in scope.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty) => {
        $crate::__conformance_cases! { $harness;
            law_05_saturated_member_under_contention
            law_06_exactly_k
            law_06_racers_under_all_parameters_share_one_budget
            law_07_two_clocks_buy_nothing_twice
            law_07_forgetting_and_stepping_back_is_bounded
            law_08_traces_equal_the_reference
            law_08_parameters_equal_the_reference
            law_08_compositions_equal_the_reference
            law_08_several_keys_of_a_policy_equal_the_reference
            law_09_traces_of_many_keys_equal_the_reference
            law_09_denied_stay_denied
            law_09_keys_keep_what_they_used_under_gone_parameters
            law_10_local_charges_are_left_alone
            law_11_keys_are_injective
            law_11_policies_are_isolated
            law_11_reset_all_by_prefix
            contract_one_of_racing_strikes_begins_the_ban
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($harness:ty; $($case:ident)*) => {
        /// The laws, as tests.
        #[cfg(test)]
        mod conformance {
            #[allow(unused_imports, reason = "the harness may be named by a path")]
            use super::*;

            $(#[test]
            fn $case() {
                $crate::conformance::$case::<$harness>();
            })*
        }
    };
}
