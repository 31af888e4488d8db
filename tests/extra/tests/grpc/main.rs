//! gRPC clients that people use, against refusals. A table in the documentation of
//! `Refusal::grpc_response` says what each does.

mod exporters;
mod server;
mod web;

use serde_json::{Value, json};
use throttle_extra::sdk::{self, Language};

use server::{Server, Throttle};

/// The names of the two clients, and their programs.
const CLIENTS: [(Language, &str, &str); 2] = [
    (Language::Python, "grpcio", "grpc_client.py"),
    (Language::JavaScript, "grpc-js", "grpc_client.mjs"),
];

/// An hour, less what the test takes.
fn is_about_an_hour(millis: &Value) -> bool {
    (3_500_000..=3_600_000).contains(&millis.as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_read_why_they_are_refused() {
    let server = Server::start(Throttle::BeforeTonicWeb).await;
    for (language, name, script) in CLIENTS {
        let client = format!("hour/{name}");
        // The last message is larger than what a client may send before the server has read some of
        // it.
        let said = sdk::json(
            language,
            script,
            &[&server.address.to_string(), &client, "0,0,1000000"],
        )
        .await;
        assert_eq!(said[0]["code"], 0, "{name}: {said}");
        let seen = server.seen(&client);
        assert_eq!(seen.len(), 3, "{name}: {seen:?}");
        for (said, seen) in said.as_array().unwrap().iter().zip(seen).skip(1) {
            assert_eq!(
                (&said["code"], &said["message"]),
                (
                    &json!(8),
                    &json!(
                        "quota exceeded: \
                hour"
                    )
                ),
                "{name}"
            );
            match language {
                Language::Python => reads_all_details(said),
                Language::JavaScript => {
                    assert_eq!(
                        said["details"].as_str().unwrap().trim_end_matches('='),
                        seen.details.unwrap()
                    )
                }
            }
        }
    }
}

fn reads_all_details(said: &Value) {
    assert_eq!(
        said["types"],
        json!([
            "google.rpc.RetryInfo",
            "google.rpc.QuotaFailure",
            "google.rpc.ErrorInfo"
        ])
    );
    assert!(is_about_an_hour(&said["delay"]), "{said}");
    assert_eq!(
        said["violations"],
        json!([["hour", "no more than 1 requests in 3600 s"]])
    );
    assert_eq!(
        said["info"],
        json!(["QUOTA_EXCEEDED", "throttle", { "policy": "hour", "limit": "1" }])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_policies_wait_as_long_as_the_refusal_states() {
    let server = Server::start(Throttle::BeforeTonicWeb).await;
    for (language, name, script) in CLIENTS {
        let client = format!("soon/{name}");
        let said = sdk::json(
            language,
            script,
            &[&server.address.to_string(), &client, "0,0,0", "retry"],
        )
        .await;
        assert_eq!(
            said,
            json!([{ "code": 0 }, { "code": 0 }, { "code": 0 }]),
            "{name}"
        );
        server.waited_as_told(&client);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_policies_give_up_where_no_wait_helps() {
    let server = Server::start(Throttle::BeforeTonicWeb).await;
    for (language, name, script) in CLIENTS {
        let client = format!("never/{name}");
        let said = sdk::json(
            language,
            script,
            &[&server.address.to_string(), &client, "0", "retry"],
        )
        .await;
        assert_eq!(
            (&said[0]["code"], &said[0]["message"]),
            (
                &json!(8),
                &json!(
                    "quota exceeded: \
            never"
                )
            ),
            "{name}"
        );
        let seen = server.seen(&client);
        assert_eq!(
            seen.iter().map(|seen| seen.pushback).collect::<Vec<_>>(),
            [Some(-1)],
            "{name}"
        );
    }
}
