use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::ConnectionInfo;
use throttle_core::ConfigError;

use super::shared_connection::SharedConnection;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::translate::connect_fault;
use super::{
    Command, Connection, ConnectionFuture, Connector, Fault, FaultKind, Reply, first_success, url,
};

/// The master of a given name, at the address that the Sentinels report. Each new connection asks
/// all of them again, and is one to a server that says itself that it is a master. If the server
/// turns out to be a replica later, the connection is replaced.
///
/// ```
/// use throttle_redis::{Connector, Sentinel};
///
/// let sentinel = Sentinel::new(["redis://one:26379"], "main", None)?;
/// assert_eq!(
///     sentinel.address().as_deref(),
///     Some("the master \"main\" of the Sentinels at one:26379")
/// );
/// # Ok::<_, throttle_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Sentinel {
    /// At least one.
    sentinels: Vec<ConnectionInfo>,
    master: String,
    /// The master, at an address that is not used.
    server: ConnectionInfo,
}

impl Sentinel {
    /// Sets the master's name and the Sentinels' URLs, such as `redis://host:26379`. User, password
    /// and database in `server` (`redis://user:password@ignored/database`), if given, are those of
    /// the master. If `server` begins with `rediss://`, the master is reached over TLS. Nothing
    /// connects yet.
    ///
    /// # Errors
    ///
    /// If a URL cannot be read (as in [`Single::new`](super::Single::new)) or there is none.
    pub fn new<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        master: impl Into<String>,
        server: Option<&str>,
    ) -> Result<Self, ConfigError> {
        Self::build(sentinels, master.into(), server, Ok)
    }

    /// Like [`new`](Self::new), with your own certificates for the URLs that begin with
    /// `rediss://`: those of the Sentinels, that of the master, or all. Sentinels report an IP
    /// address unless they are configured otherwise (`sentinel announce-hostnames`), and the
    /// master's certificate must be valid for what they report.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and if the certificates cannot be read or no URL begins with
    /// `rediss://`.
    #[cfg(feature = "tls")]
    pub fn with_tls<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        master: impl Into<String>,
        server: Option<&str>,
        tls: &Tls,
    ) -> Result<Self, ConfigError> {
        let with = |server| match url::is_over_tls(&server) {
            true => tls.on(server),
            false => Ok(server),
        };
        let this = Self::build(sentinels, master.into(), server, with)?;
        if !url::is_over_tls(&this.server) && !this.sentinels.iter().any(url::is_over_tls) {
            let rule = "they are for URLs that begin with rediss://, and none does";
            return Err(ConfigError::new("TLS certificates", "not used", rule));
        }
        Ok(this)
    }

    fn build<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        master: String,
        server: Option<&str>,
        with: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let field = "Sentinel URLs";
        let server = with(url::read(field, server.unwrap_or("redis://ignored"))?)?;
        let sentinels = url::read_all(field, sentinels, |sentinel| {
            // Sentinels have no databases.
            let settings = sentinel.redis_settings().clone().set_db(0);
            with(sentinel.set_redis_settings(settings))
        })?;
        if sentinels.is_empty() {
            let rule = "it must be a list of redis://host:port, at least one";
            return Err(ConfigError::new(field, "empty", rule));
        }
        Ok(Self {
            sentinels,
            master,
            server,
        })
    }
}

impl Connector for Sentinel {
    fn connect(&self, _timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        let group = self.clone();
        Box::pin(async move {
            let tried = Arc::default();
            let ask = |sentinel: &ConnectionInfo| {
                master_by(sentinel.clone(), group.clone(), Arc::clone(&tried))
            };
            let faults = match first_success(group.sentinels.iter().map(ask)).await {
                Ok(master) => return Ok(Box::new(master) as Box<dyn Connection>),
                Err(faults) => faults.into_iter().flatten().collect::<Vec<Fault>>(),
            };
            let mut kinds = faults.iter().map(Fault::kind);
            let kind = kinds.find(|&kind| *kind != FaultKind::NotSent).cloned();
            let messages: Vec<String> = faults.iter().map(Fault::to_string).collect();
            Err(Fault::new(
                kind.unwrap_or(FaultKind::NotSent),
                messages.join("; "),
            ))
        })
    }

    fn address(&self) -> Option<String> {
        Some(format!(
            "the master {:?} of the Sentinels at {}",
            self.master,
            url::addresses(&self.sentinels)
        ))
    }
}

