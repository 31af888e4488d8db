//! `examples/ratelimit-server` behind a real Envoy, Traefik, Caddy and nginx, each with the
//! configuration in its folder.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Client;
use throttle_extra::child::{self, Child};
use throttle_extra::web;

/// Requests of a client, and those that its limit admits. No window ends during a test: it is a
/// year.
const REQUESTS: usize = 2_500;
const ADMITTED: usize = 1_000;

/// By descriptors, for Envoy.
const LIMITS: &str = "
domain: shop
descriptors:
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 1000 }
    metadata: { tier: plain }
  - key: path
    value: /slow
    descriptors:
      - key: remote_address
        rate_limit: { unit: minute, requests_per_unit: 30, algorithm: gcra, burst: 1 }
";

/// The same by requests, for the others.
const RULES: &str = r#"
version = 1
[client-ip]
source = "x-forwarded-for"
trusted = ["127.0.0.1"]
[[limit]]
name = "per-client"
fixed-window = { rate = "1000/365d" }
by = "client-ip"
[[limit]]
name = "slow"
gcra = { rate = "30/minute", burst = 1 }
by = "client-ip"
match = { paths = ["/slow"] }
"#;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ratelimit-server")
}

/// Of Envoy's route: clients see what the rate limit server has said of a request.
const ROUTE: &str = "route: { cluster: app }";
const ROUTE_THAT_SHOWS_METADATA: &str = "route: { cluster: app }
                          response_headers_to_add:
                            - header:
                                key: x-tier
                                value: '%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:tier)%'";

/// An app behind a proxy that asks a rate limit server.
struct Site {
    url: String,
    ports: Vec<(u16, u16)>,
    server: Option<Child>,
    proxy: Child,
}

impl Site {
    /// Starts all. The proxy's files of `proxies/` come with other ports.
    async fn start(program: &str, files: &[&str], arguments: &[&str]) -> Self {
        let [grpc, http, app, listen, web] = [(); 5].map(|()| child::free_port());
        let ports = vec![
            (8081, grpc),
            (8080, http),
            (3000, app),
            (10001, app),
            (8090, listen),
            (10000, web),
        ];
        let folder = child::folder();
        for file in files {
            let mut text = fs::read_to_string(source().join("proxies").join(file)).unwrap();
            for (written, free) in &ports {
                text = text
                    .replace(
                        &format!("127.0.0.1:{written}"),
                        &format!("127.0.0.1:{free}"),
                    )
                    .replace(
                        &format!("port_value: {written} "),
                        &format!("port_value: {free} "),
                    );
            }
            // A machine that is busy must not make Envoy let a request pass.
            let text = text
                .replace("timeout: 0.1s", "timeout: 20s")
                .replace(ROUTE, ROUTE_THAT_SHOWS_METADATA);
            fs::write(folder.join(file), text).unwrap();
        }
        let is_envoy = program == "envoy";
        if !is_envoy {
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", app))
                .await
                .unwrap();
            let router = axum::Router::new().fallback(async || "hello\n");
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        let server = Some(start_server(&ports));
        let proxy = Child::start(
            folder.clone(),
            &child::program(program),
            arguments,
            &[("HOME", folder.to_str().unwrap())],
        );
        let url = format!("http://127.0.0.1:{}", if is_envoy { web } else { listen });
        let site = Self {
            url,
            ports,
            server,
            proxy,
        };
        site.until(200).await;
        site
    }

    /// Waits until a client that no test counts gets this status.
    async fn until(&self, status: u16) {
        let client = client_at(9);
        web::until(Duration::from_secs(30), "the proxy", async || {
            let answer = client.get(format!("{}/up", self.url)).send().await;
            match answer.map(|answer| answer.status().as_u16()) {
                Ok(got) if got == status => Ok(()),
                other => Err(format!("{other:?}: {}", self.proxy.output())),
            }
        })
        .await;
    }

    /// How many requests of each of four clients at once are admitted.
    async fn load(&self) -> Vec<usize> {
        let clients = (1..=4).map(|number| {
            let (client, url) = (client_at(number), self.url.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..REQUESTS {
                    let answer = client.get(&url).send().await.unwrap();
                    match answer.status().as_u16() {
                        200 => admitted += 1,
                        status => assert_eq!(status, 429),
                    }
                }
                admitted
            })
        });
        let mut admitted = Vec::new();
        for client in clients.collect::<Vec<_>>() {
            admitted.push(client.await.unwrap());
        }
        admitted
    }

    /// A client that waits for the time of `Retry-After` is admitted.
    async fn obeys_retry_after(&self, headers: &[&str]) {
        let (client, url) = (client_at(5), format!("{}/slow", self.url));
        assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
        let refused = client.get(&url).send().await.unwrap();
        assert_eq!(refused.status(), 429);
        for header in headers {
            assert!(
                refused.headers().contains_key(*header),
                "{header}: {:?}",
                refused.headers()
            );
        }
        let wait = refused.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((1..=2).contains(&wait), "{wait}");
        tokio::time::sleep(Duration::from_secs(wait)).await;
        assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
    }

