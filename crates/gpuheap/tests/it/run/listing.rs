//! `gpuheap ps`.

use super::rig::{Rig, Running, said};
use crate::context::follows;

const SCHEMA: &str = include_str!("../../../schema/ps.schema.json");

#[test]
fn every_run_is_there_with_what_it_holds() {
    let rig = Rig::new();
    let client = rig.client();
    let client = client.to_str().unwrap();
    let first = Running::start(
        &mut rig.run(&["--budget", "100MiB", "--spill", "1GiB"], &[client, "once", "20971520"]),
        "once 0",
    );
    let second = Running::start(&mut rig.run(&[], &[client, "hold", "536870912"]), "held");
    let third = Running::start(&mut rig.run(&["--budget", "5GiB"], &["sh", "-c", "echo waits; cat; true"]), "waits");

    let (code, text, error) = said(rig.command().args(["ps", "--json"]));
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    follows(SCHEMA, &list);
    let run = |running: &Running| {
        let runs = list["runs"].as_array().unwrap();
        runs.iter().find(|run| run["run"] == running.number()).unwrap()
    };
    let one = run(&first);
    assert_eq!(one["command"], serde_json::json!([client, "once", "20971520"]));
    assert_eq!(
        (&one["budget_bytes"], &one["spill_bytes"], &one["refused"]),
        (&(100 << 20).into(), &(1 << 30).into(), &0.into())
    );
    let uuid = one["devices"][0]["uuid"].clone();
    assert_eq!(uuid.as_str().map(str::len), Some(36), "{one}");
    assert_eq!(
        one["devices"],
        serde_json::json!([{"device": 0, "uuid": uuid, "used_bytes": 20 << 20, "peak_bytes": 20 << 20}])
    );
    let process = &one["processes"][0];
    assert_eq!((&process["name"], &process["state"]), (&"client".into(), &"running".into()));
    let devices = serde_json::json!([{
        "device": 0, "used_bytes": 20 << 20, "peak_bytes": 20 << 20, "by_kind": {"linear": 20 << 20},
        "by_origin": {"program": 20 << 20}
    }]);
    assert_eq!(process["devices"], devices);
    let two = run(&second);
    assert_eq!((&two["budget_bytes"], &two["spill_bytes"]), (&serde_json::Value::Null, &0.into()));
    assert_eq!(run(&third)["processes"], serde_json::json!([]));

    let (code, text, _) = said(rig.command().arg("ps"));
    assert_eq!(code, Some(0));
    let words = |running: &Running| {
        let number = running.number();
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(&number)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let pid = process["pid"].to_string();
    let expected = format!(
        "{} {pid} client once 20971520 running 0 20.0 MiB 20.0 MiB 0 B 100 MiB 20.0 MiB linear the program itself 20.0 MiB",
        first.number()
    );
    assert_eq!(words(&first).join(" "), expected);
    assert!(
        words(&second)
            .join(" ")
            .ends_with(" running 0 1.00 GiB 1.00 GiB 0 B - 1.00 GiB linear the program itself 1.00 GiB"),
        "{text}"
    );
    let expected = format!("{} - sh -c echo waits; cat; true no CUDA yet - - - - 5.00 GiB", third.number());
    assert_eq!(words(&third).join(" "), expected);
    // Columns are straight.
    let head = text.lines().next().unwrap();
    let column = head.find("  BUDGET").unwrap() + "  BUDGET".len();
    assert!(
        text.lines().skip(1).all(|line| line.len() == column || line.as_bytes().get(column) == Some(&b' ')),
        "{text}"
    );
    for running in [first, second, third] {
        assert_eq!(running.end().0, Some(0));
    }
    let (_, text, _) = said(rig.command().args(["ps", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    let own = rig.place().display().to_string();
    assert!(list["runs"].as_array().unwrap().iter().all(|run| !run["folder"].as_str().unwrap().starts_with(&own)));
}
