use super::Config;

fn error(files: &[&str]) -> String {
    let mut config = Config::new(false);
    for file in files {
        if let Err(error) = config.add("limits.yaml", file) {
            return error.to_string();
        }
    }
    panic!("no error in {files:?}");
}

/// What is wrong, where it is, and a word of the remedy.
#[test]
fn wrong_file_is_an_error_with_line_and_column() {
    for (file, place, word) in [
        ("domain: ''", "1:9", "empty"),
        ("domain: a\ndescriptors:\n  - key: ''", "3:10", "empty"),
        (
            "domain: a\ndescriptors:\n  - key: k\n    ratelimit: {}",
            "4:5",
            "ratelimit",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit:\n      requestsperunit: 5",
            "5:7",
            "requestsperunit",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: fortnight }",
            "4:25",
            "fortnight",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: unknown }",
            "4:25",
            "unknown",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { requests_per_unit: 1 }",
            "4:17",
            "unit is missing",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unlimited: true, unit: day }",
            "4:42",
            "unlimited",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    value: v\n  - key: k_v",
            "5:10",
            "twice",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    share_threshold: true",
            "3:10",
            "asterisk",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, name: n, replaces: [{ name: n }] }",
            "4:58",
            "itself",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, replaces: [{ name: '' }] }",
            "4:49",
            "empty",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, algorithm: leaky }",
            "4:41",
            "leaky",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 1, burst: 5 }",
            "4:17",
            "burst",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: hour, requests_per_unit: 1, algorithm: calendar-quota }",
            "4:17",
            "month",
        ),
        (
            "domain: a\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 1, algorithm: sliding-log, charge_refused: true }",
            "4:17",
            "charge_refused",
        ),
        ("domain: a\ndescriptors:\n  - a\n  - b", "3:5", ""),
        ("0.25: a\ndescriptors: []", "1:1", ""),
        ("domain: a\ndomain: b", "2:1", "domain"),
        ("domain: [", "", ""),
        ("'''", "", ""),
    ] {
        let error = error(&[file]);
        assert!(
            error.starts_with(&format!("limits.yaml:{place}")) && error.contains(word),
            "{file}\n{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
    assert!(
        error(&["domain: a", "domain: a"])
            .starts_with("limits.yaml:1:9: domain \"a\" is in another file")
    );
}

#[test]
fn scalar_values_are_texts() {
    let mut config = Config::new(false);
    let file = "domain: 1\ndescriptors:\n  - key: status\n    value: 404\n    rate_limit: { unit: DAY, requests_per_unit: 1 }";
    config.add("limits.yaml", file).unwrap();
    assert!(
        config
            .dump()
            .starts_with("1.status_404: unit=DAY requests_per_unit=1 algorithm=fixed_window"),
        "{}",
        config.dump()
    );
}
