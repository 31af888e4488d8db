//! Finds `redis-server`, or a compatible server.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The program in `THROTTLE_REDIS_SERVER`, or else the first `redis-server` of the `PATH`.
///
/// # Panics
///
/// If there is none: a test that needs a server must not pass without one.
pub(crate) fn redis_server() -> PathBuf {
    if let Some(named) = env::var_os("THROTTLE_REDIS_SERVER") {
        return named.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|folder| folder.join("redis-server"))
        .find(|file| file.is_file())
        .expect(
            "these tests need redis-server, and there is none in the PATH; install it by `apt-get \
            install redis-server` \
         (macOS: `brew install redis`), or run `sh tests/run.sh`, which does that first",
        )
}

/// Whether `DEBUG` must be enabled: from Redis 7 on, and in every Valkey. Redis 6.2 refuses the
/// option.
pub(crate) fn debug_must_be_enabled() -> bool {
    static NEW: OnceLock<bool> = OnceLock::new();
    *NEW.get_or_init(|| {
        let output = Command::new(redis_server())
            .arg("--version")
            .output()
            .expect("a server that can be started");
        !String::from_utf8_lossy(&output.stdout).contains(" v=6.")
    })
}