/// Connects to the master that one Sentinel names. Returns no fault if another Sentinel has named it
/// already.
async fn master_by(
    sentinel: ConnectionInfo,
    group: Sentinel,
    tried: Arc<Mutex<HashSet<(String, u16)>>>,
) -> Result<SharedConnection, Option<Fault>> {
    let question = Command::new("SENTINEL")
        .arg("get-master-addr-by-name")
        .arg(&group.master);
    let (_, named) = opened_with(&sentinel, question).await?;
    let Some(address) = named.into_address() else {
        let unknown = Fault::new(FaultKind::NotSent, "the Sentinel knows no such master");
        return Err(Some(unknown.of(sentinel.addr())));
    };
    if !tried.lock().insert(address.clone()) {
        return Err(None);
    }
    let server = url::at(&group.server, address);
    let (master, role) = opened_with(&server, Command::new("ROLE")).await?;
    let role = role.into_array().and_then(|role| role.into_iter().next());
    if role.and_then(Reply::into_bytes).as_deref() != Some(b"master") {
        let message = "the server that a Sentinel names as the master is none";
        let fault = Fault::new(FaultKind::ReadOnly, message);
        return Err(Some(fault.of(server.addr())));
    }
    Ok(master)
}

/// Opens a connection, and returns the answer to the first command on it.
async fn opened_with(
    server: &ConnectionInfo,
    first: Command,
) -> Result<(SharedConnection, Reply), Fault> {
    let opened = SharedConnection::open(server.clone()).await;
    let opened = opened.map_err(|error| connect_fault(&error).of(server.addr()))?;
    match opened.call(first).await {
        Ok(answer) => Ok((opened, answer)),
        Err(fault) => Err(fault.of(server.addr())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentinel_is_named_and_no_password() {
        let urls = ["redis://:secret@one", "redis://two:26379"];
        let sentinel = Sentinel::new(urls, "main", Some("redis://:secret@ignored")).expect("URLs");
        let address = "the master \"main\" of the Sentinels at one:6379, two:26379";
        assert_eq!(sentinel.address().as_deref(), Some(address));
    }

    #[test]
    fn errors_of_sentinels_name_what_is_wrong() {
        let error = Sentinel::new([], "main", None).err().expect("no Sentinel");
        let text = "Sentinel URLs is empty: it must be a list of redis://host:port, at least one";
        assert_eq!(error.to_string(), text);
        for (sentinels, server) in [
            (["redis://one", "http://two"], None),
            (["http://one", "redis://two"], None),
            (["redis://one", "redis://two"], Some("http://server")),
        ] {
            let error = Sentinel::new(sentinels, "main", server)
                .err()
                .expect("one is no Redis URL");
            assert_eq!(
                (error.field(), error.value()),
                ("Sentinel URLs", "http://…")
            );
        }
    }

    #[test]
    fn user_password_and_database_are_those_of_the_server() {
        let sentinel = |server| Sentinel::new(["redis://a:b@one/7"], "main", server).expect("URLs");
        let given = sentinel(Some("redis://user:secret@ignored/3")).server;
        let settings = given.redis_settings();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("user"), Some("secret"), 3)
        );
        let none = sentinel(None);
        let settings = none.server.redis_settings();
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (None, None, 0)
        );
        let asked = none.sentinels[0].redis_settings();
        assert_eq!((asked.username(), asked.db()), (Some("a"), 0));
    }

    #[test]
    fn the_connection_to_the_master_is_as_prompt_as_one_to_a_single_server() {
        let sentinel = Sentinel::new(["redis://one"], "main", None).expect("a URL");
        assert!(sentinel.server.tcp_settings().nodelay());
        assert!(sentinel.sentinels[0].tcp_settings().nodelay());
    }

    /// A password would be sent in the clear otherwise.
    #[cfg(feature = "tls")]
    #[test]
    fn the_master_and_each_sentinel_are_reached_over_tls_if_their_urls_say_so() {
        let tls = Tls::new();
        let with_tls = |sentinel, server| Sentinel::with_tls([sentinel], "main", server, &tls);
        let is_over_tls = url::is_over_tls;
        let (secure, plain) = (
            Some("rediss://user:secret@ignored/3"),
            Some("redis://user:secret@ignored/3"),
        );
        for (sentinel, server, expected) in [
            ("redis://one", secure, (false, true)),
            ("rediss://one", secure, (true, true)),
            ("rediss://one", plain, (true, false)),
            ("rediss://one", None, (true, false)),
        ] {
            let public = Sentinel::new([sentinel], "main", server).expect("URLs");
            let own = with_tls(sentinel, server).expect("URLs of TLS");
            for made in [public, own] {
                let found = (is_over_tls(&made.sentinels[0]), is_over_tls(&made.server));
                assert_eq!(found, expected);
            }
        }
        let error = with_tls("redis://one", plain).err().expect("no TLS");
        assert_eq!(error.field(), "TLS certificates");
    }
}
