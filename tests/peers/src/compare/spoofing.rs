//! Row 4: clients that claim to be others, and clients that share a proxy.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum_governor::extractor::{PeerIp, SmartIp};
use rate_net::tower as rate_net_layer;
use throttle_tower::{ClientIp, TrustedProxies};
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::SmartIpKeyExtractor;

use super::apps::{self, APPS, request_from};
use super::http::Client;
use super::ideal::Quota;
use super::page::{Row, Table};
use super::servers::{self, Server, per, stick_table};
use crate::layer::answer;

pub const ROW: Row = Row {
    word: "spoofing",
    title: "Addresses: forged, rotated, and shared by honest clients",
    about: "One client with a budget of 5 sends 100 requests and tries to look like 100 clients, \
        each time with
another address: in `X-Forwarded-For`, called directly; in `X-Real-IP` and `Forwarded`, called \
directly; in
`X-Forwarded-For` in front of what a trusted proxy appends; or by sending from 100 addresses of \
its own IPv6 /64.
Exact is 5. Last, 100 honest clients behind the trusted proxy send one request each. Exact is \
100. If requests are
refused with another status than 429 or 503, the status stands beside.

The first setting of each is the one of its documentation without a proxy, the others are those \
for behind one.
Those, too, are called directly, as where no firewall prevents it.",
    run,
};

const QUOTA: Quota = Quota {
    count: 5,
    period: Duration::from_secs(300),
};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// A request: who calls the limiter, and with which headers.
struct Sent {
    peer: IpAddr,
    headers: Vec<(&'static str, String)>,
}

type Ask = Box<dyn Fn(Sent) -> u16>;

struct Setting {
    name: &'static str,
    code: &'static str,
    /// Whether it is meant for behind a proxy.
    behind: bool,
    make: fn() -> Ask,
}

const SETTINGS: [Setting; 15] = [
    setting("throttle", "`ClientIp::peer()`", false, || {
        app((APPS[0].make)(QUOTA))
    }),
    setting(
        "throttle",
        "`ClientIp::x_forwarded_for(TrustedProxies::new([\"10.0.0.0/28\"])?)`",
        true,
        || {
            let proxies = TrustedProxies::new(["10.0.0.0/28"]).expect("a valid network");
            app(apps::throttle(QUOTA, ClientIp::x_forwarded_for(proxies)))
        },
    ),
    setting(
        "tower_governor",
        "`PeerIpKeyExtractor`, its default",
        false,
        || app((APPS[1].make)(QUOTA)),
    ),
    setting("tower_governor", "`SmartIpKeyExtractor`", true, || {
        let builder = GovernorConfigBuilder::default().key_extractor(SmartIpKeyExtractor);
        app(apps::tower_governor(QUOTA, builder))
    }),
    setting("axum-governor", "`PeerIp::default()`", false, || {
        app(apps::axum_governor(QUOTA, PeerIp::default()))
    }),
    setting("axum-governor", "`SmartIp::new()`", true, || {
        app(apps::axum_governor(QUOTA, SmartIp::new()))
    }),
    setting(
        "axum-governor",
        "`SmartIp::new().with_trusted_proxies([\"10.0.0.0/28\"])`",
        true,
        || {
            let proxies = ["10.0.0.0/28".parse().expect("a valid network")];
            app(apps::axum_governor(
                QUOTA,
                SmartIp::new().with_trusted_proxies(proxies),
            ))
        },
    ),
    setting("rate-net", "`PeerIp::default()`", false, || {
        app((APPS[3].make)(QUOTA))
    }),
    setting("rate-net", "`ForwardedFor::trusting(1)`", true, || {
        app(apps::rate_net(
            QUOTA,
            rate_net_layer::ForwardedFor::trusting(1),
        ))
    }),
    setting(
        "rate-net",
        "`ForwardedFor::trusting(1).only_from(10.0.0.0, 28)`",
        true,
        || {
            let network = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0));
            app(apps::rate_net(
                QUOTA,
                rate_net_layer::ForwardedFor::trusting(1).only_from(network, 28),
            ))
        },
    ),
    setting(
        "nginx",
        "`limit_req_zone $binary_remote_addr`",
        false,
        || nginx(""),
    ),
    setting(
        "nginx",
        "the same, `set_real_ip_from` the proxy, `real_ip_header X-Forwarded-For`, \
            `real_ip_recursive on`",
        true,
        || {
            nginx(
                "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive \
            on;",
            )
        },
    ),
    setting("HAProxy", "`track-sc0 src`", false, || haproxy("src")),
    setting("HAProxy", "`track-sc0 src,ipmask(32,64)`", false, || {
        haproxy("src,ipmask(32,64)")
    }),
    setting(
        "HAProxy",
        "`track-sc0 hdr_ip(x-forwarded-for,-1)`",
        true,
        || haproxy("hdr_ip(x-forwarded-for,-1)"),
    ),
];

