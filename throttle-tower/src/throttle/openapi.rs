use throttle_core::Backend;

use super::layer::ThrottleLayer;
use crate::headers::openapi::components;

impl<B: Backend> ThrottleLayer<B> {
    /// Describes the layer's 429 for an OpenAPI document, 3.0 or later: a Components Object in
    /// JSON. It has the response `TooManyRequests`, the `headers` of the layer's
    /// [dialect](crate::ThrottleBuilder::headers) and of its
    /// [hints](crate::ThrottleBuilder::sdk_hints), which other responses may refer to, and the
    /// schema `QuotaExceeded` of the problem document. With a
    /// [`response`](crate::ThrottleBuilder::response) of the program's own the schema is left out,
    /// and the response has no `content`.
    ///
    /// It does not describe what gRPC clients get, nor the 503 of limits on [requests in
    /// flight](crate::InFlight) and of failing stores.
    ///
    /// ```
    /// use serde_json::{Value, json};
    /// use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
    ///
    /// let throttle = ThrottleLayer::new(
    ///     limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer()),
    /// )?;
    /// let refused = json!({ "$ref": "#/components/responses/TooManyRequests" });
    /// let document = json!({
    ///     "openapi": "3.1.0",
    ///     "info": { "title": "orders", "version": "1" },
    ///     "paths": { "/orders": { "get": {
    ///         "responses": { "200": { "description": "OK" }, "429": refused },
    ///     } } },
    ///     "components": serde_json::from_str::<Value>(&throttle.openapi())?,
    /// });
    /// let headers = &document["components"]["responses"]["TooManyRequests"]["headers"];
    /// assert_eq!(
    ///     headers["retry-after"]["$ref"],
    ///     "#/components/headers/retry-after"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn openapi(&self) -> String {
        self.current.with(|shared| {
            let responses = &shared.announced.options;
            components(
                responses.dialect,
                responses.sdk_hints,
                shared.options.settings.response.is_none(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{Request, Response};
    use serde_json::{Value, json};
    use throttle_core::{FixedWindow, Rate};
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::headers::SdkHints;
    use crate::{Constant, Dialect, all, limit};

    /// The head and the body of a refusal that a wait does not help before long.
    async fn refused(layer: &ThrottleLayer) -> Response<Value> {
        let inner =
            service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
        layer.layer(inner).oneshot(Request::new(())).await.unwrap();
        let (head, body) = layer
            .layer(inner)
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .into_parts();
        let body = http_body_util::BodyExt::collect(body)
            .await
            .unwrap()
            .to_bytes();
        Response::from_parts(head, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Whether a text is what the type of a header's schema says.
    fn is_of(kind: &Value, text: &str) -> bool {
        let is_integer = text.parse::<u64>().is_ok();
        if kind == "integer" {
            is_integer
        } else {
            kind == "string" && !is_integer
        }
    }

    #[tokio::test]
    async fn openapi_names_the_headers_and_the_fields_that_a_refusal_has() {
        let dialects = Dialect::ALL.iter().copied();
        for (dialect, with_hints) in
            dialects.flat_map(|dialect| [(dialect, false), (dialect, true)])
        {
            let once = |name: &str| limit(name, FixedWindow::new(Rate::per_day(1))).by(Constant);
            let builder =
                ThrottleLayer::builder(all([once("a"), once("b").unit("tokens")])).headers(dialect);
            let hints = SdkHints::default().give_up_after(Duration::ZERO);
            let builder = if with_hints {
                builder.sdk_hints(hints)
            } else {
                builder
            };
            let layer = builder.build().unwrap();
            let (refused, told) = (
                refused(&layer).await,
                serde_json::from_str::<Value>(&layer.openapi()).unwrap(),
            );
            let described = told["headers"].as_object().unwrap();
            let ours = |name: &&str| !["content-type", "cache-control"].contains(name);
            let names: BTreeSet<_> = refused
                .headers()
                .keys()
                .map(|name| name.as_str())
                .filter(ours)
                .collect();
            assert_eq!(
                names,
                described.keys().map(String::as_str).collect(),
                "{dialect:?}"
            );
            for (name, header) in described {
                let (text, kind) = (
                    refused.headers()[name].to_str().unwrap(),
                    &header["schema"]["type"],
                );
                assert!(is_of(kind, text), "{dialect:?}: {name}: {text}");
                let reference = json!({ "$ref": format!("#/components/headers/{name}") });
                assert_eq!(
                    told["responses"]["TooManyRequests"]["headers"][name],
                    reference
                );
            }
            let schema = &told["schemas"]["QuotaExceeded"];
            let fields: BTreeSet<_> = refused
                .body()
                .as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect();
            assert_eq!(
                fields,
                schema["properties"]
                    .as_object()
                    .unwrap()
                    .keys()
                    .cloned()
                    .collect()
            );
            for field in ["type", "status"] {
                assert_eq!(
                    schema["properties"][field]["enum"],
                    json!([refused.body()[field]])
                );
            }
        }
    }

    #[test]
    fn openapi_describes_no_body_that_the_program_makes() {
        let builder =
            || ThrottleLayer::builder(limit("a", FixedWindow::new(Rate::per_day(1))).by(Constant));
        for (builder, has_body) in [
            (builder(), true),
            (
                builder().response(|refusal| refusal.default_response()),
                false,
            ),
        ] {
            let layer = builder.build().unwrap();
            let told: Value = serde_json::from_str(&layer.openapi()).unwrap();
            let body = &told["responses"]["TooManyRequests"]["content"]["application/problem+json"]
                ["schema"];
            assert_eq!(
                (body == &Value::Null, told.get("schemas").is_none()),
                (!has_body, !has_body)
            );
        }
    }
}
