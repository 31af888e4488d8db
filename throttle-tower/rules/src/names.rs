//! Which name was probably meant.

use super::shown::shorten;

/// Most letters that differ in a name that is suggested.
const MOST_EDITS: usize = 2;

/// Most letters of a name that is compared with others: a file may hold a name of a mebibyte.
const LONGEST: usize = 128;

/// The known name that is nearest to `name`, if at most two letters were added, left out, changed
/// or swapped.
pub(super) fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let length = name.chars().take(LONGEST + 1).count();
    if length > LONGEST {
        return None;
    }
    let candidates = known.into_iter().map(|known| (edits(name, known), known));
    // A name of two letters is not meant by two others.
    let near = candidates.filter(|(edits, known)| {
        *edits <= MOST_EDITS && *edits < length.min(known.chars().count())
    });
    near.min_by_key(|(edits, _)| *edits).map(|(_, known)| known)
}

/// `; did you mean "…"?`, or nothing.
pub(super) fn did_you_mean<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    nearest(name, known).map_or_else(String::new, |known| {
        format!(
            "; did you mean {}?",
            shorten(known, |known| format!("{known:?}"))
        )
    })
}

/// Names as a list for a message. The first 12 are enough to see what is meant.
pub(super) fn listed<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<String> = names
        .into_iter()
        .map(|name| shorten(name, str::to_owned))
        .collect();
    match names.as_slice() {
        [] => "(none)".to_owned(),
        [first @ .., _] if first.len() >= 12 => {
            format!("{}, and {} more", names[..12].join(", "), names.len() - 12)
        }
        _ => names.join(", "),
    }
}

/// The edit distance, in which two swapped neighbours are one edit. It is not computed of names
/// that are of unlike lengths: a letter has at most four bytes.
pub(super) fn edits(one: &str, other: &str) -> usize {
    match one.len().abs_diff(other.len()) {
        far if far > 4 * MOST_EDITS => far,
        _ => strsim::osa_distance(one, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_at_most_two_edits_away() {
        let known = ["client-ip", "constant", "by", "api-key"];
        assert_eq!(nearest("client_ip", known), Some("client-ip"));
        assert_eq!(nearest("clientip", known), Some("client-ip"));
        assert_eq!(nearest("api-kye", known), Some("api-key"));
        assert_eq!(nearest("apk", known), None);
        assert_eq!(nearest("xy", known), Some("by"));
        assert_eq!(nearest("xx", known), None, "as many edits as letters");
        assert_eq!(nearest("clietn-pi", known), Some("client-ip"), "swapped");
        assert_eq!(nearest("lcietn-pi", known), None, "three edits");
        assert_eq!(nearest(&"x".repeat(1 << 20), ["x"]), None);
    }

    #[test]
    fn list_is_short() {
        let many: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        assert_eq!(
            listed(many.iter().map(String::as_str)),
            "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, and 18 more"
        );
        assert!(listed([&*"x".repeat(1_000)]).len() < 100);
        assert_eq!(
            (listed(["a", "b"]), listed([])),
            ("a, b".to_owned(), "(none)".to_owned())
        );
    }

    #[test]
    fn nearest_of_several_is_suggested() {
        assert_eq!(nearest("lmit", ["limits", "limit"]), Some("limit"));
        assert_eq!(
            nearest("rat", ["rate", "rats"]),
            Some("rate"),
            "the first of two that are as near"
        );
        assert_eq!(did_you_mean("rtae", ["rate"]), "; did you mean \"rate\"?");
        assert_eq!(did_you_mean("far", ["rate"]), "");
        assert_eq!(
            did_you_mean("a\"b", ["a\"\\\u{1b}b"]),
            r#"; did you mean "a\"\\\u{1b}b"?"#,
            "escaped"
        );
        let long = "x".repeat(LONGEST);
        assert_eq!(
            nearest(&long, [&*format!("{}y", &long[1..])]).map(str::len),
            Some(LONGEST)
        );
        assert_eq!(
            nearest(&format!("{long}x"), [&*long]),
            None,
            "too long to be compared"
        );
    }
}
