//! What Envoy's filters may read of an answer, in the form that envoyproxy/ratelimit gives it.

use std::collections::HashMap;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use serde_json::{Map, Value as Json, json};

use super::hit::Hit;

pub fn of(request: &RateLimitRequest, hits: &[Hit]) -> Struct {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        let entries: Vec<_> = entries
            .map(|entry| format!("{}={}", entry.key, entry.value))
            .collect();
        let hits = descriptor.hits_addend.as_ref().map(|hits| hits.value);
        without_null(json!({ "entries": entries, "hitsAddend": hits }))
    });
    let mut metadata = Map::new();
    for hit in hits.iter().filter(|hit| hit.passes()) {
        merge(&mut metadata, &hit.found.rule.metadata);
    }
    let whole = json!({
        "domain": request.domain,
        "descriptors": descriptors.collect::<Vec<_>>(),
        "hitsAddend": (request.hits_addend > 0).then_some(request.hits_addend),
        "metadata": (!metadata.is_empty()).then_some(metadata),
    });
    match value(without_null(whole)).kind {
        Some(Kind::StructValue(whole)) => whole,
        _ => Struct::default(),
    }
}

/// An object without the fields that are null, as protobuf writes it.
pub fn without_null(mut object: Json) -> Json {
    if let Json::Object(fields) = &mut object {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// The first value of a name stays.
fn merge(into: &mut Map<String, Json>, from: &Map<String, Json>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (Some(Json::Object(into)), Json::Object(from)) => merge(into, from),
            (Some(_), _) => {}
            (None, value) => {
                into.insert(name.clone(), value.clone());
            }
        }
    }
}

fn value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(values) => Kind::ListValue(ListValue {
            values: values.into_iter().map(value).collect(),
        }),
        Json::Object(fields) => {
            let fields: HashMap<_, _> = fields
                .into_iter()
                .map(|(name, field)| (name, value(field)))
                .collect();
            Kind::StructValue(Struct { fields })
        }
    };
    Value { kind: Some(kind) }
}
