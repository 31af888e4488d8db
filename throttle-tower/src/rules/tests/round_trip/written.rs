//! A model as the fields of a file.

use super::layout::{Layout, Toml};
use super::model::{
    Address, Algorithm, AnyLimit, Cost, Defaults, Duration, Failing, Group, Key, LayerSettings, Matching, Missing,
    Model, Named, Options, Period, Rate,
};
use crate::headers::{Dialect, ResetFormat};

impl Model {
    /// A file that says this. Files of one model differ in nothing but their layout.
    pub(super) fn written(&self, seed: u64) -> String {
        let compose = self.compose.as_ref().map(|groups| match &groups[..] {
            [group] => self.composed(group),
            groups => self.members(groups),
        });
        let root = Toml::table([("version", Some(Toml::Number(1))), ("compose", compose)]);
        let sections = Toml::table([
            ("client-ip", self.address.as_ref().map(Address::written)),
            ("defaults", Some(self.defaults.written())),
            ("layer", Some(self.layer.written())),
        ]);
        let limits: Vec<(&str, Toml)> = self.limits.iter().map(Named::written).collect();
        Layout::new(seed).document(&root, &sections, &limits)
    }

    fn composed(&self, group: &Group) -> Toml {
        match group {
            Group::One(place) => Toml::text(&self.limits[*place].name),
            Group::List(members) => self.members(members),
            Group::All(members) => Toml::table([("all", Some(self.members(members)))]),
            Group::Any(members, every) => {
                let charge = every.map(|every| Toml::text(if every { "every-admitting" } else { "first" }));
                Toml::table([("any", Some(self.members(members))), ("charge", charge)])
            }
        }
    }

    fn members(&self, groups: &[Group]) -> Toml {
        Toml::List(groups.iter().map(|group| self.composed(group)).collect())
    }
}

impl Address {
    fn written(&self) -> Toml {
        let source = |name: &str| ("source", Some(Toml::text(name)));
        match self {
            Self::Alone(name) => Toml::table([source(name)]),
            Self::Trusted(name, by) => Toml::table([source(name), ("trusted", Some(Toml::texts(by.iter().copied())))]),
            Self::Hops(name, hops) => Toml::table([source(name), ("hops", Some(Toml::Number((*hops).into())))]),
            Self::Header(name, by) => {
                let header = Toml::table([("header", Some(Toml::text(*name)))]);
                Toml::table([("source", Some(header)), ("trusted", Some(Toml::texts(by.iter().copied())))])
            }
            Self::Everyone(name) => Toml::table([
                source(name),
                ("trusted", Some(Toml::texts(["0.0.0.0/0"]))),
                ("trust-everyone", Some(Toml::Flag(true))),
            ]),
        }
    }
}

impl Defaults {
    fn written(&self) -> Toml {
        Toml::table([
            ("on-error", self.on_error.map(Failing::written)),
            ("on-missing", self.on_missing.map(Missing::written)),
        ])
    }
}

impl LayerSettings {
    fn written(&self) -> Toml {
        let dialect = |dialect| match dialect {
            Dialect::Draft11 => "draft-11",
            Dialect::Draft07 => "draft-07",
            Dialect::Draft06 => "draft-06",
            Dialect::Draft03 => "draft-03",
            Dialect::XRateLimit(ResetFormat::DeltaSeconds) => "x-ratelimit",
            Dialect::XRateLimit(ResetFormat::EpochSeconds) => "x-ratelimit-epoch",
            Dialect::OpenAi => "openai",
            Dialect::None => "none",
        };
        Toml::table([
            ("headers", self.headers.map(dialect).map(Toml::text)),
            ("sdk-hints", self.sdk_hints.map(|hints| Toml::text(format!("{} us", hints.give_up_after.as_micros())))),
            (
                "unavailable-retry-after",
                self.unavailable_retry_after.map(|wait| Toml::text(format!("{} us", wait.as_micros()))),
            ),
            ("retry-jitter", self.retry_jitter.map(|percent| Toml::Number(percent.into()))),
            ("max-waiting", self.max_waiting.map(|requests| Toml::Number(requests as u64))),
            ("report-in-response", self.report_in_response.map(Toml::Flag)),
            ("grpc-refusals", self.grpc_refusals.map(Toml::Flag)),
        ])
    }
}

