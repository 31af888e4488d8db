//! Reads any text as a rule file: it is accepted, or refused where it is wrong, and the same each
//! time.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use throttle_fuzz::{backend, check_error, rules};

fn read(text: &str) {
    let (first, second) = (rules(text), rules(text));
    match (first, second) {
        (Ok(first), Ok(second)) => {
            assert_eq!(format!("{first:?}"), format!("{second:?}"));
            // What a file may say, a backend that cannot fail may still refuse.
            if let Err(error) = first.layer(backend()) {
                check_error(&error, text);
                assert_eq!(error, second.layer(backend()).expect_err("the same error"));
            }
        }
        (Err(first), Err(second)) => {
            check_error(&first, text);
            assert_eq!(first, second);
        }
        (first, _) => panic!("accepted and refused: {first:?}"),
    }
}

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(text) = str::from_utf8(bytes) else {
        return Corpus::Reject;
    };
    read(text);
    Corpus::Keep
});
