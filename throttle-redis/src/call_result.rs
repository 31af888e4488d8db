/// How a call that carried decisions ended, as it is counted: see
/// [`ObservedCall`](crate::observed::ObservedCall).
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "metrics"),
    expect(dead_code, reason = "metrics count the others")
)]
pub(crate) enum CallResult {
    Ok,
    Late,
    Fault,
    Malformed,
    Unsent,
    Abandoned,
}
