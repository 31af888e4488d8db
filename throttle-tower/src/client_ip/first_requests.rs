//! Whether the first requests of a limit had addresses of clients, or only those of proxies.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use http::header::USER_AGENT;
use http::request::Parts;

use super::address_origin::AddressOrigin;
use super::evidence::Evidence;
use super::ip_prefix::IpPrefix;
use super::source::ClientIp;
use crate::lock::lock;

/// So many requests from proxies alone are no coincidence.
pub(crate) const REQUESTS: u32 = 100;

/// Health checks of a proxy name no client, and before the first client comes there is nothing
/// else. They are always the same few requests, and come slowly: that many different ones, or a
/// hundred in so short a time, are no health checks.
const DIFFERENT: usize = 5;
const SHORT: Duration = Duration::from_secs(10);

/// After so many requests that say nothing, no more are looked at.
const MOST_SILENT: u32 = 10_000;

/// What the requests of a limit have shown so far.
#[derive(Debug, Default)]
pub(crate) struct FirstRequests(Mutex<Observations>);

#[derive(Debug, Default)]
struct Observations {
    silent: u32,
    /// When the current hundred of requests from proxies began.
    began: Option<Instant>,
    /// How many of the current hundred came from proxies, by the reason why no client is known.
    reasons: Vec<(AddressOrigin, u32)>,
    /// Digests of the different ones, as far as they are counted.
    different: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceVerdict {
    /// The next request must be looked at, too.
    Open,
    /// A proxy has named a client.
    Sound,
    /// Clients connect directly, or there is no telling.
    Settled,
    /// There were only proxies, mostly for this reason.
    OnlyProxies(AddressOrigin),
}

impl FirstRequests {
    /// Looks at one more request.
    pub(crate) fn judge(
        &self,
        source: &ClientIp,
        peer: Option<IpAddr>,
        parts: &Parts,
    ) -> SourceVerdict {
        lock(&self.0).add(source.evidence(peer, &parts.headers), parts, Instant::now())
    }
}

impl Observations {
    fn add(&mut self, evidence: Evidence, parts: &Parts, now: Instant) -> SourceVerdict {
        match evidence {
            Evidence::Client => return SourceVerdict::Sound,
            Evidence::Connection => return SourceVerdict::Settled,
            Evidence::Nothing if self.silent + 1 == MOST_SILENT => return SourceVerdict::Settled,
            Evidence::Nothing => {
                self.silent += 1;
                return SourceVerdict::Open;
            }
            Evidence::Proxy(reason) => self.count(reason),
        }
        self.distinguish(parts);
        let began = *self.began.get_or_insert(now);
        if self.reasons.iter().map(|(_, count)| count).sum::<u32>() < REQUESTS {
            return SourceVerdict::Open;
        }
        let reasons = std::mem::take(&mut self.reasons);
        self.began = None;
        if self.different.len() < DIFFERENT && now.saturating_duration_since(began) > SHORT {
            return SourceVerdict::Open;
        }
        let most = reasons.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(SourceVerdict::Open, |(reason, _)| {
            SourceVerdict::OnlyProxies(reason)
        })
    }

    fn count(&mut self, reason: AddressOrigin) {
        match self.reasons.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, count)) => *count += 1,
            None => self.reasons.push((reason, 1)),
        }
    }

    fn distinguish(&mut self, parts: &Parts) {
        let mut digest = DefaultHasher::new();
        (parts.uri.path(), parts.headers.get(USER_AGENT)).hash(&mut digest);
        let digest = digest.finish();
        if self.different.len() < DIFFERENT && !self.different.contains(&digest) {
            self.different.push(digest);
        }
    }
}

/// What the limits of a layer have found out together.
#[derive(Debug, Default)]
pub(crate) struct KnownSources(Mutex<SourceLists>);

#[derive(Debug, Default)]
struct SourceLists {
    /// Those that have found clients.
    sound: Vec<ClientIp>,
    warned: Vec<(AddressOrigin, ClientIp)>,
}

impl KnownSources {
    pub(crate) fn add_sound(&self, source: &ClientIp) {
        let source = without_prefix(source);
        let mut known = lock(&self.0);
        if !known.sound.contains(&source) {
            known.sound.push(source);
        }
    }

