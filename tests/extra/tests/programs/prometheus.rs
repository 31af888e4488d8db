//! A real Prometheus reads what the example says.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use throttle_extra::child;
use throttle_extra::example::{self, Example};
use throttle_extra::prometheus::Prometheus;
use throttle_extra::web;
use throttle_test_servers::Server;

fn dashboard() -> Value {
    let text = fs::read_to_string(example::source().join("grafana/throttle.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The panels that are not rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|panel| panel["type"] != "row")
        .collect()
}

/// The expressions of the dashboard, as Grafana fills them in when everything is selected.
fn expressions(dashboard: &Value) -> Vec<String> {
    let targets = panels(dashboard)
        .into_iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let fill = |expression: &str| {
        expression
            .replace("$__rate_interval", "5s")
            .replace("$layer", ".+")
            .replace("$backend", ".+")
    };
    targets
        .map(|target| fill(target["expr"].as_str().unwrap()))
        .collect()
}

/// An expression without the threshold at its end.
fn without_threshold(expression: &str) -> &str {
    let (vector, threshold) = expression
        .rsplit_once('>')
        .expect("an alert has a threshold");
    threshold
        .trim()
        .parse::<f64>()
        .expect("the threshold is a number");
    vector
}

#[tokio::test]
async fn every_panel_and_alert_has_series_in_a_prometheus() {
    let redis = Server::start();
    let memory = Example::start(&["--port", "0"], &[]);
    let shared = Example::start(&["--port", "0"], &[("REDIS_URL", &redis.url())]);
    let client = web::client();
    for example in [&memory, &shared] {
        let metrics = web::text(&client, &format!("{}/metrics", example.url))
            .await
            .unwrap();
        let (is_fine, said) = child::run("promtool", &["check", "metrics"], &metrics);
        assert!(is_fine && said.is_empty(), "{said}");
    }

    let addresses = [&memory, &shared].map(|example| example.url.trim_start_matches("http://"));
    let prometheus = Prometheus::start(&addresses, &example::source().join("alerts.yml")).await;
    let patience = Duration::from_secs(30);
    let rules = web::until(patience, "the first evaluation of the rules", async || {
        let rules = prometheus.rules().await?;
        match rules.iter().find(|rule| rule["health"] != "ok") {
            Some(rule) => Err(rule.to_string()),
            None => Ok(rules),
        }
    });
    let rules = rules.await;
    assert!(rules.len() >= 10, "{} alerts", rules.len());
    for rule in &rules {
        assert!(rule["duration"].as_f64() > Some(0.0), "{rule}");
        let severity = rule["labels"]["severity"].as_str();
        assert!(matches!(severity, Some("warning" | "critical")), "{rule}");
        for text in ["summary", "description"] {
            assert!(
                rule["annotations"][text]
                    .as_str()
                    .is_some_and(|text| text.len() > 20),
                "{rule}"
            );
        }
    }

    let alerts = rules
        .iter()
        .map(|rule| without_threshold(rule["query"].as_str().unwrap()).to_owned());
    let all: Vec<String> = expressions(&dashboard())
        .into_iter()
        .chain(alerts)
        .collect();
    assert!(all.len() > 40);
    for expression in all {
        web::until(patience, &expression, async || {
            let values = prometheus.query(&expression).await?;
            // A quotient of nothing is NaN, which a panel shows as nothing.
            if values.iter().any(|value| value.is_finite()) {
                Ok(())
            } else {
                Err(format!("{values:?}"))
            }
        })
        .await;
    }
}

/// A few requests are enough for the alert, and it does not end while Redis refuses.
#[tokio::test]
async fn breaker_alert_fires_while_redis_refuses_every_decision() {
    let redis = Server::start();
    let example = Example::start(
        &["--port", "0", "--no-load"],
        &[("REDIS_URL", &redis.url())],
    );
    let address = example.url.trim_start_matches("http://");
    let prometheus = Prometheus::start(&[address], &example::source().join("alerts.yml")).await;
    let client = web::client();
    let request = async || {
        let request = client.get(&example.url).header("x-api-key", "key_pro_me");
        let sent = request.send().await;
        sent.map(|response| response.status())
            .map_err(|error| error.to_string())
    };
    web::until(Duration::from_secs(10), "a decision", async || {
        request().await?;
        let decided = prometheus
            .query("sum(throttle_redis_decisions_total)")
            .await?;
        if decided.iter().any(|count| *count > 0.0) {
            Ok(())
        } else {
            Err(format!("{decided:?}"))
        }
    })
    .await;
    redis.config_set("min-replicas-to-write", "1");
    let state = async || {
        let rules = prometheus.rules().await?;
        let rule = rules
            .into_iter()
            .find(|rule| rule["name"] == "ThrottleBreakerOpen")
            .ok_or("no such alert")?;
        Ok::<_, String>(rule["state"].as_str().unwrap_or_default().to_owned())
    };
    let (began, mut requests) = (Instant::now(), 0);
    let mut states = Vec::new();
    while states.last().is_none_or(|state| state != "firing") {
        assert!(began.elapsed() < Duration::from_secs(100), "{states:?}");
        if began.elapsed() >= Duration::from_secs(5) * requests {
            requests += 1;
            let _ = request().await;
        }
        let state = state().await.unwrap();
        if states.last() != Some(&state) {
            states.push(state);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(states, ["inactive", "pending", "firing"]);
}

#[test]
fn promtool_accepts_the_configuration_and_the_rules() {
    let source = example::source();
    for (what, file) in [("config", "prometheus.yml"), ("rules", "alerts.yml")] {
        let file = source.join(file);
        let (is_fine, said) = child::run("promtool", &["check", what, file.to_str().unwrap()], "");
        assert!(is_fine && said.contains("SUCCESS"), "{said}");
    }
}

/// `promtool` evaluates each alert over series that are written down beside the rules.
#[test]
fn each_alert_fires_when_it_should_and_not_before() {
    let folder = child::folder();
    let rules = example::source().join("alerts.yml").canonicalize().unwrap();
    let tests = include_str!("alerts.yml").replace("@rules@", rules.to_str().unwrap());
    let file = folder.join("tests.yml");
    fs::write(&file, tests).unwrap();
    let (is_fine, said) = child::run("promtool", &["test", "rules", file.to_str().unwrap()], "");
    fs::remove_dir_all(folder).unwrap();
    assert!(is_fine && said.contains("SUCCESS"), "{said}");
    for alert in fs::read_to_string(&rules)
        .unwrap()
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert!(
            include_str!("alerts.yml").contains(&format!("alertname: {alert}\n")),
            "{alert} has no test"
        );
    }
}

#[test]
fn dashboard_asks_for_its_data_source_and_its_panels_do_not_overlap() {
    let dashboard = dashboard();
    let variables: BTreeSet<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        variables,
        BTreeSet::from(["backend", "datasource", "layer"])
    );
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "{}",
            panel["title"]
        );
        let [x, y, w, h] =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{}", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(
                cells.insert(cell),
                "{} covers another panel",
                panel["title"]
            );
        }
    }
    for panel in panels(&dashboard) {
        for source in panel["targets"].as_array().unwrap().iter().chain([panel]) {
            assert_eq!(
                source["datasource"]["uid"], "${datasource}",
                "{}",
                panel["title"]
            );
        }
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{}",
            panel["title"]
        );
    }
}
