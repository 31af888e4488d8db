use http::HeaderMap;

use super::described_decision::DescribedDecision;
use super::dialect::Dialect;
use super::policy_header::PolicyHeader;
use super::{draft11, legacy, retry_after};

/// Writes the headers of one decision, in the dialect that `announced` was built for.
///
/// Call it once per response with every policy in `report`: the dialects that can describe only one policy choose it
/// among all. Calling it again, as stacked layers do, only ever tightens what the response says.
pub(crate) fn write(headers: &mut HeaderMap, announced: &PolicyHeader, report: &DescribedDecision<'_>) {
    match announced.dialect() {
        Dialect::None => {}
        Dialect::Draft11 => draft11::write(headers, announced.value(), report),
        older => legacy::write(headers, older, announced.value(), report),
    }
    if let (false, Some(wait)) = (report.admitted, report.retry_after) {
        retry_after::write(headers, wait, report.now_unix_us);
    }
}
