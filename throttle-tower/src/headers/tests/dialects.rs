use super::*;

#[test]
fn dialect_is_read_from_the_word_that_it_writes() {
    for dialect in Dialect::ALL {
        let word = dialect.to_string();
        assert_eq!(word, dialect.as_str());
        assert_eq!(word.parse(), Ok(*dialect), "{word}");
        for other in [word.to_uppercase(), format!(" {word}"), format!("{word}s")] {
            assert!(other.parse::<Dialect>().is_err(), "{other:?}");
        }
    }
}

#[test]
fn unknown_dialect_is_an_error_that_names_all_words() {
    for text in ["", "draft-7", "\"none\""] {
        let error = text.parse::<Dialect>().unwrap_err();
        assert_eq!(error.field(), "dialect");
        assert_eq!(error.value(), format!("{text:?}"));
        for dialect in Dialect::ALL {
            assert!(error.to_string().contains(dialect.as_str()), "{error}");
        }
    }
}

/// The last is `Retry-After`, which all dialects share.
#[test]
fn each_header_of_a_dialect_but_the_last_has_a_schema() {
    for dialect in Dialect::ALL {
        let form = dialect.form();
        assert_eq!(form.schemas.len() + 1, form.exposed.len(), "{dialect}");
        assert_eq!(form.exposed.last(), Some(&http::header::RETRY_AFTER));
    }
}
