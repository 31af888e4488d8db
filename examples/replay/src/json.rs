//! Logs of JSON lines.

use std::cell::Cell;

use serde_json::Value;

use crate::args::{AtIs, Format, LogArguments, Unit};
use crate::entry::{Draft, Entry, SECOND};
use crate::flaw::Flaw;
use crate::time;

/// The names that a server has for its fields, with dots between the names of nested ones. Of
/// several, the first that is there is read.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    at: &'static [&'static str],
    at_is: AtIs,
    duration: &'static [&'static str],
    unit: Unit,
    ip: &'static [&'static str],
    method: &'static [&'static str],
    path: &'static [&'static str],
    host: &'static [&'static str],
    status: &'static [&'static str],
    agent: &'static [&'static str],
    referer: &'static [&'static str],
}

impl Preset {
    /// That of a format, if it is one of JSON lines.
    pub const fn of(format: Format) -> Option<Self> {
        match format {
            Format::Common | Format::Combined => None,
            Format::Nginx | Format::Json => Some(Self::NGINX),
            Format::Caddy => Some(Self::CADDY),
            Format::Envoy => Some(Self::ENVOY),
            Format::Traefik => Some(Self::TRAEFIK),
        }
    }

    /// A `log_format … escape=json` whose fields have the names of nginx's variables.
    const NGINX: Self = Self {
        at: &["msec", "time_iso8601"],
        at_is: AtIs::End,
        duration: &["request_time"],
        unit: Unit::S,
        ip: &["remote_addr"],
        method: &["request_method"],
        path: &["request_uri", "uri"],
        host: &["http_host", "host"],
        status: &["status"],
        agent: &["http_user_agent"],
        referer: &["http_referer"],
    };
    const CADDY: Self = Self {
        at: &["ts"],
        at_is: AtIs::End,
        duration: &["duration"],
        unit: Unit::S,
        ip: &[
            "request.client_ip",
            "request.remote_ip",
            "request.remote_addr",
        ],
        method: &["request.method"],
        path: &["request.uri"],
        host: &["request.host"],
        status: &["status"],
        agent: &["request.headers.User-Agent"],
        referer: &["request.headers.Referer"],
    };
    /// The names of Envoy's text format, as Istio has them in JSON.
    const ENVOY: Self = Self {
        at: &["start_time"],
        at_is: AtIs::Start,
        duration: &["duration"],
        unit: Unit::Ms,
        ip: &["downstream_remote_address"],
        method: &["method"],
        path: &["x-envoy-origin-path", "path"],
        host: &["authority", ":authority"],
        status: &["response_code"],
        agent: &["user_agent", "user-agent"],
        referer: &["referer"],
    };
    const TRAEFIK: Self = Self {
        at: &["StartUTC", "StartLocal"],
        at_is: AtIs::Start,
        duration: &["Duration"],
        unit: Unit::Ns,
        ip: &["ClientHost", "ClientAddr"],
        method: &["RequestMethod"],
        path: &["RequestPath"],
        host: &["RequestHost", "RequestAddr"],
        status: &["DownstreamStatus"],
        agent: &["request_User-Agent"],
        referer: &["request_Referer"],
    };
}

/// Reads lines by a preset, and by what is said instead of it.
#[derive(Debug)]
pub struct Json {
    at: FieldNames,
    at_is: AtIs,
    duration: FieldNames,
    unit: Unit,
    ip: FieldNames,
    method: FieldNames,
    path: FieldNames,
    host: FieldNames,
    status: FieldNames,
    agent: FieldNames,
    referer: FieldNames,
    route: FieldNames,
    fields: Vec<FieldNames>,
}

impl Json {
    pub fn new(preset: &Preset, arguments: &LogArguments) -> Self {
        let names = |own: &Option<String>, preset: &[&str]| match own {
            Some(own) => FieldNames {
                names: vec![own.trim_start_matches('.').to_owned()],
                is_own: true,
                is_found: Cell::default(),
            },
            None => FieldNames {
                names: preset.iter().map(|name| (*name).to_owned()).collect(),
                is_own: false,
                is_found: Cell::default(),
            },
        };
        let LogArguments {
            at,
            duration,
            ip,
            method,
            path,
            host,
            status,
            route,
            fields,
            ..
        } = arguments;
        Self {
            at: names(at, preset.at),
            at_is: arguments.at_is.unwrap_or(preset.at_is),
            duration: names(duration, preset.duration),
            unit: arguments.duration_in.unwrap_or(preset.unit),
            ip: names(ip, preset.ip),
            method: names(method, preset.method),
            path: names(path, preset.path),
            host: names(host, preset.host),
            status: names(status, preset.status),
            agent: names(&None, preset.agent),
            referer: names(&None, preset.referer),
            route: names(route, &[]),
            fields: fields
                .iter()
                .map(|(_, field)| names(&Some(field.clone()), &[]))
                .collect(),
        }
    }

