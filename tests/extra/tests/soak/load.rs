//! The clients: each asks one route again and again, for a few keys and for new ones, and some give
//! up early.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use throttle_extra::web;
use throttle_tower::shape::Shaper;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::app::{App, BUSY, ROUTES};

const CLIENTS: u64 = 3;
const CALLERS: u64 = 30;

pub(crate) struct Load {
    ended: Arc<AtomicBool>,
    clients: JoinSet<(&'static str, u64)>,
    callers: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(app: &App) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (mut clients, mut callers) = (JoinSet::new(), JoinSet::new());
        for route in ROUTES {
            for number in 0..CLIENTS {
                clients.spawn(client(
                    route,
                    number,
                    format!("{}/{route}", app.url),
                    Arc::clone(&ended),
                ));
            }
        }
        for number in 0..CALLERS {
            callers.spawn(caller(app.shapers.0.clone(), number, Arc::clone(&ended)));
            callers.spawn(caller(app.shapers.1.clone(), number, Arc::clone(&ended)));
        }
        Self {
            ended,
            clients,
            callers,
        }
    }

    /// Ends all clients. Returns how many requests were sent to each route.
    pub(crate) async fn end(self) -> BTreeMap<&'static str, u64> {
        self.ended.store(true, Ordering::SeqCst);
        self.callers.join_all().await;
        let mut sent = BTreeMap::new();
        self.clients
            .join_all()
            .await
            .into_iter()
            .for_each(|(route, count)| *sent.entry(route).or_default() += count);
        sent
    }
}

/// Numbers that look random, the same in each run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

async fn client(
    route: &'static str,
    number: u64,
    url: String,
    ended: Arc<AtomicBool>,
) -> (&'static str, u64) {
    static STRANGERS: AtomicU64 = AtomicU64::new(0);
    let (http, mut dice, mut sent) = (web::client(), 0x9e37_79b9_7f4a_7c15 + number, 0);
    while !ended.load(Ordering::SeqCst) {
        let roll = next(&mut dice);
        let key = match roll % 8 {
            0 => format!("stranger-{}", STRANGERS.fetch_add(1, Ordering::Relaxed)),
            key => format!("{BUSY}{}", key % 2),
        };
        let asking = async {
            http.get(&url)
                .header("x-api-key", key)
                .send()
                .await?
                .bytes()
                .await
        };
        sent += 1;
        // Some give up, at once or while they wait.
        if roll >> 8 & 7 == 0 {
            let _ = timeout(Duration::from_millis(roll >> 16 & 63), asking).await;
        } else {
            asking.await.expect("an answer, whatever fails");
        }
        sleep(Duration::from_millis(roll >> 24 & 7)).await;
    }
    (route, sent)
}

async fn caller(shaper: Shaper, number: u64, ended: Arc<AtomicBool>) {
    let mut dice = 0x9e37_79b9_7f4a_7c15 + number;
    while !ended.load(Ordering::SeqCst) {
        let patience = Duration::from_millis(50 + (next(&mut dice) & 511));
        let refused = matches!(
            timeout(patience, shaper.schedule("upstream", 1)).await,
            Ok(Err(_))
        );
        if refused {
            sleep(Duration::from_millis(20)).await;
        }
    }
}
