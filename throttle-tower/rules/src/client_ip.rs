//! Where the client's address comes from: `[client-ip]`.

use throttle_core::{ConfigError, canonical_ip};

use super::file_value::FileValue;
use super::form::*;
use throttle_tower::client_ip::{ClientIp, IpNet, MAX_HOPS, TrustedProxies};

/// The sources that need nothing else.
pub(super) const ALONE: [Word<fn() -> ClientIp>; 3] = [
    ("peer", ClientIp::peer),
    ("fly-io", ClientIp::fly_io),
    (
        "google-cloud-load-balancer",
        ClientIp::google_cloud_load_balancer,
    ),
];

/// The headers that list the hops.
pub(super) const LISTS: [Word<List>; 2] = [
    (
        "x-forwarded-for",
        (ClientIp::x_forwarded_for, ClientIp::x_forwarded_for_hops),
    ),
    ("forwarded", (ClientIp::forwarded, ClientIp::forwarded_hops)),
];

/// The two ways to make such a source: from the addresses of trusted proxies, or from their number.
type List = (
    fn(TrustedProxies) -> ClientIp,
    fn(u8) -> Result<ClientIp, ConfigError>,
);

const SOURCES: &str = "write \"peer\", \"x-forwarded-for\", \"forwarded\", \"fly-io\", \
                       \"google-cloud-load-balancer\" or { header = \"cf-connecting-ip\" }";

pub(super) const CLIENT_IP: ValueForm = Table(
    "client-ip",
    "Where the client's address comes from. Without the section it is the peer's.",
    &[
        One(
            "source",
            "The peer, a header that lists the hops, a platform, or a header that holds the \
                 address alone.",
            Required(SOURCES),
            Any(
                &[
                    Words(|| words(&ALONE), SOURCES),
                    Words(|| words(&LISTS), SOURCES),
                    ADDRESS_HEADER,
                ],
                SOURCES,
            ),
        ),
        One(
            "trusted",
            "The addresses and networks of your proxies.",
            Optional,
            Distinct(
                &Text(
                    "network",
                    "it must be an address or a network as text, as in \"10.0.0.0/28\"",
                ),
                "list the addresses or networks of your proxies, as in [\"10.0.0.0/28\"]",
            ),
        ),
        One(
            "trust-everyone",
            "Admits networks as broad as 0.0.0.0/0: only where a firewall admits nothing but \
                 proxies.",
            Optional,
            Flag,
        ),
        One(
            "hops",
            "Instead of their addresses, how many proxies append to the header.",
            Optional,
            Number(1, MAX_HOPS as u64),
        ),
        One(
            "nat64",
            "The prefix of your network's own NAT64.",
            Optional,
            Text(
                "nat64",
                "it must be a network as text, as in \"2001:db8:64::/96\"",
            ),
        ),
    ],
    "it must be a table: [client-ip]",
);

const ADDRESS_HEADER: ValueForm = Table(
    "address-header",
    "A header that holds the address alone.",
    &[One(
        "header",
        "Its name, as in \"cf-connecting-ip\".",
        Required("write its name, as in \"cf-connecting-ip\""),
        Text(
            "address-header-name",
            "it must be the name of a header, as in \"cf-connecting-ip\"",
        ),
    )],
    SOURCES,
);

pub(super) fn read(section: &FileValue<'_>) -> Option<ClientIp> {
    let client = source(section);
    let Some(prefix) = section.get("nat64") else {
        return client;
    };
    let network = network(prefix)?;
    client?
        .nat64(network)
        .map_err(|error| prefix.config_problem(&error))
        .ok()
}

fn source(section: &FileValue<'_>) -> Option<ClientIp> {
    let source = section.get("source")?;
    let trusted = section.get("trusted");
    let hops = section.get("hops");
    let everyone = section.get("trust-everyone");
    if let Some(client) = source.word(&ALONE) {
        for other in [trusted, everyone, hops].into_iter().flatten() {
            let (name, source) = (&other.path, source.shown());
            other.problem_as(format_args!(
                "{name} has no meaning with the source {source}: remove it"
            ));
        }
        return Some(client());
    }
    if let Some((trusting, counting)) = source.word(&LISTS) {
        return match (trusted, hops) {
            (Some(trusted), None) => proxies(trusted, everyone).map(trusting),
            (None, Some(hops)) => {
                if let Some(everyone) = everyone {
                    everyone
                        .problem_as("client-ip.trust-everyone has no meaning with hops: remove it");
                }
                counting(hops.number()? as u8).ok()
            }
            (Some(_), Some(hops)) => {
                hops.problem_as(
                    "there are both trusted and hops: keep trusted; hops is for proxies whose \
                     addresses are not known",
                );
                None
            }
            (None, None) => {
                section.problem_as(
                    "client-ip.trusted is missing: list the addresses of your proxies, as in \
                     trusted = [\"10.0.0.0/28\"]; where they are not known, say how many there \
                     are, as in hops = 1",
                );
                None
            }
        };
    }
    if !source.value.is_table() {
        return None;
    }
    if trusted.is_none() {
        section.problem_as(
            "client-ip.trusted is missing: list the addresses of the proxies that write the header",
        );
    }
    if let Some(hops) = hops {
        hops.problem_as(
            "client-ip.hops has no meaning with a header that holds one address: remove it",
        );
    }
    let trusted = proxies(trusted?, everyone)?;
    let name = source.get("header")?;
    ClientIp::header(name.text()?, trusted)
        .map_err(|error| name.config_problem(&error))
        .ok()
}

