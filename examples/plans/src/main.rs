//! A rate-limited axum server whose limits depend on the plan of who asks. A plan can be changed while it runs: what was
//! used stays used.

use std::collections::HashMap;
use std::env::VarError;
use std::error::Error;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use throttle_tower::{Carry, Gcra, Header, LimitReport, Rate, ThrottleLayer, plans};
use tokio::net::TcpListener;

/// The plans, and what each may do in a minute.
const PLANS: [(&str, u64); 3] = [("free", 5), ("pro", 50), ("internal", 500)];

/// Who has which plan. A database, elsewhere.
#[derive(Clone, Default)]
struct Accounts(Arc<RwLock<HashMap<String, String>>>);

impl Accounts {
    /// The plan of an account. `None` for a stranger; an error would mean that the database did not answer.
    async fn plan_of(self, who: String) -> Result<Option<String>, std::io::Error> {
        Ok(self.0.read().unwrap_or_else(PoisonError::into_inner).get(&who).cloned())
    }

    fn change(&self, who: String, plan: String) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(who, plan);
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let port: u16 = match setting("PORT")? {
        None => 3003,
        Some(port) => port.parse().map_err(|_| format!("PORT is {port:?}: it must be a number from 0 to 65535"))?,
    };
    let app = app()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}; choose another port with PORT=…"))?;
    println!("listening on http://{}; stop with Ctrl-C", listener.local_addr()?);
    axum::serve(listener, app).with_graceful_shutdown(stopped()).await?;
    Ok(())
}

fn app() -> Result<Router, Box<dyn Error>> {
    let accounts = Accounts::default();
    let table = accounts.clone();
    let throttle = ThrottleLayer::new(
        plans("per-user", PLANS.map(|(plan, count)| (plan, Gcra::new(Rate::per_minute(count)))))
            .by(Header::new("x-api-key"))
            .lookup(move |who: String| table.clone().plan_of(who))
            .unknown("free")
            // A change of plan is seen after a second at the latest.
            .cache(10_000, Duration::from_secs(1))
            .on_change(Carry::Keep),
    )?;
    // Plans are changed beside the throttle, not through it. Whoever may do so, elsewhere.
    let limited = Router::new().route("/", get(hello)).layer(throttle);
    Ok(limited.route("/plan/{who}/{plan}", post(change)).with_state(accounts))
}

async fn hello(report: LimitReport) -> String {
    let plan = report.tier("per-user").unwrap_or("no");
    format!("hello; {plan} plan, {} requests left\n", report.decision().remaining())
}

async fn change(State(accounts): State<Accounts>, Path((who, plan)): Path<(String, String)>) -> (StatusCode, String) {
    if !PLANS.iter().any(|(name, _)| *name == plan) {
        return (StatusCode::NOT_FOUND, format!("there is no plan {plan:?}\n"));
    }
    let told = format!("{who} has the {plan} plan now\n");
    accounts.change(who, plan);
    (StatusCode::OK, told)
}

fn setting(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not Unicode")),
    }
}

async fn stopped() {
    // Without a signal handler there is nothing to wait for but the end.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
