//! One script call, at most once: which calls may be repeated, and which may not.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Links, REDIRECTIONS, Target};
use crate::link::call_error::CallError;
use crate::link::connection::{Command, FaultKind, Reply};
use crate::link::live_connection::LiveConnection;
use crate::link::script::Script;
use crate::link::sent_command::LateAnswer;
use crate::stats::Count;

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
    /// Runs the call, and lets the links learn from its outcome. The call is sent again only after
    /// an answer that proves that it did not run.
    pub(crate) async fn run(&self, links: &Links, until: Instant) -> Result<Vec<u8>, CallError> {
        let counters = &links.counters;
        let (mut target, mut redirections) = (None, 0);
        let mut pause = Duration::from_millis(1);
        loop {
            let to = match target.take() {
                Some(to) => to,
                None => Target::of(links.resolve(self.slot, self.name, until).await?),
            };
            let (live, answer) = self.run_at(links, &to, until).await;
            let fault = match answer {
                Err(CallError::Fault(fault)) => fault,
                answer => {
                    to.link
                        .learn(self.name, live.as_deref(), answer.as_ref().map(|_| ()));
                    return answer;
                }
            };
            if matches!(fault.kind(), FaultKind::Ask(_) | FaultKind::SlotNotNow) {
                links.moving.note(self.slot);
                if self.is_divisible {
                    counters.count(Count::Repeated);
                    return Err(CallError::Divided);
                }
            }
            let is_not_now = matches!(fault.kind(), FaultKind::NotNow | FaultKind::SlotNotNow);
            // The server that a redirection names may not be reached yet.
            let may_be = *fault.kind() == FaultKind::NotSent && redirections > 0;
            if redirections < REDIRECTIONS
                && let Some(next) = links.follow(self.slot, &fault)
            {
                to.link.learn(self.name, None, Ok(()));
                target = Some(next);
                redirections += 1;
            } else if (is_not_now || may_be) && Instant::now() + pause < until {
                if is_not_now {
                    links.look_for_slots();
                    // While the keys of a call are on both sides of a slot, the source of Redis 6.2
                    // redirects each time.
                    redirections = redirections.min(1);
                }
                Box::pin(sleep_until(Instant::now() + pause)).await;
                pause *= 2;
            } else {
                let error = CallError::Fault(fault);
                // A link without a connection has learned that.
                if live.is_some() {
                    to.link.learn(self.name, live.as_deref(), Err(&error));
                }
                return Err(error);
            }
            counters.count(Count::Repeated);
        }
    }

    /// Runs the call at one server. Returns the connection that it was sent over.
    async fn run_at(
        &self,
        links: &Links,
        Target { link, asking }: &Target,
        until: Instant,
    ) -> (Option<Arc<LiveConnection>>, Result<Vec<u8>, CallError>) {
        let mut live = match link.live_for(self.name, Instant::now(), until).await {
            Ok(live) => live,
            Err(error) => return (None, Err(error)),
        };
        let mut is_missing = false;
        let answer = loop {
            let mut command = (self.command)().after_asking(*asking);
            if is_missing {
                command = command.with_source(self.script.source());
                links.counters.count(Count::Loaded);
            }
            let now = Instant::now();
            links.counters.count(Count::Called);
            let answer = link
                .send(&live, self.name, command, now, until, self.late)
                .await;
            match answer.as_ref().map_err(CallError::fault_kind) {
                Err(Some(FaultKind::NoScript)) => {
                    is_missing = true;
                    links.counters.count(Count::Repeated);
                }
                Err(Some(FaultKind::NotSent)) => {
                    // Boxed because it is rare: every call's future would have room for it.
                    match Box::pin(link.next_after(&live, until)).await {
                        Some(next) => live = next,
                        None => break answer,
                    }
                }
                _ => break answer,
            }
        };
        let answer = match answer {
            // The server is healthy: the value of a key is not.
            Err(CallError::Fault(fault)) if *fault.kind() == FaultKind::Script => {
                Err(CallError::Malformed("a script failed on what a key holds"))
            }
            answer => answer.and_then(text_of),
        };
        (Some(live), answer)
    }
}

