//! One script call, at most once: which calls may be repeated, and which may not.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Link;
use super::call_error::CallError;
use super::connection::{Command, FaultKind, Route};
use super::live_connection::LiveConnection;
use super::script::Script;
use super::sent_command::LateAnswer;
use crate::stats::Count;

/// Redirections followed for one call.
const REDIRECTIONS: u32 = 4;

/// A script with what it is called on.
pub(crate) struct ScriptCall<'a, C> {
    pub(crate) script: &'a Script,
    /// The slot of the keys.
    pub(crate) slot: u16,
    /// The name of one of the keys.
    pub(crate) name: &'a [u8],
    /// Whether it is about several requests, of which each could have a call of its own.
    pub(crate) is_divisible: bool,
    /// Receives the answer if it comes after the deadline.
    pub(crate) late: Option<&'a LateAnswer>,
    /// Writes the command. It is written again where the call is repeated, which is rare.
    pub(crate) command: C,
}

impl<C: Fn() -> Command + Sync> ScriptCall<'_, C> {
    /// Runs the call, and lets the link learn from its outcome.
    pub(crate) async fn run(&self, link: &Arc<Link>, until: Instant) -> Result<Vec<u8>, CallError> {
        let mut live = link
            .live_for((self.slot, self.name), Instant::now(), until)
            .await?;
        let answer = loop {
            let answer = self.run_on(link, &live, until).await;
            // The connection of a cluster opens its own connections again.
            if link.is_cluster() || !was_not_sent(&answer) {
                break answer;
            }
            // Boxed because it is rare: every call's future would have room for it.
            match Box::pin(link.next_after(&live, answer, until)).await {
                Ok(next) => live = next,
                Err(answer) => break answer,
            }
        };
        let answer = match answer {
            // The server is healthy: the value of a key is not.
            Err(CallError::Fault(fault)) if *fault.kind() == FaultKind::Script => {
                Err(CallError::Malformed("a script failed on what a key holds"))
            }
            answer => answer,
        };
        link.learn(
            self.slot,
            self.name,
            Some(&live),
            answer.as_ref().map(|_| ()),
        );
        answer
    }

    /// Sends the call again only after an answer that proves that it did not run.
    async fn run_on(
        &self,
        link: &Arc<Link>,
        live: &Arc<LiveConnection>,
        until: Instant,
    ) -> Result<Vec<u8>, CallError> {
        let about = (self.slot, self.name);
        let (mut route, mut redirections, mut pause) =
            (Route::Slot(self.slot), 0, Duration::from_millis(1));
        let mut is_missing = false;
        for attempt in 0.. {
            if attempt > 0 {
                link.counters.count(Count::Repeated);
            }
            let sent = Instant::now();
            link.counters.count(Count::Called);
            let mut command = (self.command)().to(route.clone());
            if mem::take(&mut is_missing) {
                command = command.with_source(self.script.source());
                link.counters.count(Count::Loaded);
            }
            let fault = match link
                .send(live, about, command, sent, until, self.late)
                .await
            {
                Ok(reply) => {
                    return reply
                        .into_bytes()
                        .ok_or(CallError::Malformed("the script's reply is no string"));
                }
                Err(CallError::Fault(fault)) => fault,
                Err(error) => return Err(error),
            };
            if link.is_cluster() && matches!(fault.kind(), FaultKind::Ask(_) | FaultKind::NotNow) {
                // Not every `NotNow` is about a slot that moves. The others cost calls for a
                // moment, and nothing else.
                link.moving.note(self.slot);
                if self.is_divisible {
                    link.counters.count(Count::Repeated);
                    return Err(CallError::Divided);
                }
            }
            if let Some(redirection) = fault.redirection().filter(|_| redirections < REDIRECTIONS) {
                redirections += 1;
                route = redirection;
                continue;
            }
            route = match fault.kind() {
                // To the server that answered, which may differ from the one that the client has
                // for the slot.
                FaultKind::NoScript => {
                    is_missing = true;
                    route
                }
                // A redirection to a server that the client does not know yet fails; meanwhile the
                // client refreshes its slot map.
                FaultKind::NotSent if redirections > 0 && Instant::now() + pause < until => {
                    Box::pin(sleep_until(Instant::now() + pause)).await;
                    pause *= 2;
                    Route::Slot(self.slot)
                }
                FaultKind::NotNow if Instant::now() + pause < until => {
                    Box::pin(sleep_until(Instant::now() + pause)).await;
                    pause *= 2;
                    // While the keys of a call are on both sides of a slot, the source of Redis 6.2
                    // redirects each time.
                    redirections = redirections.min(1);
                    Route::Slot(self.slot)
                }
                _ => return Err(CallError::Fault(fault)),
            };
        }
        unreachable!("attempts end with the deadline at the latest")
    }
}

