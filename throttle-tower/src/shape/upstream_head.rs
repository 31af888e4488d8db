use std::fmt;

use http::{HeaderMap, Response, StatusCode};

use super::units::ShapeUsage;

/// Finds the status and the headers of a response, so that a shaper can obey the upstream's limits.
///
/// [`IgnoreUpstream`] by default; [`HttpHead`] after
/// [`obey_upstream`](crate::ShapeLayer::obey_upstream), [`HeadOf`] after
/// [`obey_upstream_of`](crate::ShapeLayer::obey_upstream_of).
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use throttle_tower::shape::UpstreamHead;
///
/// struct Answer { status: StatusCode, headers: HeaderMap }
///
/// #[derive(Clone)]
/// struct OfAnswer;
///
/// impl UpstreamHead<Answer> for OfAnswer {
///     fn head<'a>(&self, response: &'a Answer) -> Option<(StatusCode, &'a HeaderMap)> {
///         Some((response.status, &response.headers))
///     }
/// }
///
/// let answer = Answer { status: StatusCode::OK, headers: HeaderMap::new() };
/// assert_eq!(OfAnswer.head(&answer).unwrap().0, StatusCode::OK);
/// ```
///
/// # Contract
///
/// ## What is returned
///
/// The upstream's own status and headers, as they were received. A response from a cache or a mock
/// returns `None`: its headers do not describe the present.
///
/// ## When it is called
///
/// The service calls it once for each response to a shaped call, before it returns the response,
/// and never for an error. An implementation does not block.
///
/// ## Responses without headers
///
/// Set [`LOOKS`](Self::LOOKS) to `false`. The service then never calls `head`. Nor does it keep a
/// copy of each call's key until the response arrives.
#[diagnostic::on_unimplemented(
    message = "an upstream's limits cannot be read from `{Res}` this way",
    label = "`.obey_upstream()` reads an `http::Response`",
    note = "for a response of another type say where its head is: \
            `.obey_upstream_of(|response: &reqwest::Response| (response.status(), \
            response.headers()))`"
)]
pub trait UpstreamHead<Res>: Clone {
    /// Whether responses are read at all. Defaults to yes.
    const LOOKS: bool = true;

    /// The response's status and headers, or `None` if the upstream's limits cannot be read from
    /// it.
    fn head<'a>(&self, response: &'a Res) -> Option<(StatusCode, &'a HeaderMap)>;

    /// Settles what a call has used that was charged [by unit](crate::ShapeLayer::by_unit), or
    /// hands the means over with the response. Called after [`head`](Self::head). Defaults to
    /// neither.
    fn settle(&self, response: &mut Res, usage: &ShapeUsage) {
        let _ = (response, usage);
    }
}

/// Reads nothing: responses may be of any type.
///
/// ```
/// use throttle_tower::shape::{IgnoreUpstream, UpstreamHead};
///
/// assert_eq!(IgnoreUpstream.head(&"any response"), None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct IgnoreUpstream;

impl<Res> UpstreamHead<Res> for IgnoreUpstream {
    const LOOKS: bool = false;

    fn head<'a>(&self, _: &'a Res) -> Option<(StatusCode, &'a HeaderMap)> {
        None
    }
}

/// Reads the head of an `http::Response`.
///
/// ```
/// use throttle_tower::shape::{HttpHead, UpstreamHead};
///
/// let response = http::Response::builder().status(429).body(())?;
/// assert_eq!(HttpHead.head(&response).unwrap().0, 429);
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpHead;

impl<Body> UpstreamHead<Response<Body>> for HttpHead {
    fn head<'a>(&self, response: &'a Response<Body>) -> Option<(StatusCode, &'a HeaderMap)> {
        Some((response.status(), response.headers()))
    }
}

/// Reads the head that a function returns; see
/// [`obey_upstream_of`](crate::ShapeLayer::obey_upstream_of).
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use throttle_tower::shape::{HeadOf, UpstreamHead};
/// use throttle_tower::{LeakyBucket, Rate, ShapeLayer};
///
/// struct Answer {
///     status: StatusCode,
///     headers: HeaderMap,
/// }
///
/// type Layer = ShapeLayer<
///     (),
///     throttle_tower::MemoryBackend<throttle_tower::shape::TokioClock>,
///     HeadOf<Answer>,
/// >;
/// let layer: Layer = ShapeLayer::new(LeakyBucket::new(Rate::per_second(5)))?
///     .obey_upstream_of(|answer: &Answer| (answer.status, &answer.headers));
/// assert_eq!(layer.stats().paused, 0);
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
pub struct HeadOf<Res>(pub(super) fn(&Res) -> (StatusCode, &HeaderMap));