    /// Whether a limit that has found only proxies is to be warned of: once for each reason, and
    /// not if another limit has found clients by this source. A limit by the connection next to
    /// one by clients is meant for the proxy.
    pub(crate) fn must_warn(&self, source: &ClientIp, reason: AddressOrigin) -> bool {
        let mut known = lock(&self.0);
        let is_meant = reason == AddressOrigin::Peer && !known.sound.is_empty();
        let warning = (reason, without_prefix(source));
        if is_meant || known.sound.contains(&warning.1) || known.warned.contains(&warning) {
            return false;
        }
        known.warned.push(warning);
        true
    }
}

/// Limits by addresses and by networks read the same source.
fn without_prefix(source: &ClientIp) -> ClientIp {
    source.clone().by_prefix(IpPrefix::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Parts {
        http::Request::get(path)
            .header(USER_AGENT, "probe/1")
            .body(())
            .unwrap()
            .into_parts()
            .0
    }

    /// What the last of some requests from a proxy shows, each at its path and so long after the
    /// one before.
    fn last_of(paths: &[&str], count: usize, pause: Duration) -> SourceVerdict {
        let (mut seen, mut now) = (Observations::default(), Instant::now());
        let requests = paths.iter().cycle().take(count).map(|path| parts(path));
        let verdicts = requests.map(|parts| {
            now += pause;
            seen.add(Evidence::Proxy(AddressOrigin::MissingHeader), &parts, now)
        });
        let verdicts: Vec<_> = verdicts.collect();
        let (last, others) = verdicts.split_last().unwrap();
        assert!(
            others.iter().all(|verdict| *verdict == SourceVerdict::Open),
            "{verdicts:?}"
        );
        *last
    }

    const MISSING: SourceVerdict = SourceVerdict::OnlyProxies(AddressOrigin::MissingHeader);

    #[test]
    fn hundredth_request_from_a_proxy_decides() {
        let second = Duration::from_secs(1);
        for (paths, pause) in [
            (&["/"][..], Duration::ZERO),
            (&["/a", "/b", "/c", "/d", "/e"], second),
        ] {
            assert_eq!(last_of(paths, 99, pause), SourceVerdict::Open, "{paths:?}");
            assert_eq!(last_of(paths, 100, pause), MISSING, "{paths:?}");
        }
    }

    #[test]
    fn health_checks_are_no_clients_of_a_proxy_however_many() {
        let second = Duration::from_secs(1);
        assert_eq!(last_of(&["/health"], 100_000, second), SourceVerdict::Open);
        assert_eq!(
            last_of(&["/health", "/ready", "/live", "/metrics"], 100_000, second),
            SourceVerdict::Open
        );
    }

    #[test]
    fn clients_after_health_checks_are_found_missing_within_the_next_hundred() {
        let (mut seen, now) = (Observations::default(), Instant::now());
        let mut add = |path: &str, second| {
            let now = now + Duration::from_secs(second);
            seen.add(
                Evidence::Proxy(AddressOrigin::MissingHeader),
                &parts(path),
                now,
            )
        };
        assert!((0..1_000).all(|second| add("/health", second) == SourceVerdict::Open));
        let verdicts: Vec<_> = (0..100).map(|n| add(&format!("/{n}"), 1_000 + n)).collect();
        assert_eq!(
            verdicts
                .iter()
                .filter(|verdict| **verdict == MISSING)
                .count(),
            1
        );
    }

    #[test]
    fn most_frequent_reason_is_reported() {
        let (mut seen, now) = (Observations::default(), Instant::now());
        let reasons = |n| {
            if n % 3 == 0 {
                AddressOrigin::MissingHeader
            } else {
                AddressOrigin::Malformed
            }
        };
        let verdicts = (1..=100).map(|n| seen.add(Evidence::Proxy(reasons(n)), &parts("/"), now));
        assert_eq!(
            verdicts.last(),
            Some(SourceVerdict::OnlyProxies(AddressOrigin::Malformed))
        );
    }

    #[test]
    fn one_client_is_enough_and_silent_requests_end_the_search() {
        let (mut seen, now) = (Observations::default(), Instant::now());
        assert!(
            (1..MOST_SILENT)
                .all(|_| seen.add(Evidence::Nothing, &parts("/"), now) == SourceVerdict::Open)
        );
        assert_eq!(
            seen.add(Evidence::Nothing, &parts("/"), now),
            SourceVerdict::Settled
        );
        assert_eq!(
            Observations::default().add(Evidence::Connection, &parts("/"), now),
            SourceVerdict::Settled
        );
        assert_eq!(
            Observations::default().add(Evidence::Client, &parts("/"), now),
            SourceVerdict::Sound
        );
    }
}
