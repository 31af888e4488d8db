//! The templates of a rule file, as routes of its own.

use std::sync::Arc;

use matchit::Router;
use toml::{Table, Value};

use crate::entry::Entry;
use crate::names::{self, SECTIONS};

/// Finds the template that a path matches.
#[derive(Default)]
pub struct Routes(Router<Arc<str>>, bool);

impl Routes {
    /// All templates of a file.
    pub fn of_file(file: &Table) -> Self {
        let limits = SECTIONS
            .iter()
            .flat_map(|section| names::limits(file, section));
        let templates = limits.filter_map(|limit| limit.get("match")?.get("routes")?.as_array());
        let mut routes = Self::default();
        for template in templates.flatten().filter_map(Value::as_str) {
            // Parameters are called alike, because templates that differ only in that are the same.
            // A template that stands in the file twice is known already.
            let template = with_numbered_parameters(template);
            let _ = routes.0.insert(template.clone(), template.into());
            routes.1 = true;
        }
        routes
    }

    /// Whether a limit asks for a route.
    pub fn is_needed(&self) -> bool {
        self.1
    }

    pub fn route(&self, entry: &Entry) -> Option<Arc<str>> {
        entry
            .route
            .clone()
            .or_else(|| Some(Arc::clone(self.0.at(entry.uri.path()).ok()?.value)))
    }
}

/// `/users/{id}/{*rest}` as `/users/{p0}/{*p1}`.
fn with_numbered_parameters(template: &str) -> String {
    let (mut numbered, mut rest, mut number) = (String::new(), template, 0);
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, behind)) = after.split_once('}').filter(|_| !after.starts_with('{')) else {
            break;
        };
        let star = if name.starts_with('*') { "*" } else { "" };
        numbered.push_str(&format!("{before}{{{star}p{number}}}"));
        (rest, number) = (behind, number + 1);
    }
    numbered + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_has_the_template_of_the_file_that_it_matches() {
        let limit = |routes: &str| format!("[[limit]]\nmatch = {{ routes = [{routes}] }}\n");
        let file = limit(r#""/users/{id}", "/files/{*path}""#)
            + &limit(r#""/users/{name}/keys", "/login""#);
        let routes = Routes::of_file(&file.parse().unwrap());
        let line = br#"a - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1"#;
        let mut entry = crate::combined::read(line).unwrap();
        for (path, template) in [
            ("/users/7", Some("/users/{p0}")),
            ("/users/7/keys?a", Some("/users/{p0}/keys")),
            ("/files/a/b", Some("/files/{*p0}")),
            ("/login", Some("/login")),
            ("/other", None),
        ] {
            entry.uri = path.parse().unwrap();
            assert_eq!(routes.route(&entry).as_deref(), template, "{path}");
        }
        entry.route = Some("/its-own".into());
        assert_eq!(routes.route(&entry).as_deref(), Some("/its-own"));
    }
}
