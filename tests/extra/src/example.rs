//! The example of the repository, as a program.

use std::path::PathBuf;

use crate::child::{self, Child};

pub struct Example {
    pub url: String,
    _child: Child,
}

impl Example {
    /// Starts `examples/dashboard` with these arguments and this environment.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let built = std::env::var_os("THROTTLE_EXAMPLE");
        let program = PathBuf::from(built.expect(
            "THROTTLE_EXAMPLE names the program; `sh \
            tests/extra.sh` builds it",
        ));
        let child = Child::start(child::folder(), &program, arguments, environment);
        let output = child.wait_for_output("counted ");
        let url = output
            .split_whitespace()
            .find(|word| word.starts_with("http://"));
        Self {
            url: url
                .expect("the address that it prints")
                .trim_end_matches(';')
                .to_owned(),
            _child: child,
        }
    }
}

/// The folder of the example.
pub fn source() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/dashboard")
}
