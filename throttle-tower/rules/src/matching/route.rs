//! The syntax of route templates, as axum 0.8 writes them. A template is compared as text, but for
//! the names of its parameters, so a wrong one would never match anything.

use std::borrow::Cow;

/// # Errors
///
/// What to write instead.
pub(super) fn check(template: &str) -> Result<(), String> {
    let Some(segments) = template.strip_prefix('/') else {
        return Err("it must start with /, as in \"/users/{id}\"".to_owned());
    };
    let segments: Vec<&str> = segments.split('/').collect();
    for (index, segment) in segments.iter().enumerate() {
        check_segment(segment, index + 1 == segments.len())?;
    }
    Ok(())
}

fn check_segment(segment: &str, is_last: bool) -> Result<(), String> {
    if let Some(name) = segment.strip_prefix(':') {
        return Err(format!(
            "axum 0.8 writes parameters in braces; write {{{name}}} instead of :{name}"
        ));
    }
    if let Some(name) = segment.strip_prefix('*') {
        let name = if name.is_empty() { "rest" } else { name };
        return Err(format!(
            "axum 0.8 writes wildcards in braces; write {{*{name}}}, or use paths for patterns"
        ));
    }
    if segment.contains(['?', '#']) {
        return Err("a route has no query; write the path alone".to_owned());
    }
    let (text, parameter) = match parameter_start(segment) {
        Some(start) => (&segment[..start], Some(&segment[start + 1..])),
        None => (segment, None),
    };
    // Doubled braces stand for themselves.
    if text.replace("}}", "").contains('}') {
        return Err(braces());
    }
    let Some(parameter) = parameter else {
        return Ok(());
    };
    let (name, rest) = parameter.split_once('}').ok_or_else(braces)?;
    if rest.starts_with('}') {
        return Err(braces());
    }
    if !rest.is_empty() {
        return Err(
            "a parameter is the last of its segment, so axum refuses this route; end the \
            segment after the }"
                .to_owned(),
        );
    }
    let name = match name.strip_prefix('*') {
        Some(_) if !is_last => return Err("a wildcard must be the last segment".to_owned()),
        Some(name) => name,
        None => name,
    };
    if name.is_empty() || name.contains(['{', '*']) {
        return Err("a parameter has a name, as in {id} or {*rest}".to_owned());
    }
    Ok(())
}

/// The template without the names of its parameters: those of the file need not be those of the
/// program.
pub(super) fn without_names(template: &str) -> Cow<'_, str> {
    if !template.contains('{') {
        return template.into();
    }
    template
        .split('/')
        .map(segment_without_name)
        .collect::<Vec<_>>()
        .join("/")
        .into()
}

fn segment_without_name(segment: &str) -> Cow<'_, str> {
    match parameter_start(segment) {
        Some(start) if segment.ends_with('}') => {
            let is_wildcard = segment[start + 1..].starts_with('*');
            format!(
                "{}{}",
                &segment[..start],
                if is_wildcard { "{*}" } else { "{}" }
            )
            .into()
        }
        _ => segment.into(),
    }
}

/// Where the first brace is that is not doubled.
fn parameter_start(segment: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let brace = from + segment[from..].find('{')?;
        if !segment[brace + 1..].starts_with('{') {
            return Some(brace);
        }
        from = brace + 2;
    }
}

fn braces() -> String {
    "its braces do not match; write a parameter as in {id}".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_axum_are_accepted() {
        for template in [
            "/",
            "/login",
            "/users/{id}",
            "/users/{id}/password",
            "/files/{*path}",
            "/a/{{b}}",
            "/v1/{a}/{b}",
            "/a/",
            "/@{user}",
        ] {
            assert_eq!(check(template), Ok(()), "{template}");
        }
    }

    #[test]
    fn wrong_template_is_told_what_to_write() {
        for (template, remedy) in [
            ("/users/:id", "write {id} instead of :id"),
            ("/files/*path", "write {*path}"),
            ("/files/*", "write {*rest}"),
            ("users", "start with /"),
            ("", "start with /"),
            (
                "/users/{id",
                "its braces do not match; write a parameter as in {id}",
            ),
            ("/users/id}", "braces do not match"),
            ("/users/{}", "a parameter has a name, as in {id} or {*rest}"),
            ("/users/{*}", "has a name"),
            ("/{*rest}/users", "last segment"),
            ("/users?id=1", "no query"),
            ("/users/{id}.json", "end the segment after the }"),
            ("/a/{x}{y}", "end the segment after the }"),
            ("/a/{x}{{", "end the segment after the }"),
            ("/a/{x}}}", "braces do not match"),
            ("/a}{x}", "braces do not match"),
        ] {
            let error = check(template).unwrap_err();
            assert!(error.contains(remedy), "{template}: {error}");
        }
    }

    #[test]
    fn template_is_the_same_whatever_its_parameters_are_called() {
        for (template, expected) in [
            ("/", "/"),
            ("/login", "/login"),
            ("/users/{id}", "/users/{}"),
            ("/users/{id}/posts/{post}", "/users/{}/posts/{}"),
            ("/files/{*path}", "/files/{*}"),
            ("/@{user}", "/@{}"),
            ("/a/{{b}}", "/a/{{b}}"),
            ("/a/{{{b}", "/a/{{{}"),
            ("/a/{", "/a/{"),
            ("/a/{{", "/a/{{"),
        ] {
            assert_eq!(without_names(template), expected, "{template}");
        }
    }

    #[test]
    fn template_that_axum_refuses_is_told_what_to_write() {
        for (template, remedy) in [
            ("/users#a", "no query"),
            ("/{a{b}", "has a name"),
            ("/{a*}", "has a name"),
            ("/{**rest}", "has a name"),
            ("/{a}}", "braces do not match"),
            ("/{*rest}/", "last segment"),
            ("/a/:", "write {} instead of :"),
        ] {
            let error = check(template).unwrap_err();
            assert!(error.contains(remedy), "{template}: {error}");
        }
        for template in ["/a:b", "/a*", "/{{", "/}}", "/{{{a}"] {
            assert_eq!(check(template), Ok(()), "{template}");
        }
    }
}
