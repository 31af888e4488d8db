/// Expands to a module `conformance` with a `#[test]` for every case of the
/// [kit](crate::conformance) and every algorithm it runs on, for a
/// [`Harness`](crate::conformance::Harness) that is in scope.
///
/// With the word `adapter` after the harness, as in `conformance_tests!(InMemory, adapter)`, every
/// case runs on one algorithm only. Use it for a backend that passes each step to another backend,
/// on which the whole kit runs.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty) => {
        $crate::__conformance_suite! { $harness, __conformance_of_each_algorithm }
    };
    ($harness:ty, adapter) => {
        $crate::__conformance_suite! { $harness, __conformance_of_one_algorithm }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_suite {
    ($harness:ty, $cases:ident) => {
        /// The laws, as tests.
        #[cfg(test)]
        mod conformance {
            #[allow(unused_imports, reason = "the harness may be named by a path")]
            use super::*;

            $crate::$cases! { $harness;
                law_06_exactly_k
                law_07_two_clocks_buy_nothing_twice
                law_07_forgetting_and_stepping_back_is_bounded
                law_08_traces_equal_the_reference
                law_08_parameters_equal_the_reference
                law_09_traces_of_many_keys_equal_the_reference
                law_09_denied_stay_denied
                law_10_local_charges_are_left_alone
            }
            $crate::__conformance_once! { $harness;
                law_05_saturated_member_under_contention
                law_06_racers_under_all_parameters_share_one_budget
                law_08_compositions_equal_the_reference
                law_09_keys_keep_what_they_used_under_gone_parameters
                law_11_keys_are_injective
                law_11_policies_are_isolated
                law_11_reset_all_by_prefix
                contract_clones_share_the_store
                contract_index_without_a_policy_is_an_error
                contract_one_of_racing_strikes_begins_the_ban
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_of_each_algorithm {
    ($harness:ty; $($case:ident)*) => {$(
        mod $case {
            #[allow(unused_imports, reason = "the harness may be named by a path")]
            use super::*;

            $crate::__conformance_of_one_case! { $harness, $case;
                gcra
                token_bucket
                leaky_meter
                interval_bucket
                interval_bucket_aligned
                fixed_window
                sliding_window
                sliding_window_of_two
                sliding_log
                calendar_day
                calendar_week
                calendar_month
                leaky_bucket
            }
        }
    )*};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_of_one_algorithm {
    ($harness:ty; $($case:ident)*) => {$(
        #[test]
        fn $case() {
            // Its charges have windows, so no case is trivial.
            $crate::conformance::$case::<$harness>(&$crate::conformance::Sample::fixed_window());
        }
    )*};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_of_one_case {
    ($harness:ty, $case:ident; $($sample:ident)*) => {$(
        #[test]
        fn $sample() {
            $crate::conformance::$case::<$harness>(&$crate::conformance::Sample::$sample());
        }
    )*};
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_once {
    ($harness:ty; $($case:ident)*) => {$(
        #[test]
        fn $case() {
            $crate::conformance::$case::<$harness>();
        }
    )*};
}
