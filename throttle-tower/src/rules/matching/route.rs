//! The syntax of route templates, as axum 0.8 writes them. A template is compared as text, so a wrong one would never
//! match anything.

/// # Errors
///
/// What to write instead.
pub(super) fn check(template: &str) -> Result<(), String> {
    let Some(segments) = template.strip_prefix('/') else {
        return Err("it must start with /, as in \"/users/{id}\"".to_owned());
    };
    let segments: Vec<&str> = segments.split('/').collect();
    for (place, segment) in segments.iter().enumerate() {
        check_segment(segment, place + 1 == segments.len())?;
    }
    Ok(())
}

fn check_segment(segment: &str, is_last: bool) -> Result<(), String> {
    if let Some(name) = segment.strip_prefix(':') {
        return Err(format!("axum 0.8 writes parameters in braces; write {{{name}}} instead of :{name}"));
    }
    if let Some(name) = segment.strip_prefix('*') {
        let name = if name.is_empty() { "rest" } else { name };
        return Err(format!("axum 0.8 writes wildcards in braces; write {{*{name}}}, or use paths for patterns"));
    }
    if segment.contains(['?', '#']) {
        return Err("a route has no query; write the path alone".to_owned());
    }
    // Doubled braces stand for themselves.
    let plain = segment.replace("{{", "").replace("}}", "");
    let Some((_, parameter)) = plain.split_once('{') else {
        return if plain.contains('}') { Err(braces()) } else { Ok(()) };
    };
    let name = parameter.split_once('}').map(|(name, _)| name).ok_or_else(braces)?;
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

fn braces() -> String {
    "its braces do not match; write a parameter as in {id}".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_axum_are_accepted() {
        for template in
            ["/", "/login", "/users/{id}", "/users/{id}/password", "/files/{*path}", "/a/{{b}}", "/v1/{a}/{b}", "/a/"]
        {
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
            ("/users/{id", "braces do not match"),
            ("/users/id}", "braces do not match"),
            ("/users/{}", "has a name"),
            ("/users/{*}", "has a name"),
            ("/{*rest}/users", "last segment"),
            ("/users?id=1", "no query"),
        ] {
            let error = check(template).unwrap_err();
            assert!(error.contains(remedy), "{template}: {error}");
        }
    }
}
