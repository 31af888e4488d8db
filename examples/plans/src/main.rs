//! A rate-limited axum server whose limits depend on the customer's plan. A plan can change while
//! the server runs: the units that the customer has used stay used. A customer may also have a
//! number of its own instead of a plan.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use throttle_tower::plans::Tier;
use throttle_tower::{ConfigError, Gcra, Header, LimitReport, Rate, ThrottleLayer, plans};
use tokio::net::TcpListener;

/// The plans, and how many requests a minute each allows.
const PLANS: [(&str, u64); 3] = [("free", 5), ("pro", 50), ("internal", 500)];

/// The plan of each customer, in place of a database.
#[derive(Clone)]
struct Accounts(Arc<RwLock<HashMap<String, String>>>);

impl Accounts {
    /// Every customer is in the table, whatever its plan.
    fn new() -> Self {
        let rows = ["ada", "bob", "eve"].map(|customer| (customer.to_owned(), "free".to_owned()));
        Self(Arc::new(RwLock::new(HashMap::from(rows))))
    }

    /// The plan of a customer, or as many requests a minute as the customer's own row says; `None`
    /// if the customer is unknown. An error would mean that the database did not answer.
    async fn tier_of(self, customer: String) -> Result<Option<Tier>, std::io::Error> {
        let plan = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&customer)
            .cloned();
        let Some(plan) = plan else { return Ok(None) };
        Ok(Some(match plan.parse() {
            Ok(count) => Tier::own(Gcra::new(Rate::per_minute(count))),
            Err(_) => Tier::named(plan),
        }))
    }

    fn change(&self, customer: String, plan: String) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(customer, plan);
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port = std::env::var("PORT").unwrap_or_else(|_| "3003".to_owned());
    let port: u16 = port
        .parse()
        .with_context(|| format!("PORT is {port:?}: set a port number from 0 to 65535"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another, as in PORT=3004 cargo run")
        })?;
    println!(
        "listening on http://{}; stop with Ctrl-C",
        listener.local_addr()?
    );
    axum::serve(listener, app()?).await?;
    Ok(())
}

fn app() -> Result<Router, ConfigError> {
    let accounts = Accounts::new();
    let table = accounts.clone();
    let throttle = ThrottleLayer::new(
        plans(
            "per-user",
            PLANS.map(|(plan, count)| (plan, Gcra::new(Rate::per_minute(count)))),
        )
        .by(Header::new("x-api-key"))
        .lookup(move |customer: String| table.clone().tier_of(customer))
        // A change of plan takes effect within a second.
        .cache(10_000, Duration::from_secs(1))
        // An invented key must not come with a budget of its own: all of them share one.
        .unknown_as_missing()
        .unknown("free"),
    )?;
    // Plans change outside the throttle. A real server would also check that the caller may change
    // them.
    let limited = Router::new().route("/", get(hello)).layer(throttle);
    Ok(limited
        .route("/plan/{customer}/{plan}", post(change))
        .with_state(accounts))
}

async fn hello(report: LimitReport) -> String {
    let plan = report.tier("per-user").unwrap_or("no");
    format!(
        "hello; {plan} plan, {} requests left\n",
        report.decision().remaining()
    )
}

async fn change(
    State(accounts): State<Accounts>,
    Path((customer, plan)): Path<(String, String)>,
) -> (StatusCode, String) {
    let is_own = plan
        .parse()
        .is_ok_and(|count: u64| (1..=1_000_000).contains(&count));
    if !is_own && !PLANS.iter().any(|(name, _)| *name == plan) {
        return (
            StatusCode::NOT_FOUND,
            format!("there is no plan {plan:?}\n"),
        );
    }
    let done = format!("{customer} has the {plan} plan now\n");
    accounts.change(customer, plan);
    (StatusCode::OK, done)
}
