//! Translates the client crate's types to this crate's.

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ErrorKind, RedisError, Value};

use super::{Fault, FaultKind, Reply};

/// After this time without traffic the kernel asks the peer for signs of life, once in each
/// `PROBE`.
const IDLE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);

/// Small requests must leave at once: waiting for the acknowledgement of the previous one costs a
/// round trip. The kernel also gives up a peer that has gone silent, with data under way or
/// without.
pub(super) fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(PROBE);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(5));
    settings
}

pub(super) fn reply(value: Value) -> Result<Reply, Fault> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::SimpleString(text) => Reply::Status(text),
        Value::Okay => Reply::Status("OK".to_owned()),
        Value::Array(values) | Value::Set(values) => {
            Reply::Array(values.into_iter().map(reply).collect::<Result<_, _>>()?)
        }
        // In RESP2 it is a list of keys and values.
        Value::Map(pairs) => {
            let flat = pairs.into_iter().flat_map(|(key, value)| [key, value]);
            Reply::Array(flat.map(reply).collect::<Result<_, _>>()?)
        }
        Value::ServerError(error) => return Err(fault(&error.into())),
        _ => {
            return Err(Fault::new(
                FaultKind::Other,
                "the server answered with something unexpected",
            ));
        }
    })
}

pub(super) fn fault(error: &RedisError) -> Fault {
    let kind = match error.kind() {
        ErrorKind::AuthenticationFailed => FaultKind::Refused,
        ErrorKind::InvalidClientConfig
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::Client => FaultKind::NotSent,
        ErrorKind::Io if error.is_connection_refusal() => FaultKind::NotSent,
        ErrorKind::Io => FaultKind::Lost,
        _ => kind_of(
            error.code().unwrap_or_default(),
            error.detail().unwrap_or_default(),
        ),
    };
    let message = match (error.kind(), error.code()) {
        (ErrorKind::Io, _) => error.to_string(),
        (_, Some(code)) => said(code, error.detail().unwrap_or_default()),
        _ => error.category().to_owned(),
    };
    Fault::new(kind, message)
}

/// What the server said, up to the point where it quotes the command: a word of the command may be
/// a key or a password. Every key has a brace in its name. Not every server names the command that
/// it denies to a script.
fn said(code: &str, detail: &str) -> String {
    let shown = detail.split(", with args").next().unwrap_or_default();
    let shown = shown.split('{').next().unwrap_or_default();
    let mut said = format!("the server answered {code} {shown}");
    if DENIALS.iter().any(|words| detail.contains(words)) {
        said += " (the scripts run GET, GETRANGE, SET, TIME and DEL)";
    }
    said.trim_end().to_owned()
}

/// Words of the errors by which a server denies a command to a script.
const DENIALS: [&str; 2] = ["The user executing the script", "ACL failure in script"];

/// Words of the errors by which a server refuses a command, or a script one of its commands.
const REFUSALS: [&str; 6] = [
    "unknown command",
    "unsupported command",
    "The user executing the script",
    "ACL failure in script",
    "called from script",
    "called from Lua script",
];

fn refusal(detail: &str) -> Option<&'static str> {
    REFUSALS.into_iter().find(|words| detail.contains(words))
}

/// What the error of a server says about a command.
fn kind_of(code: &str, detail: &str) -> FaultKind {
    // A slot and its server.
    let redirection = || address(detail.split_ascii_whitespace().nth(1)?);
    match code {
        "NOSCRIPT" => FaultKind::NoScript,
        "MOVED" => FaultKind::Moved(redirection()),
        "ASK" => FaultKind::Ask(redirection()),
        "TRYAGAIN" => FaultKind::SlotNotNow,
        "CLUSTERDOWN" if detail.contains("slot") => FaultKind::SlotNotNow,
        "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" | "BUSY" => FaultKind::NotNow,
        "READONLY" => FaultKind::ReadOnly,
        "OOM" => FaultKind::OutOfMemory,
        "NOPERM" | "NOREPLICAS" | "MISCONF" | "WRONGPASS" => FaultKind::Refused,
        // The connection is of no use to any command.
        "NOAUTH" => FaultKind::NotSent,
        _ if refusal(detail).is_some() => FaultKind::Refused,
        "@user_script:" => in_script(detail),
        "ERR" if detail.contains("user_script:") => in_script(detail),
        _ => FaultKind::Other,
    }
}

/// Why a script ended early. Redis 6.2 quotes the error of a command in it, in other ways if the
/// script returns the error; later servers answer with that error itself.
fn in_script(detail: &str) -> FaultKind {
    let quoted = detail.split_once(": -").map(|(_, error)| error);
    let code = quoted.and_then(|error| error.split(' ').next());
    match kind_of(code.unwrap_or_default(), "") {
        FaultKind::Other => FaultKind::Script,
        kind => kind,
    }
}

