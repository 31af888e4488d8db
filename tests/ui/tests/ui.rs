//! What the compiler tells a user who gets it wrong: each message must say what to write instead.
//!
//! The messages are those of Rust 1.95. With another version, look at what has changed and write
//! them anew with `TRYBUILD=overwrite cargo test -p throttle-ui-tests`.

#[test]
fn mistakes_are_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
