use bytes::Bytes;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The content security policy of the page: its own style and script by their hashes, its own
/// server, nothing else. Text never becomes markup. A test compares the hashes with the files, and
/// prints the right ones.
pub(super) const POLICY: &str = concat!(
    "default-src 'none'; style-src 'sha256-DWGWxZTWe8Hj4ow8LAtod/2ucQ/Uf+R5wPJXbTuoiEE='; ",
    "script-src 'sha256-v8mWwkFEgMfzF7lpWpWDeidfPlfCduuJzg3igRh09OA='; img-src data:; connect-src \
        'self'; ",
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for \
        'script'; trusted-types 'none'"
);

/// The page, in one document.
pub(super) fn document() -> Bytes {
    PAGE.replace("@style@", STYLE)
        .replace("@script@", SCRIPT)
        .into()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn base64(bytes: &[u8]) -> String {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let of_three = |three: &[u8]| {
            let bits = three
                .iter()
                .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - three.len()));
            let digit = |n: usize| char::from(digits[(bits >> (18 - 6 * n)) as usize & 63]);
            (0..4)
                .map(|n| if n <= three.len() { digit(n) } else { '=' })
                .collect::<String>()
        };
        bytes.chunks(3).map(of_three).collect()
    }

    #[test]
    fn policy_allows_one_style_and_one_script_by_their_hashes() {
        for (directive, text) in [("style-src", STYLE), ("script-src", SCRIPT)] {
            let expected = format!("{directive} 'sha256-{}';", base64(&Sha256::digest(text)));
            assert!(POLICY.contains(&expected), "{expected} is missing");
        }
        assert!(POLICY.starts_with("default-src 'none'; "));
        assert!(!POLICY.contains("unsafe") && !POLICY.contains('*'));
    }

    #[test]
    fn document_has_its_style_and_script_and_names_nothing_outside() {
        let page = String::from_utf8(document().to_vec()).unwrap();
        assert!(
            page.contains(&format!("<style>{STYLE}</style>"))
                && page.contains(&format!("<script>{SCRIPT}</script>"))
        );
        for outside in [
            "http:", "https:", "ws:", "url(", "@import", "src=", "srcset", "@style@", "@script@",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<link").count(), 1);
        assert!(page.contains(r#"<link rel="icon" href="data:image/png;base64,"#));
        assert_eq!(
            (
                page.matches("<style").count(),
                page.matches("<script").count()
            ),
            (1, 1)
        );
    }

    /// The policy would block them, and they would be the way in for text that a client wrote.
    #[test]
    fn text_never_becomes_markup() {
        for sink in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            "DOMParser",
        ] {
            assert!(!SCRIPT.contains(sink), "{sink}");
        }
        let mut words = PAGE.split_whitespace().filter(|word| word.contains('='));
        let in_attribute = words.find(|word| word.starts_with("style=") || word.starts_with("on"));
        assert_eq!(
            in_attribute, None,
            "neither a style nor a handler is in an attribute"
        );
    }
}