    /// A field that an option names and that no line of this format has had.
    pub fn missing(&self) -> Option<&str> {
        if !self.at.is_found.get() {
            return None;
        }
        let optional = [&self.duration, &self.ip, &self.host, &self.route];
        let mut named = optional.into_iter().chain(&self.fields);
        let missing = named.find(|field| field.is_own && !field.is_found.get())?;
        missing.names.first().map(String::as_str)
    }

    pub fn read(&self, line: &[u8]) -> Result<Entry, Flaw> {
        if line.trim_ascii().is_empty() {
            return Err("the line is empty".into());
        }
        // nginx writes what a client has sent as it is, in UTF-8 or not.
        let line = String::from_utf8_lossy(line);
        let value: Value = serde_json::from_str(&line).map_err(|_| "the line is no JSON")?;
        let text = |names: &FieldNames| names.text(&value);
        let at = text(&self.at).ok_or("there is no field with the time; see --at")?;
        let (at, is_precise) =
            time::any(&at).ok_or("the time is neither RFC 3339 nor seconds since 1970")?;
        let status = text(&self.status).ok_or("there is no field with the status; see --status")?;
        let rejected = |reason| Flaw::of_request(reason, status.as_bytes());
        let method = text(&self.method)
            .ok_or_else(|| rejected("there is no field with the method; see --method"))?;
        let path = text(&self.path)
            .ok_or_else(|| rejected("there is no field with the path; see --path"))?;
        let duration = text(&self.duration).map_or(Some(0), |text| self.duration(&text));
        let ip = text(&self.ip).unwrap_or_default();
        let (host, agent, referer, route) = (
            text(&self.host),
            text(&self.agent),
            text(&self.referer),
            text(&self.route),
        );
        let bytes = |text: &'_ Option<String>| text.as_ref().map(|text| text.clone().into_bytes());
        let (host, agent, referer) = (bytes(&host), bytes(&agent), bytes(&referer));
        Entry::new(Draft {
            at,
            is_start: self.at_is == AtIs::Start,
            is_precise,
            duration: duration.ok_or("the duration is no number; see --duration-in")?,
            address: &ip,
            method: method.as_bytes(),
            target: path.as_bytes(),
            host: host.as_deref(),
            status: status.as_bytes(),
            agent: agent.as_deref(),
            referer: referer.as_deref(),
            route: route.as_deref(),
            fields: self.fields.iter().map(text).collect(),
        })
    }

    /// In microseconds. Those of a nanosecond are cut off.
    fn duration(&self, text: &str) -> Option<i64> {
        // As JSON has what is less than 0.00001.
        if text.contains("e-") {
            return Some(0);
        }
        let unit = match self.unit {
            Unit::S => SECOND,
            Unit::Ms => 1_000,
            Unit::Us => 1,
            Unit::Ns => return Some(time::decimal(text, 1)?.0 / 1_000),
        };
        Some(time::decimal(text, unit)?.0)
    }
}

#[derive(Debug)]
struct FieldNames {
    names: Vec<String>,
    /// An option says so, and not the format.
    is_own: bool,
    is_found: Cell<bool>,
}

impl FieldNames {
    /// The first field that is there, as text; of a list, its first element. A dash and an empty
    /// text stand for none.
    fn text(&self, value: &Value) -> Option<String> {
        let found = self.names.iter().find_map(|name| field(value, name));
        let found =
            found.map(|value| value.as_array().map_or(Some(value), |list| list.first()))??;
        let text = match found {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(is) => is.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        self.is_found.set(true);
        Some(text).filter(|text| !text.is_empty() && text != "-")
    }
}

/// A field by its whole name, or else by its parts.
fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let nested = || {
        name.split_once('.')
            .and_then(|(first, rest)| field(value.get(first)?, rest))
    };
    value
        .get(name)
        .or_else(nested)
        .filter(|found| !found.is_null())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    fn json(options: &[&str]) -> Json {
        let arguments = ["replay", "replay", "rules.toml", "access.log"]
            .iter()
            .chain(options);
        let Command::Replay { log, .. } = Arguments::parse_from(arguments).command else {
            unreachable!()
        };
        Json::new(&Preset::of(log.format).unwrap(), &log)
    }

