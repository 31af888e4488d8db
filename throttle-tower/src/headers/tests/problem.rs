use serde_json::{Value, json};

use super::*;
use crate::headers::Problem;

#[test]
fn problem_bodies_are_those_of_the_registered_types() {
    assert_eq!(Problem::CONTENT_TYPE, "application/problem+json");
    assert_eq!(
        Problem::QuotaExceeded.body(["per-ip"]),
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["per-ip"]}"#
    );
    assert_eq!(
        Problem::TemporaryReducedCapacity.body(["global"]),
        r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity","status":503,"violated-policies":["global"]}"#
    );
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
