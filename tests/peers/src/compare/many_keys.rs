//! The limiters that a flood of keys meets, each by its default options.

use std::net::IpAddr;

use axum::http::StatusCode;

use super::apps::{APPS, request_from};
use super::ideal::Quota;
use super::libraries::{asks_limitador, limitador_of};
use crate::layer::answer;
use crate::peers::{Limit, Peer};
use crate::rivals::Pool;

struct Asked<F>(F);

impl<F: Fn(IpAddr) -> bool + Sync> Peer for Asked<F> {
    fn decide(&self, address: IpAddr) -> bool {
        (self.0)(address)
    }
}

/// A peer that is not measured elsewhere.
pub fn peer(name: &str, limit: Limit) -> Box<dyn Peer> {
    let quota = Quota {
        count: limit.burst,
        period: limit.every * limit.burst,
    };
    match name {
        "axum-governor" => {
            let app = (APPS[2].make)(quota);
            Box::new(Asked(move |address| {
                answer(app.clone(), request_from(address)).status() == StatusCode::OK
            }))
        }
        "rate-net" => {
            let limiter = rate_net::RateLimiter::builder()
                .quota(quota.count, quota.period)
                .burst(limit.burst);
            let limiter = limiter.try_build().expect("a valid limit");
            Box::new(Asked(move |address| {
                limiter.check(rate_net::Key::ip(address)).is_allow()
            }))
        }
        "quota" => Box::new(Pool::new(limit)),
        "limitador" => {
            let limiter = limitador_of(quota, 1_000_000);
            Box::new(Asked(move |address| asks_limitador(&limiter, address)))
        }
        other => panic!("no peer {other:?}"),
    }
}
