//! A process that starts servers and ends in a given way. The tests check that nothing is left of
//! it.

use std::io::Write;
use std::{env, io, thread, time::Duration};

use throttle_test_servers::{Server, Shared};

fn main() {
    match env::args().nth(1).as_deref() {
        Some("shared") => tell(&Shared::new()),
        Some("panic") => {
            let server = Server::start();
            tell(&server);
            panic!("as planned");
        }
        Some("wait") => {
            let (running, stopped) = (Server::start(), Server::start());
            stopped.restart();
            tell(&running);
            tell(&stopped);
            stopped.stop();
            say("ready");
            thread::sleep(Duration::from_secs(60));
        }
        other => panic!("how to end: shared, panic or wait, not {other:?}"),
    }
}

fn tell(server: &Server) {
    let folder: Vec<String> = server.query(&["CONFIG", "GET", "dir"]);
    say(&format!(
        "server {} {}",
        server.process_id().expect("a server that runs"),
        folder[1]
    ));
}

fn say(line: &str) {
    writeln!(io::stdout(), "{line}").expect("a test that listens");
}