    #[test]
    fn servers_fields_are_read() {
        let nginx = r#"{"msec":"1700000000.250","time_iso8601":"2023-11-14T22:13:20+00:00","remote_addr":"203.0.113.9",
            "request_method":"GET","request_uri":"/a?b","status":"200","request_time":"0.150","http_host":"h","key":7}"#;
        let caddy = r#"{"ts":1700000000.25,"duration":0.15,"status":200,"request":{"remote_ip":"203.0.113.9",
            "client_ip":"203.0.113.9","method":"GET","uri":"/a?b","host":"h","headers":{"User-Agent":["x"]}},"key":7}"#;
        let envoy = r#"{"start_time":"2023-11-14T22:13:20.100Z","duration":150,"response_code":200,"method":"GET",
            "downstream_remote_address":"203.0.113.9:4000","path":"/a?b","authority":"h","user_agent":"-","key":7}"#;
        let traefik = r#"{"StartUTC":"2023-11-14T22:13:20.1Z","Duration":150000000,"ClientHost":"203.0.113.9",
            "RequestMethod":"GET","RequestPath":"/a?b","RequestHost":"h","DownstreamStatus":200,"key":7}"#;
        for (format, line) in [
            ("nginx", nginx),
            ("caddy", caddy),
            ("envoy", envoy),
            ("traefik", traefik),
        ] {
            let entry = json(&["--format", format, "--field", "api-key=.key"])
                .read(line.as_bytes())
                .unwrap();
            assert_eq!(
                (entry.start, entry.is_precise),
                (1_700_000_000_100_000, true),
                "{format}"
            );
            assert_eq!(
                entry.address.unwrap().to_string(),
                "203.0.113.9",
                "{format}"
            );
            assert_eq!(
                (entry.method.as_str(), entry.uri.to_string().as_str()),
                ("GET", "/a?b"),
                "{format}"
            );
            assert_eq!(
                (entry.status.as_u16(), entry.host.unwrap().to_str().unwrap()),
                (200, "h"),
                "{format}"
            );
            assert_eq!(entry.fields[0].as_deref(), Some("7"), "{format}");
        }
    }

    #[test]
    fn option_names_a_field_instead_of_the_format() {
        let json = json(&[
            "--format=json",
            "--at=.t",
            "--at-is=start",
            "--ip=.a.b",
            "--method=m",
            "--path=p",
            "--status=s",
        ]);
        let line = r#"{"t":1700000000,"a":{"b":"::1"},"m":"PUT","p":"/","s":204,"request_time":5}"#;
        let entry = json.read(line.as_bytes()).unwrap();
        assert_eq!(
            (entry.start, entry.is_precise),
            (1_700_000_000_000_000, false)
        );
        assert_eq!(
            (entry.address.unwrap().to_string(), entry.status.as_u16()),
            ("::1".to_owned(), 204)
        );
    }

    #[test]
    fn bytes_that_are_not_utf_8_do_not_hide_a_request() {
        let line =
            br#"{"msec":1,"request_method":"GET","uri":"/","status":200,"http_user_agent":"?"}"#;
        let line = line.map(|byte| if byte == b'?' { 0xff } else { byte });
        assert!(json(&["--format=nginx"]).read(&line).is_ok());
    }

    #[test]
    fn duration_that_is_no_number_is_refused() {
        let json = json(&["--format=caddy"]);
        for (duration, is_read) in [("0.25", true), ("1e-7", true), ("\"2ms\"", false)] {
            let line = format!(
                r#"{{"ts":1,"duration":{duration},"status":200,"request":{{"method":"GET","uri":"/"}}}}"#
            );
            assert_eq!(json.read(line.as_bytes()).is_ok(), is_read, "{duration}");
        }
    }

    #[test]
    fn hostile_lines_are_refused_with_a_reason() {
        let json = json(&["--format=nginx"]);
        for (line, reason) in [
            ("", "the line is empty"),
            ("{", "the line is no JSON"),
            ("[]", "there is no field with the time; see --at"),
            ("7", "there is no field with the time; see --at"),
            (
                r#"{"msec":{}}"#,
                "there is no field with the time; see --at",
            ),
            (
                r#"{"msec":-1}"#,
                "the time is neither RFC 3339 nor seconds since 1970",
            ),
            (
                r#"{"msec":1e300}"#,
                "the time is neither RFC 3339 nor seconds since 1970",
            ),
            (
                r#"{"msec":1,"request_method":"\u0000","uri":"/","status":200}"#,
                "the method is none",
            ),
            (
                r#"{"msec":1,"request_method":"GET","uri":"/\u0000","status":200}"#,
                "the target of the request is no URI",
            ),
            (
                r#"{"msec":1,"request_method":"GET","uri":"/","status":"0"}"#,
                "the status is none",
            ),
        ] {
            assert_eq!(
                json.read(line.as_bytes()).unwrap_err().reason,
                reason,
                "{line}"
            );
        }
        assert!(json.read(&vec![b'['; 100_000]).is_err() && json.read(&[0xff; 9]).is_err());
    }
}
