//! `examples/api` behind a real nginx, with the configuration in its folder.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use throttle_extra::child::{self, Child};
use throttle_extra::web;

/// The example and its proxy.
struct Site {
    url: String,
    _api: Child,
    _nginx: Child,
}

impl Site {
    async fn start() -> Self {
        let [api_port, port] = [child::free_port(), child::free_port()];
        let program = std::env::var_os("THROTTLE_EXAMPLE_API").map(PathBuf::from);
        let program = program.expect(
            "THROTTLE_EXAMPLE_API names the program; `sh tests/extra.sh` \
            builds it",
        );
        let api = Child::start(
            child::folder(),
            &program,
            &[],
            &[("PORT", &api_port.to_string())],
        );
        api.wait_for_output("listening on ");

        let folder = child::folder();
        let source =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/api/nginx.conf");
        let written = fs::read_to_string(source).unwrap();
        let configuration = written
            .replace(
                "server 127.0.0.1:3010;",
                &format!("server 127.0.0.1:{api_port};"),
            )
            .replace(
                "listen 127.0.0.1:8080;",
                &format!("listen 127.0.0.1:{port};"),
            );
        assert!(
            !configuration.contains(":3010")
                && configuration.contains(&format!(
                    "listen \
            127.0.0.1:{port};"
                ))
        );
        fs::write(folder.join("nginx.conf"), configuration).unwrap();
        let prefix = folder.to_str().unwrap().to_owned();
        // One process, which ends with the test.
        let arguments = [
            "-p",
            &prefix,
            "-c",
            "nginx.conf",
            "-g",
            "daemon off; master_process \
            off;",
        ];
        let nginx = Child::start(folder.clone(), &child::program("nginx"), &arguments, &[]);

        let url = format!("http://127.0.0.1:{port}");
        let client = web::client();
        web::until(Duration::from_secs(20), "nginx", async || {
            let response = client.get(format!("{url}/me")).send().await;
            response
                .map(drop)
                .map_err(|error| format!("{error}: {}", nginx.output()))
        })
        .await;
        Self {
            url,
            _api: api,
            _nginx: nginx,
        }
    }

    async fn log_in(
        &self,
        client: &Client,
        user: &str,
        forged: &str,
    ) -> (u16, Value, BTreeSet<String>) {
        let body = json!({ "user": user, "password": "a guess" });
        let request = client.request(Method::POST, format!("{}/login", self.url));
        let request = request
            .header("content-type", "application/json")
            .header("x-forwarded-for", forged);
        let response = request.body(body.to_string()).send().await.unwrap();
        let (status, headers) = (
            response.status().as_u16(),
            response.headers().keys().map(|name| name.to_string()),
        );
        let headers = headers.collect();
        (
            status,
            serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default(),
            headers,
        )
    }
}

/// A client at an address of its own.
fn client_at(address: [u8; 4]) -> Client {
    Client::builder()
        .no_proxy()
        .local_address(IpAddr::from(address))
        .build()
        .unwrap()
}

#[tokio::test]
async fn clients_behind_nginx_have_budgets_of_their_own_and_invent_no_others() {
    let site = Site::start().await;
    let [attacker, other] = [[127, 0, 0, 2], [127, 0, 0, 3]].map(client_at);
    let mut refused = None;
    // Twenty at once, and one more every six seconds.
    for n in 0..60 {
        let (status, body, headers) = site
            .log_in(
                &attacker,
                &format!("user {n}"),
                &format!("192.0.2.{n}, 198.51.100.{n}"),
            )
            .await;
        if status == 429 {
            refused = Some((n, body, headers));
            break;
        }
        assert_eq!((status, &body["error"]), (401, &json!("unauthorized")));
    }
    let (admitted, body, headers) = refused.expect("invented addresses buy nothing");
    assert!((20..40).contains(&admitted), "{admitted} were admitted");
    assert_eq!(body["error"], "too_many_requests");
    for name in ["ratelimit", "ratelimit-policy", "retry-after"] {
        assert!(
            headers.contains(name),
            "nginx passes on {name}: {headers:?}"
        );
    }
    assert_eq!(
        site.log_in(&other, "ada", "127.0.0.2").await.0,
        401,
        "another client, who claims \
        to be the first"
    );
}

#[tokio::test]
async fn failed_logins_of_one_name_are_counted_over_all_addresses() {
    let site = Site::start().await;
    let mut statuses = Vec::new();
    for n in 10..16 {
        statuses.push(site.log_in(&client_at([127, 0, 0, n]), "ada", "").await.0);
    }
    assert_eq!(statuses, [401, 401, 401, 401, 401, 429]);
    assert_eq!(
        site.log_in(&client_at([127, 0, 0, 10]), "bob", "").await.0,
        401
    );
}

#[tokio::test]
async fn health_checks_are_not_for_the_world() {
    let site = Site::start().await;
    let response = web::client()
        .get(format!("{}/health", site.url))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status().as_u16(), 404);
}
