//! A small app in a folder of its own, which cargo builds with a layer.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

pub const THROTTLE: &str = concat!(
    r#"tower-throttle = { path = ""#,
    env!("CARGO_MANIFEST_DIR"),
    r#"/../../throttle-tower", features = ["axum"] }"#
);
pub const TOWER_GOVERNOR: &str =
    r#"tower_governor = { version = "0.8", default-features = false, features = ["axum"] }"#;

/// Axum's hello.
pub const HELLO: &str = r#"
#[tokio::main]
async fn main() {
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
"#;

const MANIFEST: &str = r#"[workspace]
[package]
name = "hello"
version = "0.0.0"
edition = "2024"
[dependencies]
axum = "0.8"
tokio = { version = "1", features = ["macros", "net", "rt-multi-thread"] }
"#;

/// The folder is removed when the app is dropped.
pub struct SmallApp {
    pub folder: PathBuf,
}

impl SmallApp {
    /// Writes an app with one more dependency, and fetches its crates.
    pub fn new(dependency: &str, main: &str) -> Self {
        let folder = env::temp_dir().join(format!("throttle-peers-app-{}", process::id()));
        let files = [
            ("Cargo.toml", format!("{MANIFEST}{dependency}\n")),
            ("src/main.rs", main.to_owned()),
            // The same versions as here, so that nothing is chosen anew.
            ("Cargo.lock", include_str!("../../Cargo.lock").to_owned()),
        ];
        fs::create_dir_all(folder.join("src")).expect("a temporary folder");
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("the folder can be written");
        }
        let app = Self { folder };
        app.cargo(&["fetch"]);
        app
    }

    /// What cargo prints.
    pub fn cargo(&self, args: &[&str]) -> String {
        let output = Command::new("cargo")
            .args(args)
            .current_dir(&self.folder)
            .env_remove("CARGO_TARGET_DIR")
            .output()
            .expect("cargo runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("cargo prints text")
    }
}

impl Drop for SmallApp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
