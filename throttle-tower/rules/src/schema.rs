/// The JSON Schema of the format: with it, [editors](crate#in-an-editor) complete and check a file.
///
/// ```
/// use throttle_rules::SCHEMA;
///
/// assert!(SCHEMA.contains("http://json-schema.org/draft-07/schema#"));
/// ```
pub const SCHEMA: &str = include_str!("../throttle.schema.json");
