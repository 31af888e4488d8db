//! The texts that scripts are assembled from.

pub(super) const TIME: &str = include_str!("../lua/time.lua");
pub(super) const ONE_REQUEST: &str = include_str!("../lua/one_request.lua");
pub(super) const BATCH: &str = include_str!("../lua/batch.lua");
pub(super) const CELLS: &str = include_str!("../lua/cells.lua");
pub(super) const ANY_SET: &str = include_str!("../lua/any_set.lua");
pub(super) const EXCEPT: &str = include_str!("../lua/except.lua");
pub(super) const EXCEPTIONS: &str = include_str!("../lua/exceptions.lua");
pub(super) const SETTLE: &str = include_str!("../lua/settle.lua");

/// The text between `-- part: name` and the next such line.
pub(super) fn part(text: &'static str, name: &str) -> Option<&'static str> {
    let marker = format!("-- part: {name}\n");
    let (_, rest) = text.split_once(&marker)?;
    Some(rest.split_once("-- part: ").map_or(rest, |(part, _)| part))
}

/// The whole text without its comments.
pub(super) fn without_comments(bodies: &[&str]) -> String {
    let lines = bodies.iter().flat_map(|body| body.lines());
    lines
        .filter(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty())
        .flat_map(|line| [line, "\n"])
        .collect()
}
