//! Extractors of what the layer inserts into a request's extensions.

/// Makes a type in a request's extensions an extractor of axum's, with the rejection where it is
/// missing.
macro_rules! extractor {
    ($extracted:ty, $message:literal; $(#[$doc:meta])* $missing:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $missing;

        impl std::fmt::Display for $missing {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($message)
            }
        }

        impl std::error::Error for $missing {}

        impl axum::response::IntoResponse for $missing {
            /// Status 500 without a body. The reason is logged, because the client must not read
            /// it.
            fn into_response(self) -> axum::response::Response {
                crate::log::error(&self);
                http::StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }

        impl<S: Sync> axum::extract::FromRequestParts<S> for $extracted {
            type Rejection = $missing;

            async fn from_request_parts(parts: &mut http::request::Parts, _: &S) -> Result<Self, $missing> {
                parts.extensions.get().cloned().ok_or($missing)
            }
        }

        impl<S: Sync> axum::extract::OptionalFromRequestParts<S> for $extracted {
            type Rejection = std::convert::Infallible;

            async fn from_request_parts(
                parts: &mut http::request::Parts,
                _: &S,
            ) -> Result<Option<Self>, std::convert::Infallible> {
                Ok(parts.extensions.get().cloned())
            }
        }
    };
}

pub(crate) use extractor;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::error::Error;

    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::IntoResponse;
    use http::request::Parts;
    use http::{Request, Response, StatusCode};
    use http_body::Body;
    use tower::{ServiceExt, service_fn};
    use tower_layer::Layer;

    use crate::usage::MissingUsage;
    use crate::{
        Constant, Gcra, InFlight, LimitReport, MissingLimitReport, MissingPermit, Permit, Rate,
        ThrottleLayer, Usage, all, limit,
    };

    /// What a handler gets that needs the value, and one that does not.
    async fn extracted<T>(
        parts: &mut Parts,
    ) -> (Result<T, <T as FromRequestParts<()>>::Rejection>, Option<T>)
    where
        T: FromRequestParts<()> + OptionalFromRequestParts<(), Rejection = Infallible>,
    {
        let needed = <T as FromRequestParts<()>>::from_request_parts(parts, &()).await;
        let Ok(optional) =
            <T as OptionalFromRequestParts<()>>::from_request_parts(parts, &()).await;
        (needed, optional)
    }

    #[tokio::test]
    async fn what_the_layer_inserts_is_extracted_as_often_as_it_is_needed() {
        let tokens = limit("tokens", Gcra::new(Rate::per_minute(9)))
            .by(Constant)
            .cost(3)
            .settled_later();
        let layer = ThrottleLayer::new(all((
            tokens,
            limit("in-flight", InFlight::new(5)).by(Constant),
        )))
        .unwrap();
        let service = layer.layer(service_fn(async |request: Request<()>| {
            let (mut parts, ()) = request.into_parts();
            for _ in 0..2 {
                let (usage, optional) = extracted::<Usage>(&mut parts).await;
                assert_eq!(
                    [usage.ok(), optional].map(|usage| usage.unwrap().taken("tokens")),
                    [3, 3]
                );
                let (report, optional) = extracted::<LimitReport>(&mut parts).await;
                assert_eq!(
                    [report.ok(), optional].map(|report| report.unwrap().decision().remaining()),
                    [6, 6]
                );
                let (permits, optional) = extracted::<Permit>(&mut parts).await;
                assert_eq!(
                    [permits.ok(), optional].map(|permits| permits.unwrap().permits().count()),
                    [1, 1]
                );
            }
            Ok::<_, Infallible>(Response::new(()))
        }));
        assert_eq!(
            service.oneshot(Request::new(())).await.unwrap().status(),
            StatusCode::OK
        );
    }

    #[tokio::test]
    async fn what_no_layer_has_inserted_is_missing() {
        let (mut parts, ()) = Request::new(()).into_parts();
        let (usage, optional) = extracted::<Usage>(&mut parts).await;
        assert_eq!(
            (usage.unwrap_err(), optional.is_none()),
            (MissingUsage, true)
        );
        let (report, optional) = extracted::<LimitReport>(&mut parts).await;
        assert_eq!(
            (report.unwrap_err(), optional.is_none()),
            (MissingLimitReport, true)
        );
        let (permits, optional) = extracted::<Permit>(&mut parts).await;
        assert_eq!(
            (permits.unwrap_err(), optional.is_none()),
            (MissingPermit, true)
        );
    }

    #[test]
    fn rejection_tells_the_program_what_to_do_and_the_client_nothing() {
        let said = |error: &dyn Error| error.to_string();
        assert_eq!(
            said(&MissingUsage),
            "nothing was charged that could be settled; give a limit of the route's ThrottleLayer \
                .settled_later(), or \
             take an Option<Usage>"
        );
        assert_eq!(
            said(&MissingLimitReport),
            "no rate limit decided about this request; add a ThrottleLayer to the route, or take \
                an Option<LimitReport>"
        );
        assert_eq!(
            said(&MissingPermit),
            "the request holds no permit; add a limit on requests in flight to the route's \
             ThrottleLayer, or take an Option<Permit>"
        );
        for response in [
            MissingUsage.into_response(),
            MissingLimitReport.into_response(),
            MissingPermit.into_response(),
            crate::usage::UsageError::Settled {
                name: "p".to_owned(),
            }
            .into_response(),
        ] {
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(response.body().size_hint().exact(), Some(0));
        }
    }

    /// What the program logs on this thread: the level and the text.
    #[cfg(feature = "tracing")]
    #[derive(Clone, Default)]
    struct Log(std::sync::Arc<std::sync::Mutex<Vec<(tracing::Level, String)>>>);

    #[cfg(feature = "tracing")]
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Log {
        fn on_event(
            &self,
            event: &tracing::Event<'_>,
            _: tracing_subscriber::layer::Context<'_, S>,
        ) {
            let mut text = String::new();
            event.record(
                &mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                    text = format!("{value:?}");
                },
            );
            self.0
                .lock()
                .unwrap()
                .push((*event.metadata().level(), text));
        }
    }

    /// The client learns nothing, so the program has to.
    #[cfg(feature = "tracing")]
    #[test]
    fn rejection_is_logged_as_an_error() {
        use tracing_subscriber::layer::SubscriberExt;

        let unknown = crate::usage::UsageError::Settled {
            name: "p".to_owned(),
        };
        let said: [&dyn Error; 4] = [&MissingUsage, &MissingLimitReport, &MissingPermit, &unknown];
        let expected = said.map(|error| (tracing::Level::ERROR, error.to_string()));
        let log = Log::default();
        let listener = tracing_subscriber::registry().with(log.clone());
        tracing::subscriber::with_default(listener, || {
            // While tests of other threads begin or cease to listen, an event may be missed.
            for _ in 0..100 {
                log.0.lock().unwrap().clear();
                let _ = MissingUsage.into_response();
                let _ = MissingLimitReport.into_response();
                let _ = MissingPermit.into_response();
                let _ = unknown.clone().into_response();
                if log.0.lock().unwrap().len() == expected.len() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
                tracing::callsite::rebuild_interest_cache();
            }
        });
        assert_eq!(*log.0.lock().unwrap(), expected);
    }
}
