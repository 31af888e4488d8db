//! A Prometheus server that scrapes programs on this machine.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use reqwest::{Client, Method, Url};
use serde_json::Value;

use crate::child::{self, Child};
use crate::web;

pub struct Prometheus {
    url: String,
    client: Client,
    _child: Child,
}

impl Prometheus {
    /// Starts a server that scrapes these addresses every second, and evaluates these rules.
    /// Returns when it is ready.
    pub async fn start(addresses: &[&str], rules: &Path) -> Self {
        let (folder, address) = (child::folder(), format!("127.0.0.1:{}", child::free_port()));
        let mut config = "global: { scrape_interval: 1s, evaluation_interval: 1s }\n".to_owned();
        let _ = writeln!(
            config,
            "rule_files: [{:?}]",
            rules.canonicalize().expect(
                "a file of \
            rules"
            )
        );
        config += "scrape_configs:\n";
        for (number, target) in addresses.iter().enumerate() {
            let _ = writeln!(
                config,
                "- job_name: job-{number}\n  static_configs: [{{ targets: \
                [{target:?}] }}]"
            );
        }
        fs::write(folder.join("prometheus.yml"), config).expect("a temporary folder");
        let arguments = [
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            &format!("--web.listen-address={address}"),
        ];
        let child = Child::start(folder, &child::program("prometheus"), &arguments, &[]);
        let (url, client) = (format!("http://{address}"), web::client());
        web::until(Duration::from_secs(30), "Prometheus", async || {
            web::text(&client, &format!("{url}/-/ready"))
                .await
                .map_err(|error| format!("{error}\n{}", child.output()))
        })
        .await;
        Self {
            url,
            client,
            _child: child,
        }
    }

    /// The values of the series that an expression has now.
    pub async fn query(&self, expression: &str) -> Result<Vec<f64>, String> {
        let url = Url::parse_with_params(
            &format!("{}/api/v1/query", self.url),
            [("query", expression)],
        );
        let data = self
            .get(url.expect("the address of the server").as_str())
            .await?;
        let result = data["result"].as_array().ok_or("no result")?.iter();
        let value = |series: &Value| {
            series["value"][1]
                .as_str()
                .and_then(|value| value.parse().ok())
        };
        result
            .map(|series| value(series).ok_or_else(|| format!("not a value: {series}")))
            .collect()
    }

    /// The alerting rules.
    pub async fn rules(&self) -> Result<Vec<Value>, String> {
        let data = self.get(&format!("{}/api/v1/rules", self.url)).await?;
        let groups = data["groups"].as_array().ok_or("no groups")?.iter();
        Ok(groups
            .flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default())
            .collect())
    }

    async fn get(&self, url: &str) -> Result<Value, String> {
        let (_, mut answer) = web::json(&self.client, Method::GET, url, None).await?;
        if answer["status"] == "success" {
            Ok(answer["data"].take())
        } else {
            Err(answer.to_string())
        }
    }
}