/// Why there is no connection. No command about a key was sent.
pub(super) fn connect_fault(error: &RedisError) -> Fault {
    let fault = fault(error);
    let kind = match fault.kind() {
        FaultKind::Lost => FaultKind::NotSent,
        kind => kind.clone(),
    };
    if error.code().is_some() {
        return Fault::new(kind, fault.to_string());
    }
    let text = error.to_string();
    Fault::new(kind, text.split(", with args").next().unwrap_or_default())
}

/// The parts of `host:port`, where the host may be an IPv6 address.
fn address(node: &str) -> Option<(String, u16)> {
    let (host, port) = node.rsplit_once(':')?;
    if host.is_empty() {
        return None;
    }
    Some((
        host.trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned(),
        port.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn answered(line: &str) -> Result<Reply, Fault> {
        reply(redis::parse_redis_value(format!("{line}\r\n").as_bytes()).expect("RESP"))
    }

    #[test]
    fn what_a_server_answers_tells_whether_the_command_ran() {
        let address = |host: &str| Some((host.to_owned(), 6381));
        for (line, kind) in [
            ("-NOSCRIPT No matching script", FaultKind::NoScript),
            (
                "-MOVED 3999 127.0.0.1:6381",
                FaultKind::Moved(address("127.0.0.1")),
            ),
            ("-MOVED 3999 :6381", FaultKind::Moved(None)),
            ("-ASK 3999 [::1]:6381", FaultKind::Ask(address("::1"))),
            ("-ASK 3999 ::1:6381", FaultKind::Ask(address("::1"))),
            ("-TRYAGAIN Multiple keys", FaultKind::SlotNotNow),
            ("-CLUSTERDOWN Hash slot not served", FaultKind::SlotNotNow),
            ("-CLUSTERDOWN The cluster is down", FaultKind::NotNow),
            ("-LOADING Redis is loading", FaultKind::NotNow),
            ("-MASTERDOWN Link with MASTER is down", FaultKind::NotNow),
            ("-BUSY Redis is busy running a script", FaultKind::NotNow),
            ("-READONLY You can't write", FaultKind::ReadOnly),
            ("-NOPERM No permissions", FaultKind::Refused),
            ("-NOAUTH Authentication required", FaultKind::NotSent),
            ("-WRONGPASS invalid", FaultKind::Refused),
            ("-OOM command not allowed", FaultKind::OutOfMemory),
            ("-ERR user_script:1: attempt to compare", FaultKind::Script),
            (
                "-ERR Error running script: @user_script: 1: -READONLY You can't write",
                FaultKind::ReadOnly,
            ),
            (
                "-ERR Error running script: @user_script: 1: -OOM command not allowed",
                FaultKind::OutOfMemory,
            ),
            (
                "-@user_script: 1: -READONLY You can't write",
                FaultKind::ReadOnly,
            ),
            (
                "-@user_script: 1: -OOM command not allowed",
                FaultKind::OutOfMemory,
            ),
            ("-NOREPLICAS Not enough good replicas", FaultKind::Refused),
            ("-MISCONF Errors writing to the RDB", FaultKind::Refused),
            ("-ERR unknown command 'EVALSHA'", FaultKind::Refused),
            ("-ERR unsupported command 'SCRIPT'", FaultKind::Refused),
            (
                "-ERR Error running script: @user_script:1: @user_script: 1: -NOREPLICAS Not",
                FaultKind::Refused,
            ),
            (
                "-ERR Error running script: @user_script:1: @user_script: 1: -MISCONF Redis is",
                FaultKind::Refused,
            ),
            (
                "-ERR Error running script: @user_script:1: @user_script: 1: The user executing \
                 the script can't run this command or subcommand",
                FaultKind::Refused,
            ),
            (
                "-@user_script: 1: The user executing the script can't run this command",
                FaultKind::Refused,
            ),
            (
                "-ERR The user executing the script can't run this command or subcommand",
                FaultKind::Refused,
            ),
            (
                "-ERR ACL failure in script: User limiter has no permissions to run the 'get' \
                 command script: on @user_script:1.",
                FaultKind::Refused,
            ),
            (
                "-ERR Unknown Redis command called from script script: 7ae0, on @user_script:1.",
                FaultKind::Refused,
            ),
            (
                "-ERR Error running script: @user_script:1: @user_script: 1: Unknown Redis \
                 command called from Lua script",
                FaultKind::Refused,
            ),
            (
                "-ERR Error running script: @user_script:1: @user_script: 1: -WRONGTYPE Operation",
                FaultKind::Script,
            ),
            ("-ERR syntax error", FaultKind::Other),
            ("-WRONGTYPE Operation against a key", FaultKind::Other),
        ] {
            assert_eq!(answered(line).expect_err(line).kind(), &kind, "{line}");
        }
        assert_eq!(
            answered("*1\r\n-OOM x").expect_err("in a list").kind(),
            &FaultKind::OutOfMemory
        );
        assert_eq!(answered("+OK"), Ok(Reply::Status("OK".to_owned())));
    }

    #[test]
    fn an_error_after_which_the_command_may_have_run_is_no_refused_connection() {
        for (kind, fault_kind) in [
            (io::ErrorKind::ConnectionRefused, FaultKind::NotSent),
            (io::ErrorKind::ConnectionReset, FaultKind::Lost),
            (io::ErrorKind::BrokenPipe, FaultKind::Lost),
        ] {
            assert_eq!(
                fault(&io::Error::from(kind).into()).kind(),
                &fault_kind,
                "{kind}"
            );
        }
        let wrong_password = RedisError::from((ErrorKind::AuthenticationFailed, "wrong password"));
        assert_eq!(fault(&wrong_password).kind(), &FaultKind::Refused);
    }

    #[test]
    fn a_fault_shows_what_the_server_said_and_no_key() {
        let shown = |line: &str| answered(line).expect_err(line).to_string();
        for (line, text) in [
            (
                "-ERR wrong arguments for 'throttle{all}p:tada'",
                "the server answered ERR wrong arguments for 'throttle",
            ),
            (
                "-ERR unknown command 'EVALSHA', with args beginning with: 'throttle{all}p:tada'",
                "the server answered ERR unknown command 'EVALSHA'",
            ),
            (
                "-NOPERM this user has no permissions to run the 'evalsha' command",
                "the server answered NOPERM this user has no permissions to run the 'evalsha' \
                    command",
            ),
            ("-OOM", "the server answered OOM"),
        ] {
            assert_eq!(shown(line), text);
        }
        let secret = "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'hunter2'";
        let error = RedisError::from((ErrorKind::Client, "refused", secret.to_owned()));
        let shown = connect_fault(&error).to_string();
        assert!(
            shown.contains("unknown command 'HELLO'") && !shown.contains("hunter2"),
            "{shown}"
        );
    }

    #[test]
    fn a_command_that_the_client_could_not_send_did_not_run() {
        for kind in [
            ErrorKind::InvalidClientConfig,
            ErrorKind::ClusterConnectionNotFound,
            ErrorKind::Client,
        ] {
            let fault = fault(&RedisError::from((kind, "by hand")));
            assert_eq!(
                (fault.kind(), fault.did_not_run()),
                (&FaultKind::NotSent, true),
                "{kind:?}"
            );
            assert_eq!(
                fault.to_string(),
                RedisError::from((kind, "by hand")).category()
            );
        }
        for kind in [ErrorKind::Parse, ErrorKind::UnexpectedReturnType] {
            let fault = fault(&RedisError::from((kind, "by hand")));
            assert_eq!(
                (fault.kind(), fault.did_not_run()),
                (&FaultKind::Other, false),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn each_kind_of_reply_is_translated_and_others_are_faults() {
        let bytes = |text: &[u8]| Value::BulkString(text.to_vec());
        for (value, expected) in [
            (Value::Nil, Reply::Nil),
            (Value::Int(-7), Reply::Int(-7)),
            (bytes(b"a\xff"), Reply::Bytes(b"a\xff".to_vec())),
            (
                Value::SimpleString("PONG".to_owned()),
                Reply::Status("PONG".to_owned()),
            ),
            (Value::Okay, Reply::Status("OK".to_owned())),
            (
                Value::Array(vec![Value::Int(1), bytes(b"b")]),
                Reply::Array(vec![Reply::Int(1), Reply::Bytes(b"b".into())]),
            ),
            (Value::Set(vec![Value::Nil]), Reply::Array(vec![Reply::Nil])),
            (
                Value::Map(vec![
                    (bytes(b"a"), Value::Int(1)),
                    (bytes(b"b"), Value::Nil),
                ]),
                Reply::Array(vec![
                    Reply::Bytes(b"a".into()),
                    Reply::Int(1),
                    Reply::Bytes(b"b".into()),
                    Reply::Nil,
                ]),
            ),
        ] {
            assert_eq!(reply(value), Ok(expected));
        }
        let odd = reply(Value::Array(vec![Value::Boolean(true)]))
            .expect_err("no such reply is asked for");
        assert_eq!(
            (odd.kind(), odd.to_string().as_str()),
            (
                &FaultKind::Other,
                "the server answered with something unexpected"
            )
        );
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for (node, parts) in [
            ("host:1", Some(("host", 1))),
            ("1.2.3.4:65535", Some(("1.2.3.4", 65_535))),
            ("[::1]:7", Some(("::1", 7))),
            ("host:65536", None),
            ("host:", None),
            ("host", None),
            (":1", None),
        ] {
            assert_eq!(
                address(node),
                parts.map(|(host, port)| (host.to_owned(), port)),
                "{node}"
            );
        }
    }

    #[test]
    fn an_error_of_the_connection_is_told_as_it_is() {
        let error = RedisError::from(io::Error::new(io::ErrorKind::ConnectionReset, "the cable"));
        assert!(fault(&error).to_string().contains("the cable"));
        assert_eq!(connect_fault(&error).kind(), &FaultKind::NotSent);
    }
}