fn text_of(reply: Reply) -> Result<Vec<u8>, CallError> {
    reply
        .into_bytes()
        .ok_or(CallError::Malformed("the script's reply is no string"))
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;
    use crate::counters::Counters;
    use crate::link::connection::Fault;
    use crate::link::tests::by_hand::{ByHand, HOME, Sent, fault};

    const SLOT: u16 = 7;
    const DEADLINE: Duration = Duration::from_secs(1);

    async fn connected() -> (ByHand, Arc<Links>) {
        let store = ByHand::cluster();
        let links = Links::new(
            Box::new(store.clone()),
            DEADLINE.into(),
            1,
            Counters::new(None),
        );
        store.connect(Ok(())).await;
        (store, Arc::new(links))
    }

    fn begin(links: &Arc<Links>) -> JoinHandle<Result<Vec<u8>, CallError>> {
        begin_at(links, SLOT)
    }

    fn begin_at(links: &Arc<Links>, slot: u16) -> JoinHandle<Result<Vec<u8>, CallError>> {
        let (links, until) = (Arc::clone(links), Instant::now() + DEADLINE);
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
            call.run(&links, until).await
        })
    }

    fn moved(host: &str) -> Result<Reply, Fault> {
        Err(fault(FaultKind::Moved(Some((host.to_owned(), 1)))))
    }

    fn ask(host: &str) -> Result<Reply, Fault> {
        Err(fault(FaultKind::Ask(Some((host.to_owned(), 1)))))
    }

    /// Whether it is a call of the script, its server, and whether that is asked first.
    fn call(sent: &Sent) -> (bool, &str, bool) {
        let is_call = sent.words()[0] == "EVALSHA";
        (is_call, &sent.host, sent.command.is_after_asking())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_lacks_a_script_gets_its_text_with_the_call() {
        let (store, links) = connected().await;
        let calling = begin(&links);
        let sent = store.next().await;
        assert_eq!(call(&sent), (true, HOME, false));
        sent.answer(ask("b")).await;
        let sent = store.next().await;
        assert_eq!(call(&sent), (true, "b", true));
        sent.answer(Err(fault(FaultKind::NoScript))).await;
        let sent = store.next().await;
        assert_eq!(sent.words(), ["EVAL", "return ARGV[3]", "1", "key", "1"]);
        assert_eq!(
            (sent.host.as_str(), sent.command.is_after_asking()),
            ("b", true)
        );
        sent.answer(Ok(Reply::Bytes(b"1".to_vec()))).await;
        assert_eq!(calling.await.expect("no panic").expect("answered"), b"1");
        assert_eq!(links.counters.read().scripts_loaded, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_follows_a_redirection_is_short_again() {
        let (store, links) = connected().await;
        let _calling = begin(&links);
        let missing = Err(fault(FaultKind::NoScript));
        store.next().await.answer(missing).await;
        let sent = store.next().await;
        assert_eq!(sent.words()[0], "EVAL");
        sent.answer(moved("b")).await;
        assert_eq!(call(&store.next().await), (true, "b", false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_follows_four_redirections() {
        let (store, links) = connected().await;
        let calling = begin(&links);
        for host in ["a", "b", "c", "d", "e"] {
            let sent = store.next().await;
            sent.answer(moved(host)).await;
        }
        assert!(store.is_idle().await);
        let error = calling
            .await
            .expect("no panic")
            .expect_err("not a fifth one");
        let last = FaultKind::Moved(Some(("e".to_owned(), 1)));
        assert_eq!(error.fault_kind(), Some(&last));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_moves_may_redirect_each_time_it_is_asked() {
        let (store, links) = connected().await;
        let calling = begin(&links);
        for _ in 0..=REDIRECTIONS {
            store.next().await.answer(ask("b")).await;
            store
                .next()
                .await
                .answer(Err(fault(FaultKind::SlotNotNow)))
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
            let (store, links) = connected().await;
            let is_refused = kind == FaultKind::NotSent;
            if is_refused {
                store.refuse("b");
            }
            let _calling = begin(&links);
            store.next().await.answer(ask("b")).await;
            if !is_refused {
                let sent = store.next().await;
                assert_eq!(call(&sent), (true, "b", true));
                sent.answer(Err(fault(kind.clone()))).await;
            }
            assert!(store.is_idle().await, "not at once");
            assert_eq!(call(&store.later().await), (true, HOME, false), "{kind:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_has_moved_is_asked_for_at_its_server_alone() {
        let (store, links) = connected().await;
        let calling = begin(&links);
        store.next().await.answer(moved("b")).await;
        let sent = store.next().await;
        assert_eq!(call(&sent), (true, "b", false));
        sent.answer(Ok(Reply::Bytes(b"1".to_vec()))).await;
        assert!(calling.await.expect("no panic").is_ok());
        for (slot, host) in [(SLOT, "b"), (SLOT + 1, HOME)] {
            let _calling = begin_at(&links, slot);
            assert_eq!(call(&store.next().await), (true, host, false));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_could_not_be_sent_is_sent_over_the_next_connection() {
        let (store, links) = connected().await;
        let calling = begin(&links);
        let not_sent = Err(fault(FaultKind::NotSent));
        store.next().await.answer(not_sent).await;
        let sent = store.later().await;
        sent.answer(Ok(Reply::Bytes(b"1".to_vec()))).await;
        assert!(calling.await.expect("no panic").is_ok());
        assert_eq!(links.counters.read().repeated, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_about_a_slot_that_no_server_has_is_uncharged() {
        let store = ByHand::cluster();
        store.divide([(0, SLOT - 1, HOME)]);
        let settings = DEADLINE.into();
        let links = Links::new(Box::new(store.clone()), settings, 1, Counters::new(None));
        store.connect(Ok(())).await;
        let error = begin(&Arc::new(links)).await.expect("no panic");
        let error = error.expect_err("no server has it");
        assert_eq!(error.fault_kind(), Some(&FaultKind::SlotNotNow));
        assert!(error.is_uncharged() && store.is_idle().await);
    }

    /// Another server has taken the slots of one that loads its data, or whose cluster is down.
    #[tokio::test(start_paused = true)]
    async fn law_13_slots_of_a_server_that_cannot_decide_now_are_looked_for() {
        for kind in [FaultKind::NotNow, FaultKind::SlotNotNow] {
            let (store, links) = connected().await;
            // The pause between two questions for the slots is over.
            tokio::time::sleep(DEADLINE).await;
            store.divide([(0, 16_383, "two")]);
            let calling = begin(&links);
            store.next().await.answer(Err(fault(kind.clone()))).await;
            let sent = store.later().await;
            assert_eq!(sent.host, "two", "{kind:?}");
            sent.answer(Ok(Reply::Bytes(b"A".to_vec()))).await;
            assert!(calling.await.expect("no panic").is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_script_that_fails_on_a_value_is_no_failure_of_the_server() {
        let (store, links) = connected().await;
        let calling = begin(&links);
        store
            .next()
            .await
            .answer(Err(fault(FaultKind::Script)))
            .await;
        assert!(matches!(
            calling.await.expect("no panic"),
            Err(CallError::Malformed(_))
        ));
        assert!(links.is_healthy());
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_cannot_run_now_is_repeated_until_the_deadline() {
        for kind in [FaultKind::NotNow, FaultKind::SlotNotNow] {
            let (store, links) = connected().await;
            let (calling, began) = (begin(&links), Instant::now());
            let mut calls = 0;
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
            let stats = links.counters.read();
            assert_eq!((stats.calls, stats.repeated), (calls, calls - 1));
        }
    }
}
