//! Where the client's address comes from: `[client-ip]`.

use throttle_core::{ConfigError, canonical_ip};

use super::outline::Form;
use super::reader::{Field, Section, Word};
use crate::client_ip::{ClientIp, IpNet, MAX_HOPS, TrustedProxies};

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

/// Reads the section; the peer's address if there is none. After a problem the address is the
/// peer's, too: it is not used.
pub(super) fn read(root: &Section<'_>) -> ClientIp {
    let definition = (
        "client-ip",
        "Where the client's address comes from. Without the section it is the peer's.",
    );
    let section = root
        .field("client-ip", "")
        .and_then(|field| field.section(definition, "it must be a table: [client-ip]"));
    section
        .and_then(read_section)
        .unwrap_or_else(ClientIp::peer)
}

fn read_section(section: Section<'_>) -> Option<ClientIp> {
    let about = "The peer, a header that lists the hops, a platform, or a header that holds the \
        address alone.";
    let source = section.required("source", about, SOURCES);
    let settings = Settings {
        trusted: section.field("trusted", "The addresses and networks of your proxies."),
        trust_everyone: section.field(
            "trust-everyone",
            "Admits networks as broad as 0.0.0.0/0: only where a firewall admits nothing but \
                proxies.",
        ),
        hops: section.field(
            "hops",
            "Instead of their addresses, how many proxies append to the \
            header.",
        ),
        section: &section,
    };
    settings
        .hops
        .iter()
        .for_each(|hops| hops.note(Form::Number(1, u64::from(MAX_HOPS))));
    let client = source.and_then(|source| source.any_form(|source| settings.client(source)));
    let nat64 = section.field("nat64", "The prefix of your network's own NAT64.");
    let client = match nat64 {
        Some(prefix) => translated(client, &prefix),
        None => client,
    };
    section.finish();
    client
}

fn translated(client: Option<ClientIp>, prefix: &Field<'_>) -> Option<ClientIp> {
    let text = prefix.expect_text(
        "nat64",
        "it must be a network as text, as in \"2001:db8:64::/96\"",
    );
    let network = network(prefix, text?)?;
    client?
        .nat64(network)
        .map_err(|error| refuse(prefix, &error))
        .ok()
}

struct Settings<'s, 'a> {
    section: &'s Section<'a>,
    trusted: Option<Field<'a>>,
    trust_everyone: Option<Field<'a>>,
    hops: Option<Field<'a>>,
}

impl Settings<'_, '_> {
    fn client(&self, source: &Field<'_>) -> Option<ClientIp> {
        if source.is_table() {
            return self.header(source);
        }
        if let Some(client) = source.word(&ALONE) {
            return self.alone(source, client());
        }
        let (trusting, counting) = source.expect_word(&LISTS, SOURCES)?;
        self.list(trusting, counting)
    }

    /// A source that needs nothing else.
    fn alone(&self, source: &Field<'_>, client: ClientIp) -> Option<ClientIp> {
        for other in [&self.trusted, &self.trust_everyone, &self.hops]
            .into_iter()
            .flatten()
        {
            let (name, source) = (other.name(), source.shown());
            other.problem_as(format_args!(
                "{name} has no meaning with the source {source}: remove it"
            ));
        }
        Some(client)
    }

    /// A header that lists the hops.
    fn list(
        &self,
        trusting: fn(TrustedProxies) -> ClientIp,
        counting: fn(u8) -> Result<ClientIp, ConfigError>,
    ) -> Option<ClientIp> {
        match (&self.trusted, &self.hops) {
            (Some(trusted), None) => self.proxies(trusted).map(trusting),
            (None, Some(hops)) => {
                if let Some(everyone) = &self.trust_everyone {
                    everyone
                        .problem_as("client-ip.trust-everyone has no meaning with hops: remove it");
                }
                counting(u8::try_from(hops.number(1, u64::from(MAX_HOPS))?).ok()?).ok()
            }
            (Some(_), Some(hops)) => {
                hops.problem_as(
                    "there are both trusted and hops: keep trusted; hops is for proxies whose \
                        addresses are not known",
                );
                None
            }
            (None, None) => {
                self.section.problem(
                    "client-ip.trusted is missing: list the addresses of your proxies, as in \
                        trusted = \
                     [\"10.0.0.0/28\"]; where they are not known, say how many there are, as in \
                     hops = 1",
                );
                None
            }
        }
    }

    /// A header that holds the address alone.
    fn header(&self, source: &Field<'_>) -> Option<ClientIp> {
        let table = source.section(
            ("address-header", "A header that holds the address alone."),
            SOURCES,
        )?;
        let about = "Its name, as in \"cf-connecting-ip\".";
        let name = table.required(
            "header",
            about,
            "write its name, as in \"cf-connecting-ip\"",
        );
        let rule = "it must be the name of a header, as in \"cf-connecting-ip\"";
        let text = name
            .as_ref()
            .and_then(|name| name.expect_text("address-header-name", rule));
        if self.trusted.is_none() {
            let remedy = "list the addresses of the proxies that write the header";
            self.section
                .problem(format_args!("client-ip.trusted is missing: {remedy}"));
        }
        if let Some(hops) = &self.hops {
            hops.problem_as(
                "client-ip.hops has no meaning with a header that holds one address: remove it",
            );
        }
        let trusted = self
            .trusted
            .as_ref()
            .and_then(|trusted| self.proxies(trusted));
        table.finish();
        let (name, text, trusted) = (name?, text?, trusted?);
        ClientIp::header(text, trusted)
            .map_err(|error| refuse(&name, &error))
            .ok()
    }

    fn proxies(&self, trusted: &Field<'_>) -> Option<TrustedProxies> {
        let any_width = self
            .trust_everyone
            .as_ref()
            .map_or(Some(false), Field::boolean);
        let rule = "list the addresses or networks of your proxies, as in [\"10.0.0.0/28\"]";
        let is_wide = any_width.unwrap_or(true);
        let nets: Vec<_> = trusted
            .distinct_list(rule)?
            .iter()
            .map(|net| trusted_network(net, is_wide))
            .collect();
        any_width?;
        let nets: Vec<IpNet> = nets.into_iter().collect::<Option<_>>()?;
        TrustedProxies::danger_any_width(nets)
            .map_err(|error| refuse(trusted, &error))
            .ok()
    }
}

fn refuse(field: &Field<'_>, error: &ConfigError) {
    field.problem_as(format_args!("{}: {error}", field.name()));
}

fn trusted_network(field: &Field<'_>, any_width: bool) -> Option<IpNet> {
    let text = field.expect_text(
        "network",
        "it must be an address or a network as text, as in \"10.0.0.0/28\"",
    )?;
    let net = network(field, text)?;
    if !any_width && TrustedProxies::new([net]).is_err() {
        field.problem(
            "it trusts (nearly) every machine, so any client could name any address; list your \
                proxies' own networks, \
             or set trust-everyone = true if a firewall admits nothing but them",
        );
        return None;
    }
    Some(net)
}

fn network(field: &Field<'_>, text: &str) -> Option<IpNet> {
    let net: IpNet = text.parse().map_err(|error| refuse(field, &error)).ok()?;
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
    use crate::rules::reader::read_text;

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
            assert_eq!(
                read_text(&format!("[client-ip]\n{text}"), read),
                (expected, String::new()),
                "{text}"
            );
        }
        assert_eq!(read_text("", read), (ClientIp::peer(), String::new()));
    }
}