fn was_not_sent<T>(answer: &Result<T, CallError>) -> bool {
    matches!(answer, Err(CallError::Fault(fault)) if *fault.kind() == FaultKind::NotSent)
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;
    use crate::link::connection::{Fault, Reply};
    use crate::link::tests::by_hand::{ByHand, Sent, fault};
    use crate::observed::Label;

    const SLOT: u16 = 7;
    const DEADLINE: Duration = Duration::from_secs(1);

    async fn connected() -> (ByHand, Arc<Link>) {
        let store = ByHand::cluster();
        let link = Link::new(
            Box::new(store.clone()),
            DEADLINE.into(),
            1,
            Label::default(),
        );
        store.connect(Ok(())).await;
        (store, link)
    }

    fn begin(link: &Arc<Link>) -> JoinHandle<Result<Vec<u8>, CallError>> {
        begin_at(link, SLOT)
    }

    fn begin_at(link: &Arc<Link>, slot: u16) -> JoinHandle<Result<Vec<u8>, CallError>> {
        let (link, until) = (Arc::clone(link), Instant::now() + DEADLINE);
        tokio::spawn(async move {
            let script = Script::new("return ARGV[3]".to_owned());
            let command = || {
                Command::new("EVALSHA")
                    .arg(script.sha())
                    .arg("1")
                    .arg("key")
                    .arg("1")
            };
            let call = ScriptCall {
                script: &script,
                slot,
                name: b"key",
                is_divisible: false,
                late: None,
                command,
            };
            call.run(&link, until).await
        })
    }

    fn moved(host: &str) -> Result<Reply, Fault> {
        Err(fault(FaultKind::Moved(Some((host.to_owned(), 1)))))
    }

    fn ask(host: &str) -> Result<Reply, Fault> {
        Err(fault(FaultKind::Ask(Some((host.to_owned(), 1)))))
    }

    fn address(host: &str, asking: bool) -> Route {
        Route::Address {
            host: host.to_owned(),
            port: 1,
            asking,
        }
    }

    /// Whether it is a call of the script, and its route.
    fn call(sent: &Sent) -> (bool, &Route) {
        (sent.words()[0] == "EVALSHA", sent.command.route())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_lacks_a_script_gets_its_text_with_the_call() {
        let (store, link) = connected().await;
        let calling = begin(&link);
        let sent = store.next().await;
        assert_eq!(call(&sent), (true, &Route::Slot(SLOT)));
        sent.answer(ask("b")).await;
        let sent = store.next().await;
        assert_eq!(call(&sent), (true, &address("b", true)));
        sent.answer(Err(fault(FaultKind::NoScript))).await;
        let sent = store.next().await;
        assert_eq!(sent.words(), ["EVAL", "return ARGV[3]", "1", "key", "1"]);
        assert_eq!(sent.command.route(), &address("b", true));
        sent.answer(Ok(Reply::Bytes(b"1".to_vec()))).await;
        assert_eq!(calling.await.expect("no panic").expect("answered"), b"1");
        assert_eq!(link.counters.read().scripts_loaded, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_follows_a_redirection_is_short_again() {
        let (store, link) = connected().await;
        let _calling = begin(&link);
        let missing = Err(fault(FaultKind::NoScript));
        store.next().await.answer(missing).await;
        let sent = store.next().await;
        assert_eq!(sent.words()[0], "EVAL");
        sent.answer(moved("b")).await;
        assert_eq!(call(&store.next().await), (true, &address("b", false)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_follows_four_redirections() {
        let (store, link) = connected().await;
        let calling = begin(&link);
        for host in ["a", "b", "c", "d", "e"] {
            let sent = store.next().await;
            sent.answer(moved(host)).await;
        }
        assert!(store.is_idle().await);
        let error = calling
            .await
            .expect("no panic")
            .expect_err("not a fifth one");
        assert!(
            matches!(error, CallError::Fault(fault) if fault.redirection() == Some(address("e", false)))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_moves_may_redirect_each_time_it_is_asked() {
        let (store, link) = connected().await;
        let calling = begin(&link);
        for _ in 0..=REDIRECTIONS {
            store.next().await.answer(ask("b")).await;
            store
                .next()
                .await
                .answer(Err(fault(FaultKind::NotNow)))
                .await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        store
            .next()
            .await
            .answer(Ok(Reply::Bytes(b"1".to_vec())))
            .await;
        assert_eq!(calling.await.expect("no panic").expect("answered"), b"1");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_redirection_that_leads_nowhere_the_slot_is_asked_again() {
        for kind in [FaultKind::NotSent, FaultKind::NotNow] {
            let (store, link) = connected().await;
            let _calling = begin(&link);
            store.next().await.answer(moved("b")).await;
            let sent = store.next().await;
            assert_eq!(call(&sent), (true, &address("b", false)));
            sent.answer(Err(fault(kind.clone()))).await;
            assert!(store.is_idle().await, "not at once");
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!(
                call(&store.next().await),
                (true, &Route::Slot(SLOT)),
                "{kind:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_could_not_be_sent_is_not_repeated_without_a_redirection() {
        let (store, link) = connected().await;
        let calling = begin(&link);
        store
            .next()
            .await
            .answer(Err(fault(FaultKind::NotSent)))
            .await;
        assert!(matches!(
            calling.await.expect("no panic"),
            Err(CallError::Fault(_))
        ));
        assert_eq!(link.counters.read().repeated, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_script_that_fails_on_a_value_is_no_failure_of_the_server() {
        let (store, link) = connected().await;
        let calling = begin(&link);
        store
            .next()
            .await
            .answer(Err(fault(FaultKind::Script)))
            .await;
        assert!(matches!(
            calling.await.expect("no panic"),
            Err(CallError::Malformed(_))
        ));
        assert!(link.is_healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_cannot_run_now_is_repeated_until_the_deadline() {
        for kind in [FaultKind::NotNow, FaultKind::NotSent] {
            let (store, link) = connected().await;
            let (calling, began) = (begin(&link), Instant::now());
            let mut calls = 0;
            if kind == FaultKind::NotSent {
                store.next().await.answer(moved("b")).await;
                calls += 1;
            }
            while !calling.is_finished() {
                if store.is_idle().await {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                } else {
                    calls += 1;
                    store.next().await.answer(Err(fault(kind.clone()))).await;
                }
            }
            let error = calling.await.expect("no panic").expect_err("it never runs");
            assert!(
                matches!(&error, CallError::Fault(fault) if *fault.kind() == kind),
                "{error:?}"
            );
            assert!(
                began.elapsed() < DEADLINE,
                "the next repetition would be too late"
            );
            assert!((5..=12).contains(&calls), "{calls} calls");
            let stats = link.counters.read();
            assert_eq!((stats.calls, stats.repeated), (calls, calls - 1));
        }
    }
}