fn proxies(trusted: &FileValue<'_>, everyone: Option<&FileValue<'_>>) -> Option<TrustedProxies> {
    let any_width = everyone.is_some_and(|everyone| everyone.flag() != Some(false));
    let nets: Vec<_> = trusted
        .children
        .iter()
        .map(|net| trusted_network(net, any_width))
        .collect();
    let nets: Option<Vec<IpNet>> = nets.into_iter().collect();
    TrustedProxies::danger_any_width(nets.filter(|_| trusted.fits)?)
        .map_err(|error| trusted.config_problem(&error))
        .ok()
}

fn trusted_network(field: &FileValue<'_>, any_width: bool) -> Option<IpNet> {
    let net = network(field)?;
    if !any_width && TrustedProxies::new([net]).is_err() {
        field.problem(
            "it trusts (nearly) every machine, so any client could name any address; list your \
             proxies' own networks, or set trust-everyone = true if a firewall admits nothing but \
             them",
        );
        return None;
    }
    Some(net)
}

fn network(field: &FileValue<'_>) -> Option<IpNet> {
    let text = field.text()?;
    let net: IpNet = text
        .parse()
        .map_err(|error| field.config_problem(&error))
        .ok()?;
    let address = text
        .split_once('/')
        .and_then(|(address, _)| address.parse::<std::net::IpAddr>().ok());
    if address.is_some_and(|address| canonical_ip(address) != net.network()) {
        field.problem(format_args!(
            "it has bits of a host; write the network, {net}, or the one address"
        ));
        return None;
    }
    Some(net)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, Rules};

    fn read(text: &str) -> Result<ClientIp, String> {
        let text = format!("version = 1\nlimit = []\n{text}");
        let rules = Rules::from_str("f", &text, Registry::new());
        rules
            .map(|rules| rules.client_ip().clone())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn sections_equal_the_built_sources() {
        let proxies = || TrustedProxies::new(["10.0.0.0/28", "2001:db8::7"]).unwrap();
        let trusted = "trusted = [\"10.0.0.0/28\", \"2001:db8::7\"]";
        let everyone = TrustedProxies::danger_any_width(["0.0.0.0/0"]).unwrap();
        for (text, expected) in [
            ("source = \"peer\"".to_owned(), ClientIp::peer()),
            (
                format!("source = \"x-forwarded-for\"\n{trusted}"),
                ClientIp::x_forwarded_for(proxies()),
            ),
            (
                "source = \"x-forwarded-for\"\nhops = 2".to_owned(),
                ClientIp::x_forwarded_for_hops(2).unwrap(),
            ),
            (
                format!("source = \"forwarded\"\n{trusted}"),
                ClientIp::forwarded(proxies()),
            ),
            (
                "source = \"forwarded\"\nhops = 20".to_owned(),
                ClientIp::forwarded_hops(20).unwrap(),
            ),
            ("source = \"fly-io\"".to_owned(), ClientIp::fly_io()),
            (
                "source = \"google-cloud-load-balancer\"".to_owned(),
                ClientIp::google_cloud_load_balancer(),
            ),
            (
                format!("source = {{ header = \"cf-connecting-ip\" }}\n{trusted}"),
                ClientIp::header("cf-connecting-ip", proxies()).unwrap(),
            ),
            (
                "source = \"x-forwarded-for\"\ntrusted = [\"0.0.0.0/0\"]\ntrust-everyone = true"
                    .to_owned(),
                ClientIp::x_forwarded_for(everyone),
            ),
            (
                "source = \"peer\"\nnat64 = \"2001:db8:64::/96\"".to_owned(),
                ClientIp::peer().nat64("2001:db8:64::/96").unwrap(),
            ),
        ] {
            let source = read(&format!("[client-ip]\n{text}"));
            assert_eq!(source, Ok(expected), "{text}");
        }
        assert_eq!(read(""), Ok(ClientIp::peer()));
    }
}