impl Named {
    fn written(&self) -> (&'static str, Toml) {
        let name = Toml::table([("name", Some(Toml::text(&self.name)))]);
        match &self.kind {
            AnyLimit::Limit { algorithm, key, key_deadline, options } => {
                let (kind, algorithm) = algorithm.written();
                let limit = name.with(kind, Some(algorithm)).with("by", Some(key.written()));
                let limit = limit.with("key-deadline", key_deadline.map(Duration::written));
                ("limit", options.written(limit))
            }
            AnyLimit::Plans { key, tiers, unknown, options } => {
                let tier = |(name, algorithm): &(&'static str, Algorithm)| {
                    let (kind, algorithm) = algorithm.written();
                    (*name, Toml::table([(kind, Some(algorithm))]))
                };
                let all = tiers.iter().map(tier).fold(Toml::table([]), |all, (name, tier)| all.with(name, Some(tier)));
                let plans = name
                    .with("tiers", Some(all))
                    .with("by", Some(key.written()))
                    .with("lookup", Some(Toml::text("plan-of")))
                    .with("unknown", Some(Toml::text(tiers[*unknown].0)));
                ("plans", options.written(plans))
            }
            AnyLimit::InFlight { most, key, cost, matching, on_missing } => {
                // The usual name need not be written.
                let named = if self.name == "in-flight" { Toml::table([]) } else { name };
                let limit = named
                    .with("most", Some(Toml::Number(*most)))
                    .with("by", key.as_ref().map(Key::written))
                    .with("cost", cost.map(Cost::written))
                    .with("on-missing", on_missing.map(Missing::written));
                ("concurrency", matching.written(limit))
            }
        }
    }
}

impl Options {
    fn written(&self, limit: Toml) -> Toml {
        let refund = match &self.refunds[..] {
            [] => None,
            [one] => Some(Toml::text(*one)),
            several => Some(Toml::texts(several.iter().copied())),
        };
        let limit = self.matching.written(limit);
        limit
            .with("cost", self.cost.map(Cost::written))
            .with("unit", self.unit.as_ref().map(Toml::text))
            .with("on-missing", self.on_missing.map(Missing::written))
            .with("on-error", self.on_error.map(Failing::written))
            .with("refund", refund)
            .with("charge-refused", self.charge_refused.map(Toml::Flag))
            .with("settled-later", self.settled_later.map(Toml::Flag))
            .with("wait-up-to", self.wait_up_to.map(Duration::written))
    }
}

