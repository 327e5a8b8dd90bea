//! Reports as JSON, and their schemas.

use gpuheap_report::{CHECK_JSON_SCHEMA, DIFF_JSON_SCHEMA, Document, JSON_SCHEMA, WHATIF_JSON_SCHEMA, to_json};
use serde_json::Value;

use crate::samples;

/// Every kind of report follows the schema, and the schema describes every key.
#[test]
fn every_kind_of_report_follows_the_schema() {
    for (name, report) in samples::all() {
        follows(JSON_SCHEMA, &report, name);
    }
}

/// Fails unless `document` is as `schema` says, and every key of it is described there.
pub(crate) fn follows(schema: &str, document: &impl Document, name: &str) {
    let schema: Value = serde_json::from_str(schema).unwrap();
    value_follows(&schema, &serde_json::from_str(&to_json(document).unwrap()).unwrap(), name);
}

pub(crate) fn value_follows(schema: &Value, json: &Value, name: &str) {
    jsonschema::meta::validate(schema).unwrap();
    let validator = jsonschema::draft202012::new(schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(json).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}");
    let mut unknown = Vec::new();
    unnamed(schema, schema, json, name, &mut unknown);
    assert!(unknown.is_empty(), "not in the schema: {unknown:?}");
}

/// The schemas can each be used alone; what they share is the same in all.
#[test]
fn shared_definitions_are_the_same_in_all_schemas() {
    let mut known = std::collections::BTreeMap::new();
    for schema in [JSON_SCHEMA, WHATIF_JSON_SCHEMA, DIFF_JSON_SCHEMA, CHECK_JSON_SCHEMA] {
        let schema: Value = serde_json::from_str(schema).unwrap();
        for (name, definition) in schema["$defs"].as_object().unwrap() {
            let first = known.entry(name.clone()).or_insert_with(|| definition.clone());
            assert_eq!(first, definition, "{name} in {}", schema["$id"]);
        }
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
