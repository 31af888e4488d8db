//! TLS takes its cryptography from the provider of the process. It panics if several are compiled
//! in and none is chosen.

use std::process::Command;

use rustls::crypto::CryptoProvider;
use throttle_redis::{Cluster, Pool, Sentinel, Single};

const CONNECTOR: &str = "THROTTLE_TEST_CONNECTOR";
const URL: &str = "rediss://redis.internal";

/// A process for each, because a process keeps its provider.
#[test]
fn each_connector_chooses_a_provider_for_a_process_that_has_none() {
    if let Ok(name) = std::env::var(CONNECTOR) {
        assert!(CryptoProvider::get_default().is_none());
        let made = match name.as_str() {
            "single" => Single::new(URL).is_ok(),
            "pool" => Pool::new(URL, 3).is_ok(),
            "cluster" => Cluster::new([URL]).is_ok(),
            "sentinel" => Sentinel::new([URL], "main", None).is_ok(),
            _ => false,
        };
        assert!(made && CryptoProvider::get_default().is_some());
        return;
    }
    for name in ["single", "pool", "cluster", "sentinel"] {
        let this_test = [
            "--exact",
            "each_connector_chooses_a_provider_for_a_process_that_has_none",
        ];
        let run = Command::new(std::env::current_exe().unwrap())
            .args(this_test)
            .env(CONNECTOR, name)
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&run.stdout);
        assert!(
            run.status.success() && output.contains("1 passed"),
            "{name}: {output}"
        );
    }
}
