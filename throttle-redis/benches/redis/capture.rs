//! A connection that remembers the script it was sent, and a call of it: so what is measured beside
//! is the same script.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{Backend, Key, PolicySet};
use throttle_redis::{
    Command, Connection, ConnectionFuture, Connector, RedisBackend, Reply, Single,
};
use throttle_test_servers::Server;

#[derive(Clone, Debug, Default)]
pub(crate) struct Captured {
    pub(crate) source: Vec<u8>,
    /// The words of the last call: EVALSHA, name, number of keys, keys, arguments.
    pub(crate) call: Vec<Vec<u8>>,
}

impl Captured {
    /// What the backend sends to decide about a set.
    pub(crate) fn of(server: &Server, set: PolicySet) -> Self {
        let seen = Arc::new(Mutex::new(Self::default()));
        let connector = Seeing(
            Single::new(&server.url()).expect("a URL"),
            Arc::clone(&seen),
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            server.command(&["SCRIPT", "FLUSH"]);
            let patient = std::time::Duration::from_secs(5);
            let backend = RedisBackend::builder(connector)
                .deadline(patient)
                .build()
                .expect("valid options");
            let calls = vec![Call::from(Key::from("seen")); set.policies().len()];
            let prepared = Arc::new(backend.prepare(set).expect("a set"));
            backend.decide(&prepared, &calls).await.expect("a decision");
        });
        let seen = seen.lock().expect("no panic");
        seen.clone()
    }

    /// The script with its arguments written into it, for tools that cannot send binary ones; keys
    /// stay arguments.
    pub(crate) fn with_arguments(&self) -> String {
        let keys: usize = String::from_utf8_lossy(&self.call[2])
            .parse()
            .expect("a number of keys");
        let word = |word: &Vec<u8>| {
            let escaped: String = word.iter().map(|byte| format!("\\{byte:03}")).collect();
            format!("'{escaped}'")
        };
        let words: Vec<String> = self.call[3 + keys..].iter().map(word).collect();
        format!(
            "local ARGV = {{{}}}\n{}",
            words.join(", "),
            String::from_utf8_lossy(&self.source)
        )
    }
}

struct Seeing(Single, Arc<Mutex<Captured>>);

impl Connector for Seeing {
    fn connect(&self, timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        let (opening, seen) = (self.0.connect(timeout), Arc::clone(&self.1));
        Box::pin(async move { Ok(Box::new(Open(opening.await?, seen)) as Box<dyn Connection>) })
    }
}

struct Open(Box<dyn Connection>, Arc<Mutex<Captured>>);

impl Connection for Open {
    fn call(&self, command: Command) -> ConnectionFuture<Reply> {
        let words: Vec<Vec<u8>> = command.args().map(<[u8]>::to_vec).collect();
        let mut seen = self.1.lock().expect("no panic");
        match words.first().map(Vec::as_slice) {
            Some(b"EVAL") => seen.source = words[1].clone(),
            Some(b"EVALSHA") => seen.call = words,
            _ => {}
        }
        self.0.call(command)
    }
}
