//! A day under attack, on a clock that is set: an address guesses a password every ten seconds,
//! whatever it is answered, and a user at another address logs in every half an hour.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode};
use throttle_tower::limit::Ban;
use throttle_tower::throttle_core::{ManualClock, SystemClock, Timestamp};
use throttle_tower::{LimitReport, MemoryBackend};
use tower::ServiceExt;

const DAY: u64 = 86_400;

/// What became of a day.
#[derive(Debug, Default)]
pub(crate) struct Day {
    pub(crate) guesses: u64,
    /// Passwords that were compared.
    pub(crate) checked: u64,
    /// When each ban was seen, in seconds since the morning, and the wait that it is answered with.
    pub(crate) bans: Vec<(u64, Duration)>,
    /// How often the user logged in, of how many times.
    pub(crate) welcome: (u64, u64),
}

pub(crate) async fn day(ban: Option<Ban>) -> anyhow::Result<Day> {
    let morning = Timestamp::from_micros(1_790_000_000_000_000);
    let clock = ManualClock::new(morning);
    let store = MemoryBackend::builder()
        .clock(SystemClock::replaced_by(clock.clone()))
        .build();
    let app = crate::app(store, ban)?;
    let (mut day, mut was_banned) = (Day::default(), false);
    for second in (0..DAY).step_by(10) {
        clock.set(morning + Duration::from_secs(second));
        let answer = log_in(&app, 66, "user=ada&password=guess").await?;
        day.guesses += 1;
        day.checked += u64::from(answer.status() == StatusCode::UNAUTHORIZED);
        let report = answer.extensions().get::<LimitReport>();
        let banned =
            report.filter(|report| report.statuses().any(|(_, status)| status.is_banned()));
        if let Some(wait) = banned
            .and_then(|report| report.decision().retry_after())
            .filter(|_| !was_banned)
        {
            day.bans.push((second, wait));
        }
        was_banned = banned.is_some();
        if second % 1_800 == 0 {
            let answer = log_in(&app, 1, "user=ada&password=lovelace").await?;
            day.welcome = (
                day.welcome.0 + u64::from(answer.status() == StatusCode::OK),
                day.welcome.1 + 1,
            );
        }
    }
    Ok(day)
}

async fn log_in(app: &Router, host: u8, form: &'static str) -> anyhow::Result<Response<Body>> {
    let request =
        Request::post("/login").header("content-type", "application/x-www-form-urlencoded");
    let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, host], 40_000)));
    Ok(app
        .clone()
        .oneshot(request.extension(peer).body(Body::from(form))?)
        .await?)
}

pub(crate) async fn show() -> anyhow::Result<()> {
    println!("192.0.2.66 guesses a password every 10 seconds, for a day:\n");
    let day = day(Some(crate::ban())).await?;
    for (second, wait) in &day.bans {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        println!(
            "  {hour:02}:{minute:02}:{second:02}  banned; Retry-After: {:>6}",
            wait.as_secs()
        );
    }
    let (welcome, times) = day.welcome;
    let unbanned = crate::attack::day(None).await?.checked;
    println!(
        "\n  {} guesses, of which {} were compared with the password",
        day.guesses, day.checked
    );
    println!("  with the limit alone it would have been {unbanned}");
    println!("  192.0.2.1 logged in {welcome} of {times} times");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bans_grow_during_an_attack_and_spare_a_user_beside_it() {
        let banned = day(Some(crate::ban())).await.unwrap();
        // Of the first ban, the wait is longer: the limit itself admits no guess before.
        let lengths: Vec<u64> = banned.bans.iter().map(|(_, wait)| wait.as_secs()).collect();
        assert!(
            lengths.windows(2).all(|pair| pair[1] > pair[0]),
            "{lengths:?}"
        );
        assert!(banned.checked <= 40, "{banned:?}");
        assert_eq!(banned.welcome, (48, 48));
        let limited = day(None).await.unwrap();
        assert_eq!(
            (limited.checked, limited.bans.len(), limited.welcome),
            (480, 0, (48, 48))
        );
    }
}
