//! Several paces in one turn: requests, and other units such as tokens. Open it to see what a call of several units
//! costs, and what becomes of units that were estimated wrongly.

// A call that leaves occupies the schedule until each of its paces allows the next one: for the longest of the times
// that its units take. So several paces are one leaky bucket that counts microseconds, and a store decides about all of
// them in one step. What was used in the end is settled by time as well: see `account`.

mod account;
mod accounts;
mod paces;
mod reserve;
mod turn;
mod usage;

pub(super) use self::accounts::Accounts;
pub(super) use self::paces::{UnitCosts, Units};
pub(super) use self::reserve::Reserving;
pub(super) use self::turn::Turn;
pub use self::usage::ShapeUsage;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use smallvec::smallvec;
    use throttle_core::{Key, LeakyBucket, MemoryBackend, Rate};
    use tokio::time::{Instant, advance};

    use super::super::builder::ShaperBuilder;
    use super::super::clock::TokioClock;
    use super::super::error::Bound;
    use super::super::shaper::Shaper;
    use super::*;

    fn model() -> Shaper {
        paced(Duration::from_secs(60)).build().unwrap()
    }

    /// Ten requests and a hundred tokens a second.
    fn paced(max_wait: Duration) -> ShaperBuilder {
        let requests = LeakyBucket::new(Rate::per_second(10)).max_wait(max_wait);
        Shaper::builder(requests).by_unit("tokens", Rate::per_second(100)).headroom(Duration::ZERO)
    }

    /// Reserves a slot for a call of ten tokens that has to leave by the deadline.
    fn reserve(shaper: &Shaper, deadline: Duration) -> Reserving<MemoryBackend<TokioClock>> {
        let schedule = &shaper.schedule;
        let (units, costs) = (schedule.units.as_ref().unwrap(), UnitCosts { requests: 1, units: smallvec![10] });
        schedule.reserve_units(units, Key::from("key"), &costs, Some(deadline), None)
    }

    fn accounts(shaper: &Shaper) -> &Accounts {
        &shaper.schedule.units.as_ref().unwrap().accounts
    }

    #[tokio::test(start_paused = true)]
    async fn shape_waiting_call_of_several_units_takes_at_most_1000_bytes() {
        let shaper = model();
        shaper.schedule_units("key", 1, &[("tokens", 10)]).await.unwrap();
        let future = size_of_val(&shaper.schedule_units("key", 1, &[("tokens", 1)]));
        let (turn, usage) = (size_of::<Turn>(), ShapeUsage::SIZE);
        assert!(future + turn + usage <= 1_000, "{future} + {turn} + {usage}");
    }

    #[tokio::test(start_paused = true)]
    async fn shape_accounts_of_idle_keys_are_forgotten() {
        let shaper = model();
        for number in 0..10_000_u64 {
            shaper.schedule_units(Key::from(number), 1, &[("tokens", 3)]).await.unwrap();
            advance(Duration::from_millis(20)).await;
        }
        assert!(accounts(&shaper).len() <= 64, "{}", accounts(&shaper).len());
    }

    #[tokio::test(start_paused = true)]
    async fn shape_account_that_owes_is_remembered() {
        let shaper = model();
        let usage = shaper.schedule_units("key", 1, &[("tokens", 1)]).await.unwrap();
        usage.settle("tokens", 1_000).unwrap();
        for number in 0..200_u64 {
            shaper.schedule_units(Key::from(number), 1, &[]).await.unwrap();
            advance(Duration::from_millis(20)).await;
        }
        let began = Instant::now();
        shaper.schedule_units("key", 1, &[("tokens", 1)]).await.unwrap();
        shaper.schedule_units("key", 1, &[("tokens", 1)]).await.unwrap();
        // 10 s were owed; 4 s have passed, and the first token is new.
        assert_eq!(began.elapsed(), Duration::from_millis(6_010));
    }

    /// As long as they wait, calls know the slot before their own, and not any longer.
    #[tokio::test(start_paused = true)]
    async fn shape_calls_that_left_keep_no_other_call() {
        let shaper = model();
        let mut turns = Vec::new();
        for _ in 0..50 {
            shaper.schedule_units("key", 1, &[("tokens", 1)]).await.unwrap();
            turns.push(Arc::downgrade(&accounts(&shaper).last(&Key::from("key")).unwrap()));
        }
        assert_eq!(turns.iter().filter(|turn| turn.upgrade().is_some()).count(), 1);
    }

    /// The time that one unit leaves free is taken from the slot once, whichever unit is settled.
    #[tokio::test(start_paused = true)]
    async fn shape_slot_is_shortened_to_what_each_unit_has_used() {
        let shaper = paced(Duration::from_secs(60)).by_unit("bytes", Rate::per_second(1_000)).build().unwrap();
        let start = Instant::now();
        let usage = shaper.schedule_units("key", 1, &[("tokens", 50), ("bytes", 400)]).await.unwrap();
        usage.settle("tokens", 20).unwrap();
        usage.settle("bytes", 350).unwrap();
        shaper.schedule_units("key", 1, &[]).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_millis(350));
    }

    #[tokio::test(start_paused = true)]
    async fn shape_unused_tokens_are_kept_for_a_later_call_where_another_process_has_made_one_request() {
        let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
        let process = || paced(Duration::from_secs(60)).name("model").backend(memory.clone()).build().unwrap();
        let (one, other) = (process(), process());
        let (start, tokens) = (Instant::now(), [("tokens", 50)]);
        one.schedule_units("key", 1, &tokens).await.unwrap();
        let between = other.reserve("key", 1).await.unwrap();
        let usage = one.schedule_units("key", 1, &tokens).await.unwrap();
        usage.settle("tokens", 10).unwrap();
        let mut left = Vec::new();
        for _ in 0..3 {
            one.schedule_units("key", 1, &tokens).await.unwrap();
            left.push(start.elapsed().as_millis());
        }
        assert_eq!(left, [1_100, 1_200, 1_700]);
        drop(between);
    }

    /// A shaper that counts requests alone makes the same calls.
    #[tokio::test(start_paused = true)]
    async fn shape_call_by_no_other_unit_keeps_the_pace_of_requests() {
        let requests = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(1));
        let shaper = Shaper::builder(requests).headroom(Duration::ZERO).build().unwrap();
        let start = Instant::now();
        for call in 0..4 {
            let usage = shaper.schedule_units("key", 2, &[]).await.unwrap();
            assert_eq!((start.elapsed(), usage.units().count()), (call * Duration::from_millis(200), 0));
        }
        assert!(shaper.schedule_units("key", 12, &[]).await.is_err(), "it never fits");
        assert!(shaper.schedule_units("key", 1, &[("tokens", 1)]).await.is_err(), "of tokens there is no pace");
        assert_eq!((shaper.stats().sent, shaper.stats().refused), (4, 1));
    }

    /// Its deadline is finer than the schedule's microseconds.
    #[tokio::test(start_paused = true)]
    async fn shape_call_pays_as_much_of_a_debt_as_fits_before_its_deadline() {
        let shaper = model();
        let usage = shaper.schedule_units("key", 1, &[("tokens", 10)]).await.unwrap();
        usage.settle("tokens", 1_010).unwrap();
        let slot = reserve(&shaper, Duration::from_nanos(300_000_500));
        assert!(matches!(slot, Reserving::Done(Ok(_))));
        // 100 ms of the first call, 100 ms of its own, and 200 ms of the debt.
        assert_eq!(shaper.reserve("key", 1).await.unwrap().delay(), Duration::from_millis(400));
    }

    /// A deadline beyond the longest wait allows no call that never fits.
    #[tokio::test(start_paused = true)]
    async fn shape_debt_beyond_the_longest_wait_locks_out_no_call_with_a_later_deadline() {
        let shaper = paced(Duration::from_millis(300)).build().unwrap();
        let usage = shaper.schedule_units("key", 1, &[("tokens", 10)]).await.unwrap();
        usage.settle("tokens", 1_010).unwrap();
        advance(Duration::from_millis(100)).await;
        assert!(matches!(reserve(&shaper, Duration::from_secs(60)), Reserving::Done(Ok(_))));
    }

    /// To pay less of it would not help.
    #[tokio::test(start_paused = true)]
    async fn shape_call_that_owes_is_refused_once_where_too_many_wait() {
        let shaper = paced(Duration::from_secs(60)).max_waiting(1).build().unwrap();
        let usage = shaper.schedule_units("key", 1, &[("tokens", 10)]).await.unwrap();
        usage.settle("tokens", 1_010).unwrap();
        let waits = shaper.reserve("key", 1).await.unwrap();
        let refused = shaper.schedule_units("key", 1, &[("tokens", 10)]).await.unwrap_err();
        assert_eq!(refused.queue_full().unwrap().bound, Bound::MaxWaiting);
        assert_eq!((shaper.stats().refused, shaper.stats().waiting), (1, 1));
        drop(waits);
    }
}
