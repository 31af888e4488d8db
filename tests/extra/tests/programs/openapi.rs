//! A validator of OpenAPI accepts documents with what a layer says of its refusals.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use throttle_extra::child;
use throttle_tower::headers::SdkHints;
use throttle_tower::{ClientIp, Dialect, Gcra, Rate, ThrottleLayer, limit};

/// A whole document around the components of a layer.
fn document(version: &str, components: &Value) -> Value {
    let remaining = components["headers"]
        .as_object()
        .unwrap()
        .keys()
        .next()
        .unwrap();
    let admitted = json!({
        "description": "OK",
        "headers": { remaining: { "$ref": format!("#/components/headers/{remaining}") } },
    });
    let refused = json!({ "$ref": "#/components/responses/TooManyRequests" });
    json!({
        "openapi": version,
        "info": { "title": "orders", "version": "1" },
        "paths": { "/orders": { "get": { "responses": { "200": admitted, "429": refused } } } },
        "components": components,
    })
}

fn are_valid(files: &[PathBuf]) -> bool {
    let done = Command::new(child::program("openapi-spec-validator"))
        .args(files)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    // It says so of each file, whatever its status.
    let valid = said.matches(": OK").count() == files.len();
    assert_eq!(valid, done.status.success(), "{said}");
    valid
}

#[test]
fn documents_with_the_components_of_a_layer_are_valid() {
    let (folder, mut files) = (child::folder(), Vec::new());
    let write = |name: String, document: &Value| {
        let file = folder.join(format!("{name}.json"));
        fs::write(&file, document.to_string()).unwrap();
        file
    };
    for &dialect in Dialect::ALL {
        let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
        let builder = ThrottleLayer::builder(per_ip).headers(dialect);
        let own = builder
            .clone()
            .sdk_hints(SdkHints::default())
            .response(|refusal| refusal.openai_response());
        let [plain, own] = [builder, own].map(|builder| builder.build().unwrap());
        for (version, layer) in ["3.0.3", "3.1.0"]
            .into_iter()
            .flat_map(|version| [(version, &plain), (version, &own)])
        {
            let document = document(version, &serde_json::from_str(&layer.openapi()).unwrap());
            files.push(write(files.len().to_string(), &document));
        }
    }
    assert!(are_valid(&files), "see {}", folder.display());
    // The validator does look at the components.
    for version in ["3.0.3", "3.1.0"] {
        let wrong = json!({ "headers": { "a": {} }, "responses": { "TooManyRequests": { "content": {} } } });
        assert!(
            !are_valid(&[write("wrong".to_owned(), &document(version, &wrong))]),
            "a response \
            has a description"
        );
    }
    fs::remove_dir_all(folder).unwrap();
}
