//! A real Envoy with the configuration of the example.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use super::server::{Server, wait_for};

const CONFIGURATION: &str =
    include_str!("../../../../examples/ratelimit-server/proxies/envoy.yaml");

pub struct Envoy {
    pub address: String,
    process: Child,
}

impl Envoy {
    /// `None` if there is no Envoy.
    pub fn before(server: &Server) -> Option<Self> {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [public, app] = listeners.each_ref().map(|listener| {
            let address = listener
                .local_addr()
                .expect("a bound listener has an address");
            address.port().to_string()
        });
        let (_, grpc) = server
            .address
            .rsplit_once(':')
            .expect("an address has a port");
        let ports = [("10000", &public[..]), ("10001", &app), ("8081", grpc)];
        let configuration = ports.iter().fold(
            // A machine that is busy must not make Envoy let a request pass.
            CONFIGURATION.replace("timeout: 0.1s", "timeout: 20s"),
            |text, (written, free)| {
                text.replace(
                    &format!("port_value: {written} "),
                    &format!("port_value: {free} "),
                )
            },
        );
        let file = std::env::temp_dir().join(format!("throttle-peers-envoy-{public}.yaml"));
        fs::write(&file, configuration).expect("a temporary file");
        drop(listeners);
        let process = Command::new("envoy")
            .args(["--log-level", "off", "--use-dynamic-base-id", "-c"])
            .arg(file)
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let address = format!("127.0.0.1:{public}");
        wait_for(&address);
        Some(Self { address, process })
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
