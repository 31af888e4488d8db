//! Processes that serve the rate limit service.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::services::CHILD;

/// Nothing is refused, and no window ends within a run.
const LIMITS: &str = "
domain: shop
descriptors:
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 4294967295 }
";

pub struct Server {
    pub name: &'static str,
    pub address: String,
    process: Child,
}

impl Server {
    pub fn empty() -> Self {
        Self::beside("empty tonic service", "empty", &[])
    }

    pub fn limitador() -> Self {
        Self::beside("limitador's library, in memory", "limitador", &[])
    }

    /// `runner` is what runs the program, such as valgrind with its arguments.
    pub fn beside(name: &'static str, service: &str, runner: &[&str]) -> Self {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut command = under(runner, program);
        command.args([CHILD, service]).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the program starts again");
        let mut address = String::new();
        let stdout = process.stdout.take().expect("the output is piped");
        let read = BufReader::new(stdout).read_line(&mut address);
        read.expect("the server prints its address");
        Self {
            name,
            address: address.trim().to_owned(),
            process,
        }
    }

    /// `examples/ratelimit-server` on a store.
    pub fn ours(store: &str) -> Self {
        Self::ours_under(store, &[])
    }

    pub fn ours_under(store: &str, runner: &[&str]) -> Self {
        let Some(program) = std::env::var_os("THROTTLE_EXAMPLE_RATELIMIT_SERVER") else {
            eprintln!(
                "THROTTLE_EXAMPLE_RATELIMIT_SERVER is not set: it names the program ratelimit-server; \
                 README.md says how to build it"
            );
            std::process::exit(2);
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener
            .local_addr()
            .expect("a bound listener has an address");
        drop(listener);
        let folder = std::env::temp_dir().join(format!("throttle-peers-{}", address.port()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        for (file, text) in [
            ("limits.yaml", LIMITS),
            ("throttle.toml", "limits = \"limits.yaml\""),
        ] {
            fs::write(folder.join(file), text).expect("the folder can be written");
        }
        let process = under(runner, program.into())
            .arg(folder.join("throttle.toml"))
            .env("RATELIMIT_STORE", store)
            .env("RATELIMIT_STORE_MILLISECONDS", "10000")
            .env("RATELIMIT_GRPC", address.to_string())
            .env("RATELIMIT_HTTP", "127.0.0.1:0")
            .env("RATELIMIT_ADMIN", "127.0.0.1:0")
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        wait_for(&address.to_string());
        Self {
            name: if store == "memory" {
                "ratelimit-server, in memory"
            } else {
                "ratelimit-server, Redis"
            },
            address: address.to_string(),
            process,
        }
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Ends as an operator ends it, so that a runner writes what it has seen.
    pub fn end(mut self) {
        let process = self.process_id().to_string();
        let ended = Command::new("kill").arg(process).status();
        assert!(ended.is_ok_and(|status| status.success()));
        let _ = self.process.wait();
    }
}

fn under(runner: &[&str], program: PathBuf) -> Command {
    match runner {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

/// Waits until a server listens.
pub fn wait_for(address: &str) {
    for _ in 0..3_000 {
        if std::net::TcpStream::connect(address).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("nothing listens at {address}");
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
