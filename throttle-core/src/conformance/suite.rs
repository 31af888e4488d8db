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
                law_01_deny_never_consumes
                law_01_peek_never_consumes
                law_01_peek_answers_as_a_charge_and_charges_nothing
                law_01_other_parameters_consume_nothing
                law_02_retry_is_tight
                law_02_waits_under_other_parameters_are_tight
                law_02_waits_with_a_reserve_are_tight
                law_03_remaining_is_exact
                law_03_remaining_with_a_reserve_is_exact
                law_04_reset_is_exact
                law_05_all_charges_every_member_or_none
                law_06_exactly_k
                law_06_exactly_k_of_mixed_costs
                law_07_backward_clock_buys_nothing
                law_07_forward_jump_buys_one_burst
                law_07_two_clocks_buy_nothing_twice
                law_07_forgetting_and_stepping_back_is_bounded
                law_07_changed_limit_counts_former_use
                law_08_traces_equal_the_model
                law_08_parameters_equal_the_model
                law_09_expired_is_as_new
                law_09_forgetting_is_invisible
                law_09_denied_stay_denied
                law_10_refund_gives_back_once
                law_10_settle_corrects
                law_10_debit_is_bounded
                law_10_never_into_a_later_window
                law_10_composites_settle_what_they_charged
                law_10_local_charges_are_left_alone
                law_11_reset_one_key
            }
            $crate::__conformance_once! { $harness;
                law_01_peeks_in_a_set_stand_for_charged_calls
                law_05_any_charges_by_its_rule
                law_05_nested_charges_all_or_nothing
                law_05_saturated_member_under_contention
                law_06_racers_under_all_parameters_share_one_budget
                law_08_composites_equal_the_model
                law_08_parameters_in_composites_equal_the_model
                law_09_keys_keep_what_they_used_under_gone_parameters
                law_11_keys_are_injective
                law_11_policies_are_isolated
                law_11_reset_all_by_prefix
                contract_clones_share_the_store
                contract_dropped_futures_charge_at_most_once
                contract_each_set_decides_by_its_own_parameters
                contract_sets_of_every_size
                contract_skipped_policies
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
