//! Reads the bytes of a file.

use std::io::{Error, ErrorKind, Read as _};
use std::path::Path;
use std::sync::Arc;

use super::bounds;
use super::problem::RulesError;

/// # Errors
///
/// If the file cannot be read, or what is wrong with it as a whole.
pub(super) fn read(path: &Path, name: &Arc<str>) -> Result<String, RulesError> {
    let bytes = read_bytes(path).map_err(|error| RulesError::unread(name, error))?;
    if bytes.len() > bounds::MAX_BYTES {
        return Err(RulesError::one(name, bounds::too_long()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        let rule = format!(
            "the file is not UTF-8: line {line} has bytes of another encoding; save it as UTF-8"
        );
        RulesError::one(name, rule)
    })
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    // To open a pipe that nothing writes to would take forever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "it is not a regular file; write the limits to one",
        ));
    }
    let mut bytes = Vec::new();
    // A file that grows without end is not read without end.
    let most = bounds::MAX_BYTES as u64 + 1;
    std::fs::File::open(path)?
        .take(most)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