impl<Res> UpstreamHead<Res> for HeadOf<Res> {
    fn head<'a>(&self, response: &'a Res) -> Option<(StatusCode, &'a HeaderMap)> {
        Some((self.0)(response))
    }
}

impl<Res> Clone for HeadOf<Res> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Res> Copy for HeadOf<Res> {}

impl<Res> fmt::Debug for HeadOf<Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeadOf")
    }
}

/// Reads the head as `H` does, and settles what a call has used; see
/// [`settle_with`](crate::ShapeLayer::settle_with).
///
/// ```
/// use throttle_tower::shape::{IgnoreUpstream, SettleWith, Shaper, TokioClock};
/// use throttle_tower::{LeakyBucket, MemoryBackend, Rate, ShapeLayer};
///
/// type Layer = ShapeLayer<u64, MemoryBackend<TokioClock>, SettleWith<IgnoreUpstream, u64>>;
/// let pace = Shaper::builder(LeakyBucket::new(Rate::per_second(5)))
///     .by_unit("bytes", Rate::per_second(1_000));
/// let layer: Layer = ShapeLayer::of(pace.build()?)
///     .by_unit("bytes", |request| *request)?
///     .settle_with(|response: &mut u64, usage| {
///         usage
///             .settle("bytes", *response)
///             .expect("it is settled here only")
///     });
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
pub struct SettleWith<H, Res> {
    pub(super) head: H,
    pub(super) settle: fn(&mut Res, ShapeUsage),
}

impl<Res, H: UpstreamHead<Res>> UpstreamHead<Res> for SettleWith<H, Res> {
    fn head<'a>(&self, response: &'a Res) -> Option<(StatusCode, &'a HeaderMap)> {
        self.head.head(response)
    }

    fn settle(&self, response: &mut Res, usage: &ShapeUsage) {
        self.head.settle(response, usage);
        (self.settle)(response, usage.clone());
    }
}

impl<Res, H: Clone> Clone for SettleWith<H, Res> {
    fn clone(&self) -> Self {
        Self {
            head: self.head.clone(),
            settle: self.settle,
        }
    }
}

impl<Res, H: fmt::Debug> fmt::Debug for SettleWith<H, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SettleWith").field(&self.head).finish()
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Key, LeakyBucket, Rate};

    use super::super::shaper::Shaper;
    use super::super::wanted::Wanted;
    use super::*;

    #[test]
    fn shape_head_is_read_as_the_reader_says() {
        fn looks<Res, H: UpstreamHead<Res>>(_: &H, _: &Res) -> bool {
            H::LOOKS
        }
        let response = Response::builder()
            .status(503)
            .header("retry-after", "7")
            .body("")
            .unwrap();
        let head_of = HeadOf(|response: &Response<&str>| (response.status(), response.headers()));
        for head in [HttpHead.head(&response), head_of.head(&response)] {
            let (status, headers) = head.unwrap();
            assert_eq!(
                (status, &headers["retry-after"]),
                (StatusCode::SERVICE_UNAVAILABLE, &"7".parse().unwrap())
            );
        }
        assert!(looks(&HttpHead, &response) && looks(&head_of, &response));
        assert!(IgnoreUpstream.head(&response).is_none() && !looks(&IgnoreUpstream, &response));
        assert_eq!(
            format!("{head_of:?} {HttpHead:?} {IgnoreUpstream:?}"),
            "HeadOf HttpHead IgnoreUpstream"
        );
    }

    #[test]
    fn shape_responses_are_settled_by_each_function_in_the_order_given() {
        let pace = Shaper::new(LeakyBucket::new(Rate::per_second(10))).unwrap();
        let wanted = Wanted {
            key: Key::CONSTANT,
            cost: 1,
            deadline: None,
            units: None,
        };
        let usage = ShapeUsage::new(&pace.schedule, &wanted);
        let first = SettleWith {
            head: HttpHead,
            settle: |response: &mut Response<Vec<u8>>, _| response.body_mut().push(1),
        };
        let both = SettleWith {
            head: first,
            settle: |response: &mut Response<Vec<u8>>, _| response.body_mut().push(2),
        };
        let mut response = Response::new(Vec::new());
        both.clone().settle(&mut response, &usage);
        assert_eq!(response.body(), &[1, 2]);
        assert_eq!(both.head(&response).unwrap().0, StatusCode::OK);
        assert_eq!(format!("{both:?}"), "SettleWith(SettleWith(HttpHead))");
    }
}