impl Matching {
    fn written(&self, limit: Toml) -> Toml {
        let texts = |texts: &[&'static str]| (!texts.is_empty()).then(|| Toml::texts(texts.iter().copied()));
        let fields = Toml::table([
            ("methods", texts(&self.methods)),
            ("routes", texts(&self.routes)),
            ("paths", texts(&self.paths)),
            ("hosts", texts(&self.hosts)),
        ]);
        let is_empty = matches!(&fields, Toml::Table(fields) if fields.is_empty());
        let condition = |(name, is): &(&'static str, bool)| match is {
            true => Toml::text(*name),
            false => Toml::table([("not", Some(Toml::text(*name)))]),
        };
        let when = match &self.when[..] {
            [] => None,
            [one] => Some(condition(one)),
            several => Some(Toml::List(several.iter().map(condition).collect())),
        };
        limit.with("match", (!is_empty).then_some(fields)).with("when", when)
    }
}

impl Algorithm {
    fn written(&self) -> (&'static str, Toml) {
        let table = |rate: &Rate| Toml::table([("rate", Some(rate.written()))]);
        let number = |number: &Option<u64>| number.map(Toml::Number);
        match self {
            Self::Gcra(rate, burst) => ("gcra", table(rate).with("burst", number(burst))),
            Self::TokenBucket(rate, burst) => ("token-bucket", table(rate).with("burst", number(burst))),
            Self::LeakyMeter(rate, capacity) => ("leaky-meter", table(rate).with("capacity", number(capacity))),
            Self::IntervalBucket { capacity, refill, interval, aligned } => {
                let bucket = Toml::table([
                    ("capacity", Some(Toml::Number(*capacity))),
                    ("refill", Some(Toml::Number(*refill))),
                    ("interval", Some(interval.written())),
                    ("aligned", aligned.map(Toml::Flag)),
                ]);
                ("interval-bucket", bucket)
            }
            Self::FixedWindow(rate, offset) => {
                let sign = |is_earlier| if is_earlier { "-" } else { "" };
                let offset = offset.map(|(is_earlier, by)| Toml::text(format!("{}{}", sign(is_earlier), by.0)));
                ("fixed-window", table(rate).with("offset", offset))
            }
            Self::SlidingWindow(rate, buckets) => ("sliding-window", table(rate).with("buckets", number(buckets))),
            Self::SlidingLog(rate) => ("sliding-log", table(rate)),
            Self::CalendarQuota { count, period, offset: minutes } => {
                let (kind, period) = match period {
                    Period::Per(period) => ("per", Toml::text(*period)),
                    Period::Fixed(period) => ("fixed", period.written()),
                    Period::Rolling(period) => ("rolling", period.written()),
                };
                let sign = |minutes| if minutes < 0 { '-' } else { '+' };
                let offset =
                    |minutes: i32| format!("{}{:02}:{:02}", sign(minutes), minutes.abs() / 60, minutes.abs() % 60);
                let quota = Toml::table([("count", Some(Toml::Number(*count))), (kind, Some(period))]);
                ("calendar-quota", quota.with("utc-offset", minutes.map(offset).map(Toml::text)))
            }
        }
    }
}

impl Rate {
    fn written(&self) -> Toml {
        Toml::text(format!("{}{}{}", self.count, self.between, self.period.0))
    }
}

impl Duration {
    fn written(self) -> Toml {
        Toml::text(self.0)
    }
}

impl Key {
    fn written(&self) -> Toml {
        let several = |keys: &[Self]| Toml::List(keys.iter().map(Self::written).collect());
        let bits = |bits: &Option<u8>| bits.map(|bits| Toml::Number(bits.into()));
        match self {
            Self::ClientIp => Toml::text("client-ip"),
            Self::Networks(v4, v6) => {
                Toml::table([("client-ip", Some(Toml::table([("ipv4", bits(v4)), ("ipv6", bits(v6))])))])
            }
            Self::Constant => Toml::text("constant"),
            Self::Method => Toml::text("method"),
            Self::Route => Toml::text("route"),
            Self::Registered => Toml::text("api-key"),
            Self::Future => Toml::text("session"),
            Self::Header(name, false) => Toml::text(format!("header:{name}")),
            Self::Header(name, true) => Toml::table([("header", Some(Toml::text(*name)))]),
            Self::Lowercase(name) => {
                Toml::table([("header", Some(Toml::text(*name))), ("normalize", Some(Toml::text("lowercase")))])
            }
            Self::Joined(keys) => several(keys),
            Self::FirstOf(keys) => Toml::table([("first-of", Some(several(keys)))]),
        }
    }
}

impl Cost {
    fn written(self) -> Toml {
        match self {
            Self::Units(units) => Toml::Number(units),
            Self::Registered => Toml::text("tokens"),
        }
    }
}

impl Missing {
    fn written(self) -> Toml {
        match self {
            Self::Share => Toml::text("share"),
            Self::Skip => Toml::text("skip"),
            Self::Reject(status) => Toml::table([("reject", Some(Toml::Number(status.into())))]),
        }
    }
}

impl Failing {
    fn written(self) -> Toml {
        match self {
            Self::Open => Toml::text("open"),
            Self::Closed => Toml::text("closed"),
            Self::Local(processes) => Toml::text(format!("local/{processes}")),
        }
    }
}
