use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;

/// Finds the limits of a composition that apply to a request, instead of asking each for its
/// [condition](crate::Limit::when): see [`LimitTree::select`](crate::LimitTree::select).
///
/// ```
/// use std::collections::HashMap;
///
/// use http::request::Parts;
/// use http::{Request, Response, StatusCode};
/// use throttle_tower::limit::Select;
/// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, all, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// /// The limits of a path, by their indices.
/// struct ByPath(HashMap<&'static str, Vec<usize>>);
///
/// impl Select for ByPath {
///     fn select(&self, parts: &Parts, found: &mut dyn FnMut(usize)) {
///         let limits = self.0.get(parts.uri.path()).into_iter().flatten();
///         limits.copied().for_each(found);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let one = |name: &str| limit(name, Gcra::new(Rate::per_hour(1)).burst(1)).by(Constant);
/// let by_path = ByPath(HashMap::from([("/login", vec![0]), ("/export", vec![1])]));
/// let limits = all([one("login"), one("export")]).select(by_path);
/// let service = ThrottleLayer::new(limits)?.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// for (path, status) in [("/login", 200), ("/login", 429), ("/export", 200), ("/", 200)] {
///     let response = service.clone().oneshot(Request::get(path).body(())?).await?;
///     assert_eq!(response.status(), StatusCode::from_u16(status)?, "{path}");
/// }
/// # Ok(())
/// # }
/// ```
pub trait Select: Send + Sync + 'static {
    /// Calls `found` with the index of each limit that applies to a request. The limits of the
    /// composition, on rates and on requests in flight, have indices from 0, in the order in which
    /// they are written. An index may be found in any order, and more than once. One that no limit
    /// has is ignored.
    ///
    /// It is called once for each request, before anything is decided. It must not block.
    fn select(&self, parts: &Parts, found: &mut dyn FnMut(usize));

    /// Returns whether it depends on the [route](crate::Route). The layer then
    /// [warns](crate::Warning::RouteUnknown) if it finds none. Defaults to `false`.
    fn uses_route(&self) -> bool {
        false
    }
}

impl fmt::Debug for dyn Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("select")
    }
}

/// A composition of a layer with a `select`.
pub(crate) struct Selection {
    pub(crate) select: Arc<dyn Select>,
    /// Its limits, among those of the layer.
    pub(super) limits: Range<usize>,
}

/// The limits that were selected for a request, by their order in the layer.
pub(crate) type SelectedLimits = SmallVec<[usize; 4]>;

/// The limits of all selections that apply to a request, in ascending order.
#[inline]
pub(crate) fn select(selections: &[Arc<Selection>], parts: &Parts) -> SelectedLimits {
    let mut selected = SelectedLimits::new();
    if !selections.is_empty() {
        add_selected(&mut selected, selections, parts);
    }
    selected
}

