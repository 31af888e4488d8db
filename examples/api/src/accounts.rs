//! Users and their tokens, in place of a database.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

/// The user whose request it is.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) id: u64,
    pub(crate) name: String,
}

struct Row {
    name: &'static str,
    password: &'static str,
    plan: &'static str,
}

/// The place of a row is its user's id. A real table has hashes of passwords.
const TABLE: [Row; 2] = [
    Row {
        name: "ada",
        password: "correct horse",
        plan: "free",
    },
    Row {
        name: "bob",
        password: "battery staple",
        plan: "pro",
    },
];

#[derive(Clone, Default)]
pub(crate) struct Accounts {
    users_of_tokens: Arc<Mutex<HashMap<String, User>>>,
}

impl Accounts {
    /// A name as the table has it. Limits by name use it as well: otherwise each spelling would be
    /// a new budget.
    pub(crate) fn canonical(name: &str) -> String {
        name.trim().to_lowercase()
    }

    /// A token, if the password is that of the user.
    pub(crate) fn log_in(&self, name: &str, password: &str) -> Option<String> {
        let (id, row) = TABLE
            .iter()
            .enumerate()
            .find(|(_, row)| row.name == name && row.password == password)?;
        let mut users = self
            .users_of_tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A real token cannot be guessed.
        let token = format!("token-{}", users.len());
        users.insert(
            token.clone(),
            User {
                id: id as u64,
                name: row.name.to_owned(),
            },
        );
        Some(token)
    }

    pub(crate) fn user_of(&self, token: &str) -> Option<User> {
        self.users_of_tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(token)
            .cloned()
    }

    /// The plan of a user. An error would mean that the database did not answer.
    pub(crate) async fn plan_of(self, id: String) -> Result<Option<&'static str>, Infallible> {
        Ok(id
            .parse()
            .ok()
            .and_then(|id: usize| Some(TABLE.get(id)?.plan)))
    }
}
