//! The JSON report and its schema.

use gpuheap_report::{JSON_SCHEMA, to_json};
use serde_json::Value;

use crate::samples;

#[test]
fn every_kind_of_report_follows_the_schema() {
    let schema: Value = serde_json::from_str(JSON_SCHEMA).unwrap();
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    for (name, report) in samples::all() {
        let json: Value = serde_json::from_str(&to_json(&report).unwrap()).unwrap();
        let errors: Vec<String> =
            validator.iter_errors(&json).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

#[test]
fn the_schema_names_every_key() {
    let schema: Value = serde_json::from_str(JSON_SCHEMA).unwrap();
    for (name, report) in samples::all() {
        let json: Value = serde_json::from_str(&to_json(&report).unwrap()).unwrap();
        let mut unknown = Vec::new();
        unnamed(&schema, &schema, &json, name, &mut unknown);
        assert!(unknown.is_empty(), "not in the schema: {unknown:?}");
    }
}

/// Collects the keys of `value` that `schema`, a part of `root`, does not describe.
fn unnamed(root: &Value, schema: &Value, value: &Value, path: &str, unknown: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        unnamed(root, &root["$defs"][name], value, path, unknown);
    } else if let Some(choices) = schema["anyOf"].as_array() {
        if !value.is_null() {
            unnamed(root, &choices[0], value, path, unknown);
        }
    } else if let Some(items) = value.as_array() {
        for item in items {
            unnamed(root, &schema["items"], item, &format!("{path}[]"), unknown);
        }
    } else if let Some(members) = value.as_object() {
        for (key, member) in members {
            let path = format!("{path}.{key}");
            if let Some(property) = schema["properties"].get(key) {
                assert!(property["description"].is_string(), "no description: {path}");
                unnamed(root, property, member, &path, unknown);
            } else if schema["additionalProperties"].is_object() {
                unnamed(root, &schema["additionalProperties"], member, &path, unknown);
            } else {
                unknown.push(path);
            }
        }
    }
}

#[test]
fn sizes_are_exact_and_order_is_that_of_the_report() {
    let json = to_json(&samples::fragmentation()).unwrap();
    insta::assert_snapshot!(json.lines().take(24).collect::<Vec<_>>().join("\n"));
    assert!(json.contains("\"reserved_bytes\": 39151730688"));
    assert!(json.ends_with("}\n"));
}
