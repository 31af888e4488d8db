use serde_json::{Value, json};

use super::*;
use crate::headers::Problem;

#[test]
fn problem_bodies_are_those_of_the_registered_types() {
    assert_eq!(
        Problem::QuotaExceeded.body(["per-ip"]),
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["per-ip"]}"#
    );
    assert_eq!(
        Problem::TemporaryReducedCapacity.body(["global"]),
        r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity","status":503,"violated-policies":["global"]}"#
    );
}

#[test]
fn names_in_a_body_are_json_strings() {
    let names = ["", "\"", "\\", "a\"b\\c\"", "\0\u{1}\u{f}\u{10}\u{1a}\u{1f}", " !\u{7f}", "\u{e9}\u{1f980}", "plain"];
    for count in 0..=names.len() {
        let body = Problem::QuotaExceeded.body(names.into_iter().take(count));
        let parsed: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(parsed["violated-policies"], json!(&names[..count]));
    }
}

proptest! {
    #[test]
    fn attack_53_names_cannot_break_out_of_the_body(
        names in prop::collection::vec(prop_oneof![any_name(), any::<String>(), "[\\x00-\\x7f]{0,16}"], 0..5),
    ) {
        for problem in [Problem::QuotaExceeded, Problem::TemporaryReducedCapacity] {
            let body = problem.body(names.iter().map(String::as_str));
            let parsed: Value = serde_json::from_slice(&body).unwrap();
            prop_assert_eq!(&parsed["violated-policies"], &json!(names));
            prop_assert_eq!(&parsed["status"], problem.status().as_u16());
            prop_assert_eq!(parsed.as_object().unwrap().len(), 4);
        }
    }
}

#[test]
fn body_and_status_are_of_the_same_problem() {
    assert_eq!(Problem::CONTENT_TYPE, "application/problem+json");
    for (problem, status) in [(Problem::QuotaExceeded, 429), (Problem::TemporaryReducedCapacity, 503)] {
        assert_eq!(problem.status(), status);
        let body: Value = serde_json::from_slice(&problem.body(["a", "b"])).unwrap();
        assert_eq!((&body["status"], &body["violated-policies"]), (&json!(status), &json!(["a", "b"])));
    }
}
