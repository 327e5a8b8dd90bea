//! What is answered.

use axum::http::StatusCode;
use serde_json::Value;

use crate::support::{Served, options};

#[tokio::test]
async fn a_recording_of_one_device() {
    let served = Served::new(&[("run.pickle.gz", "loops/slow_leak.pickle.gz")]);
    let list = served.list().await;
    assert_eq!(list.len(), 1);
    let row = &list[0];
    assert_eq!(
        (row["id"].as_u64(), row["name"].as_str(), row["state"].as_str()),
        (Some(1), Some("run.pickle.gz"), Some("ready"))
    );
    assert_eq!(row["verdict"]["kind"], "leak");
    assert!(row["growth_bytes_per_step"].as_u64().unwrap() > 0);
    let entrance = served.get("/").await;
    assert_eq!((entrance.status, entrance.header("location")), (StatusCode::SEE_OTHER, "/recordings/1"));

    let html = served.get("/recordings/1").await;
    assert_eq!((html.status, html.header("content-type")), (StatusCode::OK, "text/html; charset=utf-8"));
    assert!(html.text().contains("data-src=\"/api/recordings/1/page\""));
    assert!(html.text().contains("<title>Leak: run.pickle.gz</title>"));

    let page = served.json("/api/recordings/1/page").await;
    assert_eq!(page["schema"], "gpuheap.page/1");
    assert_eq!(page["served"]["recording"], "1");
    assert_eq!(page["report"]["source"]["path"], "run.pickle.gz");
    assert_eq!(page["report"]["peaks"], row["peaks"]);
    let peak = page["moments"].as_array().unwrap().iter().find(|moment| moment["name"] == "peak").unwrap();

    let moment = served.json(&format!("/api/recordings/1/moment?tick={}", peak["tick"])).await;
    let sum: u64 = moment["classes"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(sum, row["peaks"]["allocated_bytes"].as_u64().unwrap());
    assert!(moment["memory"]["complete"].as_bool().unwrap());
    // Places of a moment are those of the page.
    let places = page["places"]["tree"]["caller"].as_array().unwrap().len() as u64;
    assert!(
        moment["memory"]["sorts"]["place"].as_array().unwrap().iter().all(|place| place.as_u64().unwrap() < places)
    );

    let timeline = served.json("/api/recordings/1/timeline?from=100&to=900&points=60").await;
    let ticks = timeline["ticks_delta"].as_array().unwrap();
    assert_eq!(ticks[0], 100);
    assert_eq!(ticks.iter().filter_map(Value::as_i64).sum::<i64>(), 900);
    assert!(ticks.len() <= 70);
}

#[tokio::test]
async fn other_settings_are_tried_in_the_background() {
    let served = Served::new(&[("run.pickle.gz", "loops/varlen_reserved.pickle.gz")]);
    served.list().await;
    let mut statuses = Vec::new();
    let curves = loop {
        let answer = served.get("/api/recordings/1/whatif").await;
        statuses.push(answer.status);
        match answer.status {
            StatusCode::OK => break answer.json()["curves"].clone(),
            StatusCode::ACCEPTED => assert!(answer.json()["done"].is_u64()),
            status => panic!("{status}: {}", answer.text()),
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!(statuses[0], StatusCode::ACCEPTED);
    assert_eq!(curves[0]["role"], "recorded");
    assert!(curves.as_array().unwrap().len() > 1);
}

#[tokio::test]
async fn answers_are_compressed_for_those_who_take_it() {
    let served = Served::new(&[("run.pickle.gz", "loops/plain_adam.pickle.gz")]);
    served.list().await;
    for path in ["/recordings/1", "/api/recordings/1/page", "/api/recordings/1/moment?tick=90"] {
        let plain = served.get(path).await;
        let small = served.get_with(path, &[("accept-encoding", "gzip, deflate, br")]).await;
        assert_eq!((plain.header("content-encoding"), plain.header("vary")), ("", "Accept-Encoding"), "{path}");
        if small.header("content-encoding") == "gzip" {
            assert!(small.body.len() < plain.body.len(), "{path}");
        } else {
            assert!(plain.body.len() < 1024, "{path}");
        }
        assert_eq!(plain.text(), small.text(), "{path}");
    }
}

#[tokio::test]
async fn a_recording_of_two_devices_is_two() {
    let served = Served::new(&[("run.pickle.gz", "edge/two_devices.pickle.gz")]);
    let list = served.list().await;
    assert_eq!(list.iter().map(|row| row["device"].as_u64()).collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert_eq!(list.iter().map(|row| row["id"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
    assert_eq!(served.get("/").await.status, StatusCode::OK);
    for row in &list {
        let page = served.json(&format!("/api/recordings/{}/page", row["id"])).await;
        assert_eq!(page["report"]["source"]["device"], row["device"]);
        let html = served.get(&format!("/recordings/{}", row["id"])).await.text();
        assert!(html.contains(&format!(", device {}</title>", row["device"])));
    }
    let skew = served.json("/api/skew").await;
    assert_eq!(skew["runs"][0]["ranks"].as_array().unwrap().len(), 2);
    let diff = served.json("/api/diff?a=1&b=2").await;
    assert_eq!(
        (diff["schema"].as_str(), diff["before"]["source"]["device"].as_u64()),
        (Some("gpuheap.diff/1"), Some(0))
    );
}

#[tokio::test]
async fn differences_have_a_direction() {
    let served = Served::new(&[("a.pickle.gz", "loops/plain_adam.pickle.gz"), ("b.pickle.gz", "loops/ema.pickle.gz")]);
    served.list().await;
    let (there, back) = (served.json("/api/diff?a=1&b=2").await, served.json("/api/diff?a=2&b=1").await);
    assert_eq!(there["before"], back["after"]);
    let change = |diff: &Value| diff["classes"][0]["change_bytes"].as_i64().unwrap();
    assert_eq!(change(&there), -change(&back));
    assert_ne!(change(&there), 0);
    let same = served.json("/api/diff?a=1&b=1").await;
    assert_eq!(change(&same), 0);
}

#[tokio::test]
async fn what_cannot_be_read_says_why() {
    let served = Served::new(&[("good.pickle.gz", "loops/plain_adam.pickle.gz")]);
    std::fs::write(served.folder.path().join("cut.pickle"), b"\x80\x04").unwrap();
    let list = served.list_when(|list| list.len() == 2 && list.iter().all(|row| row["state"] != "reading")).await;
    let failed = &list[0];
    assert_eq!(failed["name"], "cut.pickle");
    assert!(failed["error"].as_str().unwrap().contains("unexpected end of file"));
    assert!(failed["hint"].as_str().unwrap().contains("cut short"));
    let answer = served.get(&format!("/api/recordings/{}/page", failed["id"])).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer.json()["error"], failed["error"]);
}

#[tokio::test]
async fn what_is_being_read_says_so() {
    let patience = std::time::Duration::ZERO;
    // Two readers are busy with two others.
    let files: Vec<(String, &str)> =
        (0..40).map(|index| (format!("{index}.pickle.gz"), "models/gpt2_expandable.pickle.gz")).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, from)| (name.as_str(), *from)).collect();
    let served = Served::with(&files, gpuheap_serve::Options { patience, ..options() });
    let answer = served.get("/api/recordings/40/page").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text());
    assert_eq!(answer.header("retry-after"), "1");
    let answer = served.get("/recordings/39").await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let text = answer.text();
    assert!(text.contains("http-equiv=\"refresh\"") && !text.contains("<script"), "{text}");
}