fn add_selected(selected: &mut SelectedLimits, selections: &[Arc<Selection>], parts: &Parts) {
    for selection in selections {
        let Range { start, end } = selection.limits;
        selection.select.select(parts, &mut |index| {
            if index >= end - start {
                return;
            }
            let limit = start + index;
            if selected.last().is_none_or(|last| *last < limit) {
                selected.push(limit);
            } else if let Err(position) = selected.binary_search(&limit) {
                selected.insert(position, limit);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use throttle_core::{Gcra, Rate};
    use tower::{Layer, ServiceExt, service_fn};

    use crate::limit::{IntoLimitTree, Limit};
    use crate::{Constant, InFlight, LimitReport, LimitTree, ThrottleLayer, all, any, limit};

    use super::*;

    /// Finds what the path of a request lists: `/0/2`.
    struct Listed;

    impl Select for Listed {
        fn select(&self, parts: &Parts, found: &mut dyn FnMut(usize)) {
            let listed = parts.uri.path().split('/');
            listed
                .filter_map(|index| index.parse().ok())
                .for_each(found);
        }
    }

    fn rate(name: &str) -> Limit {
        limit(name, Gcra::new(Rate::per_hour(9))).by(Constant)
    }

    fn permits(name: &str) -> Limit<InFlight> {
        limit(name, InFlight::new(9)).by(Constant)
    }

    /// The limits on rates that apply to a request of a path, and the permits that it takes.
    async fn applying(limits: LimitTree, path: &str) -> (Vec<String>, Vec<String>) {
        let layer = ThrottleLayer::builder(limits).report_in(crate::ReportIn::Both);
        let layer = layer.build().unwrap();
        let service = layer.layer(service_fn(async |request: Request<()>| {
            let permit = request.extensions().get::<crate::Permit>().cloned();
            let names = permit.iter().flat_map(crate::Permit::permits);
            let mut response = Response::new(());
            let names: Vec<String> = names.map(|(name, _)| name.to_owned()).collect();
            response.extensions_mut().insert(names);
            Ok::<_, Infallible>(response)
        }));
        let request = Request::get(path).body(()).unwrap();
        let response = service.oneshot(request).await.unwrap();
        let report: &LimitReport = response.extensions().get().unwrap();
        let rates = report
            .statuses()
            .map(|(policy, _)| policy.name().to_owned());
        let permits = response.extensions().get::<Vec<String>>().unwrap().clone();
        (rates.collect(), permits)
    }

    #[tokio::test]
    async fn limits_of_both_kinds_are_selected_by_their_order_in_the_composition() {
        let limits = || {
            let nested = all((permits("b"), any([rate("c"), rate("d")])));
            let selected = all((rate("a"), nested, permits("e"))).select(Listed);
            all((permits("before"), rate("first"), selected, rate("last")))
        };
        for (path, rates, permits) in [
            ("/", "first last", "before"),
            ("/0", "first a last", "before"),
            ("/4/1", "first last", "before b e"),
            ("/3/0/3/0", "first a d last", "before"),
            ("/3/2/1/0/4", "first a c d last", "before b e"),
            ("/5/99/18446744073709551615", "first last", "before"),
        ] {
            let found = applying(limits(), path).await;
            assert_eq!(
                (&*found.0.join(" "), &*found.1.join(" ")),
                (rates, permits),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn two_compositions_are_selected_each_by_its_own() {
        struct All(usize);
        impl Select for All {
            fn select(&self, _: &Parts, found: &mut dyn FnMut(usize)) {
                (0..self.0).for_each(found);
            }
        }
        let limits = all((
            all([rate("a"), rate("b")]).select(Listed),
            all([rate("c"), rate("d")]).select(All(1)),
            rate("e").into_limit_tree().select(All(0)),
        ));
        let (rates, _) = applying(limits, "/1").await;
        assert_eq!(rates, ["b", "c"]);
    }

    #[tokio::test]
    async fn selected_limit_applies_if_its_own_condition_holds_too() {
        let short = |parts: &Parts| parts.uri.path().len() < 4;
        for many in [0, 40] {
            let others = (0..many).map(|n| rate(&format!("other-{n}")));
            let limits = [rate("short").when(short), rate("any")]
                .into_iter()
                .chain(others);
            let limits = all(limits.collect::<Vec<_>>()).select(Listed);
            for (path, rates) in [("/0", "short"), ("/0/1", "any"), ("/1", "any")] {
                let found = applying(limits.clone(), path).await.0;
                assert_eq!(found.join(" "), rates, "{path} of {many}");
            }
        }
    }

    #[test]
    fn select_within_a_select_is_an_error_with_what_to_write() {
        let inner = || all([rate("a"), rate("b")]).select(Listed);
        assert!(ThrottleLayer::new(all((inner(), rate("c")))).is_ok());
        for nested in [
            inner().select(Listed),
            all((rate("c"), any((inner(), rate("d"))))).select(Listed),
        ] {
            let error = ThrottleLayer::new(nested).unwrap_err();
            assert_eq!(
                (error.field(), error.value()),
                ("select", "within another select")
            );
            assert!(error.to_string().contains("next to each other"), "{error}");
        }
    }
}