    /// Stops and starts the server under load: meanwhile requests get the proxy's own status.
    async fn outlives_the_server(&mut self, without: u16) {
        let (client, url) = (client_at(6), self.url.clone());
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let load = tokio::spawn({
            async move {
                let mut statuses = std::collections::BTreeSet::new();
                while !*stopped.borrow() {
                    let answer = client.get(&url).send().await.expect("the proxy goes on");
                    statuses.insert(answer.status().as_u16());
                }
                statuses
            }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.server = None;
        self.until(without).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.server = Some(start_server(&self.ports));
        self.until(200).await;
        stop.send_replace(true);
        let mut expected = load.await.unwrap();
        [200, 429, without].iter().for_each(|status| {
            expected.remove(status);
        });
        assert!(expected.is_empty(), "other statuses: {expected:?}");
        // The limits are in force again, and counts of this memory begin anew.
        assert_eq!(self.load().await, [ADMITTED; 4]);
    }
}

fn start_server(ports: &[(u16, u16)]) -> Child {
    let program = std::env::var_os("THROTTLE_EXAMPLE_RATELIMIT_SERVER").map(PathBuf::from);
    let program = program.expect(
        "THROTTLE_EXAMPLE_RATELIMIT_SERVER names the program; `sh tests/extra.sh` builds it",
    );
    let folder = child::folder();
    fs::write(folder.join("limits.yaml"), LIMITS).unwrap();
    fs::write(folder.join("rules.toml"), RULES).unwrap();
    let of = |written| {
        let port = ports.iter().find(|(port, _)| *port == written).unwrap().1;
        format!("127.0.0.1:{port}")
    };
    let (grpc, http) = (of(8081), of(8080));
    fs::write(
        folder.join("throttle.toml"),
        "limits = \"limits.yaml\"\nrules = \"rules.toml\"",
    )
    .unwrap();
    let server = Child::start(
        folder,
        &program,
        &["throttle.toml"],
        &[
            ("RATELIMIT_GRPC", &grpc),
            ("RATELIMIT_HTTP", &http),
            ("RATELIMIT_ADMIN", "127.0.0.1:0"),
            ("RATELIMIT_DYNAMIC_METADATA", "true"),
        ],
    );
    server.wait_for_output("listening");
    server
}

/// A client at an address of its own.
fn client_at(number: u8) -> Client {
    let builder = Client::builder().no_proxy();
    builder
        .local_address(IpAddr::from([127, 0, 7, number]))
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_refuses_and_admits_exactly_as_the_limits_say() {
    let arguments = [
        "-c",
        "envoy.yaml",
        "--log-level",
        "error",
        "--use-dynamic-base-id",
    ];
    let mut site = Site::start("envoy", &["envoy.yaml"], &arguments).await;
    let answer = client_at(8).get(&site.url).send().await.unwrap();
    assert_eq!(answer.headers()["x-tier"], "plain");
    assert_eq!(site.load().await, [ADMITTED; 4]);
    site.obeys_retry_after(&["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"])
        .await;
    site.outlives_the_server(200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traefik_refuses_and_admits_exactly_as_the_limits_say() {
    let files = ["traefik.yml", "traefik-routes.yml"];
    let mut site = Site::start("traefik", &files, &["--configFile=traefik.yml"]).await;
    assert_eq!(site.load().await, [ADMITTED; 4]);
    site.obeys_retry_after(&["ratelimit", "ratelimit-policy"])
        .await;
    site.outlives_the_server(500).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caddy_refuses_and_admits_exactly_as_the_limits_say() {
    let arguments = ["run", "--config", "Caddyfile", "--adapter", "caddyfile"];
    let mut site = Site::start("caddy", &["Caddyfile"], &arguments).await;
    assert_eq!(site.load().await, [ADMITTED; 4]);
    site.obeys_retry_after(&["ratelimit", "ratelimit-policy"])
        .await;
    site.outlives_the_server(502).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_refuses_and_admits_exactly_as_the_limits_say() {
    let arguments = [
        "-p",
        ".",
        "-c",
        "nginx.conf",
        "-g",
        "daemon off; master_process off;",
    ];
    let mut site = Site::start("nginx", &["nginx.conf"], &arguments).await;
    assert_eq!(site.load().await, [ADMITTED; 4]);
    site.obeys_retry_after(&["ratelimit", "ratelimit-policy"])
        .await;
    site.outlives_the_server(500).await;
}

#[test]
fn image_and_manifest_pass_their_linters() {
    let path = |file: &str| source().join(file).to_str().unwrap().to_owned();
    for (program, arguments) in [
        ("hadolint", vec![path("Dockerfile")]),
        (
            "kubernetes-validate",
            vec!["--strict".to_owned(), path("kubernetes.yaml")],
        ),
    ] {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (succeeded, output) = child::run(program, &arguments, "");
        assert!(succeeded, "{output}");
    }
}