const fn setting(
    name: &'static str,
    code: &'static str,
    behind: bool,
    make: fn() -> Ask,
) -> Setting {
    Setting {
        name,
        code,
        behind,
        make,
    }
}

/// What a client sends in the n-th request, of a setting without or for behind a proxy.
type Attack = fn(u8, bool) -> Sent;

const ATTACKS: [(&str, Attack); 5] = [
    ("forged `X-Forwarded-For`, direct: 5", |n, _| {
        direct(vec![("x-forwarded-for", forged(n))])
    }),
    ("forged `X-Real-IP`, `Forwarded`, direct: 5", |n, _| {
        direct(vec![
            ("x-real-ip", forged(n)),
            ("forwarded", format!("for={}", forged(n))),
        ])
    }),
    ("forged in front, through the proxy: 5", |n, _| {
        through_the_proxy(format!("{}, {CLIENT}", forged(n)))
    }),
    ("one IPv6 /64: 5", |n, behind| {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, u16::from(n) + 1);
        if behind {
            through_the_proxy(address.to_string())
        } else {
            Sent {
                peer: address.into(),
                headers: Vec::new(),
            }
        }
    }),
    ("honest, through the proxy: 100", |n, _| {
        through_the_proxy(forged(n))
    }),
];

fn forged(n: u8) -> String {
    Ipv4Addr::new(198, 51, 100, n).to_string()
}

fn direct(headers: Vec<(&'static str, String)>) -> Sent {
    Sent {
        peer: CLIENT,
        headers,
    }
}

fn through_the_proxy(forwarded_for: String) -> Sent {
    Sent {
        peer: PROXY,
        headers: vec![("x-forwarded-for", forwarded_for)],
    }
}

fn run() -> String {
    let mut table =
        Table::new(&[&["limiter", "setting"][..], &ATTACKS.map(|(name, _)| name)].concat());
    for setting in &SETTINGS {
        if matches!(setting.name, "nginx" | "HAProxy") && !servers::installed() {
            continue;
        }
        let cells = ATTACKS.map(|(_, attack)| {
            let ask = (setting.make)();
            let statuses: Vec<u16> = (0..100).map(|n| ask(attack(n, setting.behind))).collect();
            let admitted = statuses.iter().filter(|status| **status == 200).count();
            let other = statuses
                .iter()
                .find(|status| !matches!(**status, 200 | 429 | 503));
            other.map_or(format!("{admitted}"), |status| {
                format!("{admitted} ({status})")
            })
        });
        table.row(
            &[
                &[setting.name.to_owned(), setting.code.to_owned()][..],
                &cells,
            ]
            .concat(),
        );
    }
    table.text()
}

fn app(app: Router) -> Ask {
    Box::new(move |sent| {
        let mut request = request_from(sent.peer);
        for (name, value) in sent.headers {
            request.headers_mut().insert(
                name,
                HeaderValue::try_from(value).expect(
                    "a valid \
                header",
                ),
            );
        }
        answer(app.clone(), request).status().as_u16()
    })
}

fn nginx(real_ip: &str) -> Ask {
    let server = |real_ip: &str| {
        let zone = format!(
            "limit_req_zone $binary_remote_addr zone=one:1m rate={}; {real_ip}",
            per(QUOTA)
        );
        Server::nginx(&zone, "limit_req zone=one burst=4 nodelay;")
    };
    ask_server(
        server(real_ip),
        server(
            "set_real_ip_from 127.0.0.1; real_ip_header \
        proxy_protocol;",
        ),
    )
}

fn haproxy(key: &str) -> Ask {
    let table = stick_table(QUOTA, key);
    ask_server(
        Server::haproxy(&table),
        Server::haproxy(&format!("# PROXY; {table}")),
    )
}

/// Asks a server from addresses of this machine, and for other peers its twin that speaks the PROXY
/// protocol.
fn ask_server(server: Server, twin: Server) -> Ask {
    let client = |from| RefCell::new(Client::from(server.port, from));
    // The proxy is trusted, and the other address is not.
    let (proxy, direct) = (
        client(Ipv4Addr::LOCALHOST),
        client(Ipv4Addr::new(127, 0, 0, 2)),
    );
    Box::new(move |sent| {
        let _until_then = (&server, &twin);
        let client = match sent.peer {
            PROXY => &proxy,
            CLIENT => &direct,
            other => return Client::new(twin.port).get_on_behalf_of(other).status,
        };
        client.borrow_mut().get(&sent.headers).status
    })
}
