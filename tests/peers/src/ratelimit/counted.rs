//! Instructions of a request, which no other load on the machine changes.

use std::fs;
use std::process::Command;

use tokio::runtime::Runtime;

use super::load::{Client, Grpc};
use super::server::Server;
use crate::report;

const FEW: u32 = 500;
const MANY: u32 = 2_500;

pub fn run(runtime: &Runtime) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("\nInstructions not counted: valgrind is not installed.");
        return;
    }
    report::title(
        "Instructions of a rate limit service, a request (callgrind; one client)",
        &["service", "instructions", "÷ empty"],
    );
    let services: [fn(&[&str]) -> Server; 3] = [
        |runner| Server::beside("empty tonic service", "empty", runner),
        |runner| Server::ours_under("memory", runner),
        |runner| Server::beside("limitador's library, in memory", "limitador", runner),
    ];
    let mut empty = None;
    for service in services {
        let (name, many) = counted(runtime, service, MANY);
        let (_, few) = counted(runtime, service, FEW);
        let each = (many - few) / u64::from(MANY - FEW);
        let empty = *empty.get_or_insert(each);
        report::row(&[
            name.to_owned(),
            each.to_string(),
            format!("{:.2}", each as f64 / empty as f64),
        ]);
    }
}

/// Instructions of a whole process that answers so many requests.
fn counted(
    runtime: &Runtime,
    service: fn(&[&str]) -> Server,
    requests: u32,
) -> (&'static str, u64) {
    let file = std::env::temp_dir().join(format!("throttle-peers-{}.out", std::process::id()));
    let out = format!("--callgrind-out-file={}", file.display());
    let server = service(&["valgrind", "-q", "--tool=callgrind", &out]);
    runtime.block_on(async {
        let mut client = Grpc::connected(&server.address).await.swap_remove(0);
        for number in 0..requests {
            client.ask(number).await;
        }
    });
    let name = server.name;
    server.end();
    let text = fs::read_to_string(&file).expect("callgrind writes its file");
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok());
    let _ = fs::remove_file(file);
    (name, total.expect("callgrind writes a sum"))
}
