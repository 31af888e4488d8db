//! Extractors of what the layer inserts into a request's extensions.

/// Makes a type in a request's extensions an extractor of axum's, with the rejection where it is missing.
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
            /// Status 500 without a body. The reason is logged, because the client must not read it.
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
