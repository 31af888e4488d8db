use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use throttle_tower::LimitReport;

use crate::App;
use crate::accounts::Accounts;
use crate::error::ApiError;

#[derive(Deserialize)]
pub(crate) struct Login {
    user: String,
    password: String,
}

/// Counts wrong passwords of each name. The address was limited before, so that one client cannot
/// try many names.
pub(crate) async fn login(
    State(app): State<App>,
    Json(login): Json<Login>,
) -> Result<Json<Value>, ApiError> {
    let name = Accounts::canonical(&login.user);
    // Charged before the password is checked: guesses that come at the same time count as well.
    let (decision, charge) = app.failed_logins.charge(name.as_str(), 1);
    if !decision.is_admitted() {
        let report = LimitReport::of(app.failed_logins.set(), decision);
        return Err(ApiError::TooManyRequests(Box::new(report)));
    }
    let token = app
        .accounts
        .log_in(&name, &login.password)
        .ok_or(ApiError::Unauthorized)?;
    if let Some(charge) = charge {
        charge.refund_now();
    }
    Ok(Json(json!({ "token": token })))
}
