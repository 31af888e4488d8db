mod beside_a_refusal;
mod dialects;
mod draft11;
mod existing_list;
mod existing_set;
mod older_drafts;
mod openai;
mod policy_lists;
mod problem;
mod quota;
mod retry_after;
mod shared_cache;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use sfv::{BareItem, FieldType, Item, List, ListEntry, Parser};

use super::dialect::{Dialect, ResetFormat};
use super::header_content::HeaderContent;
use super::policy_status::QuotaWindow;
use super::policy_status::{PolicyStatus, PolicyTerms};
use super::retry_after::RetryAfter;
use super::value_text::MAX_INTEGER;
use crate::json::quoted;

/// The moment at which the example responses are written.
const NOW_US: u64 = 1_795_167_174_000_000;

fn terms(name: &str, q: u64, w: u64) -> PolicyTerms {
    PolicyTerms {
        number: 0,
        name: quoted(name).into(),
        quota: QuotaWindow { q, w, most: q },
        unit: None,
        class: None,
    }
}

/// Statuses are made where they are used, so that tests can change one.
fn leaked(terms: PolicyTerms) -> &'static PolicyTerms {
    Box::leak(Box::new(terms))
}

fn open(terms: PolicyTerms, remaining: u64, us: u64) -> PolicyStatus<'static> {
    let terms = leaked(terms);
    PolicyStatus {
        terms,
        remaining,
        effective_us: us,
        reset_us: us,
        violated: false,
        retry_us: None,
    }
}

fn shut(terms: PolicyTerms, wait_us: u64) -> PolicyStatus<'static> {
    let (terms, retry_us) = (leaked(terms), Some(wait_us));
    PolicyStatus {
        terms,
        remaining: 0,
        effective_us: wait_us,
        reset_us: wait_us,
        violated: true,
        retry_us,
    }
}

fn answer(headers: &mut HeaderMap, dialect: Dialect, lines: &[PolicyStatus<'_>]) {
    let admitted = !lines.iter().any(|line| line.violated);
    let report = HeaderContent {
        policies: lines,
        admitted,
        retry_after: longest_wait(lines),
        now_unix_us: NOW_US,
    };
    write(
        headers,
        &(dialect, (dialect.form().policies)(lines)),
        &report,
    );
}

/// Writes a decision in a dialect, with a list of policies.
fn write(
    headers: &mut HeaderMap,
    (dialect, policies): &(Dialect, Option<HeaderValue>),
    decision: &HeaderContent<'_>,
) {
    dialect.form().write(headers, decision, policies.clone());
}

/// The longest wait of the violated, as an `all` waits.
fn longest_wait(lines: &[PolicyStatus<'_>]) -> Option<RetryAfter> {
    let waits = lines
        .iter()
        .filter(|line| line.violated)
        .map(|line| line.retry_us);
    waits
        .reduce(|longest, wait| Some(longest?.max(wait?)))?
        .map(RetryAfter::from_micros)
}

fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut fields: Vec<_> = headers
        .iter()
        .map(|(name, value)| {
            (
                name.to_string(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect();
    fields.sort();
    fields
}

fn owned<const N: usize>(fields: [(&str, &str); N]) -> Vec<(String, String)> {
    fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn with<const N: usize>(lines: [(&'static str, &str); N]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(
            HeaderName::from_static(name),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    headers
}

/// The lines of a list field, put together as a client must.
fn combined(headers: &HeaderMap, name: &str) -> Vec<u8> {
    let lines: Vec<&[u8]> = headers
        .get_all(name)
        .into_iter()
        .map(HeaderValue::as_bytes)
        .collect();
    lines.join(&b", "[..])
}

fn parsed<T: FieldType>(bytes: &[u8]) -> T {
    Parser::new(bytes)
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", bytes.escape_ascii()))
}

fn item(entry: &ListEntry) -> &Item {
    match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("an inner list"),
    }
}

fn name_of(entry: &ListEntry) -> String {
    item(entry)
        .bare_item
        .as_string()
        .expect("a string")
        .as_str()
        .to_owned()
}

/// The name of a line's policy.
fn own_name(line: &PolicyStatus<'_>) -> String {
    name_of(&parsed::<List>(line.terms.name.as_bytes())[0])
}

fn count_of(entry: &ListEntry, key: &str) -> Option<u64> {
    let value = item(entry).params.get(key).and_then(BareItem::as_integer)?;
    u64::try_from(i64::from(value)).ok()
}

fn names_of(list: &List) -> Vec<String> {
    list.iter().map(name_of).collect()
}

/// Numbers of every magnitude, and the ones next to a limit.
fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        (any::<u64>(), 0_u32..64).prop_map(|(n, bits)| n >> bits),
        prop::sample::select(vec![
            0,
            1,
            999_999,
            1_000_000,
            1_000_001,
            999_999_999_999_999,
            1_000_000_000_000_000,
            u64::MAX,
        ]),
    ]
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{1,64}", r#"["\\,;a ]{1,8}"#, "[ab]"]
}

prop_compose! {
    fn any_numbers()(n: [u64; 5], bits in prop::array::uniform5(0_u32..64), violated: bool, helps: bool)
        -> ([u64; 5], bool, bool) {
        (std::array::from_fn(|at| n[at] >> bits[at]), violated, helps)
    }
}

fn line_of(name: &str, (n, violated, helps): ([u64; 5], bool, bool)) -> PolicyStatus<'static> {
    let terms = leaked(terms(
        name,
        n[0].min(MAX_INTEGER),
        n[1].clamp(1, MAX_INTEGER),
    ));
    let retry_us = (violated && helps).then_some(n[3]);
    // A violated policy is described by its wait.
    let effective_us = retry_us.unwrap_or(n[3]);
    PolicyStatus {
        terms,
        remaining: n[2],
        effective_us,
        reset_us: n[4],
        violated,
        retry_us,
    }
}
