//! Options that a server starts with.

use std::time::Duration;

use crate::server::Server;
use crate::tls::Tls;

/// Options of a [`Server`]; made by [`Server::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs before start()"]
pub struct Builder {
    pub(crate) options: Vec<(String, Vec<String>)>,
    pub(crate) tls: Option<Tls>,
    pub(crate) role: Role,
    pub(crate) password: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Role {
    #[default]
    Alone,
    /// A node of a cluster, which needs a port for its bus.
    Node,
    /// A sentinel, which starts with these lines in a file that it rewrites.
    Sentinel(String),
}

impl Builder {
    /// Any option of `redis-server`, such as `arg("--maxmemory", "1mb")`. If an option is given
    /// twice, the later one counts; the defaults come first.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), vec![value.to_owned()]));
        self
    }

    /// The password of the default user (`requirepass`). It becomes part of [`Server::url`].
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.arg("--requirepass", password)
    }

    /// A user with rules in Redis's own words, such as `user("web", "on >secret ~app:* +@all")`.
    pub fn user(mut self, name: &str, rules: &str) -> Self {
        let words = [name]
            .into_iter()
            .chain(rules.split_whitespace())
            .map(str::to_owned)
            .collect();
        self.options.push(("--user".to_owned(), words));
        self
    }

    /// A second port that speaks TLS, with a certificate made for this server: [`Server::tls_url`],
    /// [`Server::tls`]. Clients need no certificate, unless `arg("--tls-auth-clients", "yes")` is
    /// given too.
    pub fn tls(self) -> Self {
        self.certified(Tls::new())
    }

    /// The same with certificates that other servers have, too.
    pub(crate) fn certified(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Two words, because Redis 6.2 does not split one.
    pub(crate) fn replica_of(mut self, port: u16) -> Self {
        self.options.push((
            "--replicaof".to_owned(),
            vec!["127.0.0.1".to_owned(), port.to_string()],
        ));
        self
    }

    pub(crate) fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Starts the server and returns when it answers.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server`, or it does not start; the message contains its own output.
    #[must_use]
    pub fn start(self) -> Server {
        Server::launch(self)
    }
}

/// How long a server may take until it answers; far more than the 10 ms it takes on an idle
/// machine.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(20);

/// Everything on the command line. Later options override earlier ones.
pub(crate) fn arguments(builder: &Builder, port: u16, tls: Option<(&Tls, u16)>) -> Vec<String> {
    let mut line = Vec::new();
    let mut option = |name: &str, values: &[&str]| {
        line.push(name.to_owned());
        line.extend(values.iter().map(|&value| value.to_owned()));
    };
    if let Role::Sentinel(_) = builder.role {
        option(crate::server::SENTINEL_FILE, &[]);
        option("--sentinel", &[]);
    }
    option("--port", &[&port.to_string()]);
    option("--bind", &["127.0.0.1"]);
    option("--protected-mode", &["no"]);
    option("--logfile", &["log"]);
    if !matches!(builder.role, Role::Sentinel(_)) {
        option("--save", &[""]);
        option("--appendonly", &["no"]);
        if crate::binary::debug_must_be_enabled() {
            option("--enable-debug-command", &["local"]);
        }
        // A replica is in step a second or more earlier if its master does not wait for others to
        // join it.
        option("--repl-diskless-sync-delay", &["0"]);
        let password = format!(">{}", crate::control::PASSWORD);
        option(
            "--user",
            &[crate::control::USER, "on", &password, "~*", "&*", "+@all"],
        );
    }
    if let Some((tls, tls_port)) = tls {
        option("--tls-port", &[&tls_port.to_string()]);
        for (name, file) in tls.files() {
            option(name, &[file]);
        }
        option("--tls-auth-clients", &["no"]);
    }
    for (name, values) in &builder.options {
        option(name, &values.iter().map(String::as_str).collect::<Vec<_>>());
    }
    line
}
