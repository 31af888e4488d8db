//! nginx and HAProxy, each started with one thread, a configuration of its own and a free port.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use super::http::Client;
use super::ideal::Quota;
use super::libraries::Admit;

/// The variable that names the library which servers are started with.
pub const PRELOAD: &str = "THROTTLE_PEERS_PRELOAD";

/// A server that runs until it is dropped.
pub struct Server {
    process: Child,
    folder: PathBuf,
    pub port: u16,
}

impl Server {
    /// nginx with these lines in `http`, and these in `location`.
    pub fn nginx(http: &str, location: &str) -> Self {
        let listen = if http.contains("proxy_protocol") {
            " proxy_protocol"
        } else {
            ""
        };
        let (folder, port) = place();
        let here = folder.display();
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|of| format!("{of}_temp_path {here}/{of};"));
        let config = format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/log crit;
            events {{ worker_connections 512; }}
            http {{
                access_log off; keepalive_requests 100000000; {}
                {http}
                server {{ listen 127.0.0.1:{port}{listen}; root {here};
                    location = / {{ {location} try_files /hello =404; }} }}
            }}",
            temp.join(" ")
        );
        fs::write(folder.join("hello"), "hello").expect("the folder can be written");
        let file = write(&folder, &config);
        Self::start(Command::new("nginx").args(["-c", &file]), folder, port)
    }

    /// HAProxy with these lines in its frontend. It answers what they admit.
    pub fn haproxy(frontend: &str) -> Self {
        let accept = if frontend.contains("# PROXY") {
            " accept-proxy"
        } else {
            ""
        };
        let (folder, port) = place();
        let config = format!(
            "global\n nbthread 1\n maxconn 500\ndefaults\n mode http\n timeout connect 5s\n \
                timeout client 60s\n \
             timeout server 60s\nfrontend hello\n bind 127.0.0.1:{port}{accept}\n {}\n \
             http-request return status 200 content-type text/plain string hello\n",
            frontend.replace("; ", "\n ")
        );
        let file = write(&folder, &config);
        Self::start(
            Command::new("haproxy").args(["-db", "-f", &file]),
            folder,
            port,
        )
    }

    /// redis-server, which keeps nothing on disk.
    pub fn redis() -> Self {
        let (folder, port) = place();
        let mut command = Command::new("redis-server");
        Self::start(
            command.args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--bind",
                "127.0.0.1",
            ]),
            folder,
            port,
        )
    }

    fn start(command: &mut Command, folder: PathBuf, port: u16) -> Self {
        let log = fs::File::create(folder.join("output")).expect("the folder can be written");
        if let Ok(library) = env::var(PRELOAD) {
            // libfaketime and jemalloc each need the other to be ready first, so glibc's allocator
            // goes before Redis's.
            command.env("LD_PRELOAD", format!("libc_malloc_debug.so.0:{library}"));
        }
        let command = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let process = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let server = Self {
            process,
            folder,
            port,
        };
        let listens = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(50));
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        let said = || fs::read_to_string(server.folder.join("output")).unwrap_or_default();
        assert!(listens, "the server does not start: {}", said());
        server
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// nginx, started with a quota; it ends with the closure.
pub fn nginx(quota: Quota) -> Admit {
    let burst = quota.count - 1;
    let zone = format!(
        "limit_req_zone $binary_remote_addr zone=one:1m rate={};",
        per(quota)
    );
    asked(Server::nginx(
        &zone,
        &format!("limit_req zone=one burst={burst} nodelay;"),
    ))
}

/// HAProxy, likewise.
pub fn haproxy(quota: Quota) -> Admit {
    asked(Server::haproxy(&stick_table(quota, "src")))
}

fn asked(server: Server) -> Admit {
    let mut client = Client::new(server.port);
    Box::new(move || {
        let _until_then = &server;
        client.get(&[]).status == 200
    })
}

/// The usual stick table, by this key.
pub fn stick_table(quota: Quota, key: &str) -> String {
    let (count, seconds) = (quota.count, quota.period.as_secs());
    format!(
        "stick-table type ipv6 size 100k expire {}s store http_req_rate({seconds}s); http-request \
            track-sc0 {key}; \
         http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {count} }}",
        seconds * 2
    )
}

/// The rate in nginx's words, which knows seconds and minutes.
pub fn per(quota: Quota) -> String {
    let (count, seconds) = (quota.count, quota.period.as_secs() as u32);
    if count.is_multiple_of(seconds) {
        format!("{}r/s", count / seconds)
    } else {
        format!("{}r/m", 60 * count / seconds)
    }
}

/// Whether both are installed.
pub fn installed() -> bool {
    ["nginx", "haproxy"]
        .iter()
        .all(|name| Command::new(name).arg("-v").output().is_ok())
}

/// A folder and a port of its own.
fn place() -> (PathBuf, u16) {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|l| l.local_addr())
        .expect(
            "a \
        free port",
        )
        .port();
    let folder = env::temp_dir().join(format!("throttle-peers-{port}"));
    fs::create_dir_all(&folder).expect("a temporary folder");
    (folder, port)
}

fn write(folder: &std::path::Path, config: &str) -> String {
    let file = folder.join("config");
    fs::write(&file, config).expect("the folder can be written");
    file.display().to_string()
}
