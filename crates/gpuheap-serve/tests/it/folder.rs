//! Folders: what comes and goes, what is dropped from memory, ranks.

use gpuheap_record::Bytes;
use serde_json::Value;

use crate::support::{Served, options, recording};

#[tokio::test]
async fn recordings_come_change_and_go() {
    let served = Served::new(&[("a.pickle.gz", "loops/plain_adam.pickle.gz")]);
    assert_eq!(served.list().await[0]["verdict"]["kind"], "healthy");
    let path = served.folder.path().join("sub");
    std::fs::create_dir(&path).unwrap();
    std::fs::copy(recording("loops/ema.pickle.gz"), path.join("b.pickle.gz")).unwrap();
    let list = served.list_when(|list| list.len() == 2 && list[1]["state"] == "ready").await;
    assert_eq!(list[1]["name"], "sub/b.pickle.gz");

    std::fs::copy(recording("loops/slow_leak.pickle.gz"), served.folder.path().join("a.pickle.gz")).unwrap();
    let list = served.list_when(|list| list[0]["state"] == "ready" && list[0]["verdict"]["kind"] == "leak").await;
    assert_eq!(list[0]["id"], 1, "the number stays");
    let page = served.json("/api/recordings/1/page").await;
    assert_eq!(page["report"]["verdict"]["kind"], "leak");

    std::fs::remove_file(path.join("b.pickle.gz")).unwrap();
    served.list_when(|list| list.len() == 1).await;
    assert_eq!(served.get("/api/recordings/2/page").await.status, 404);
}

#[tokio::test]
async fn what_was_dropped_from_memory_is_read_again() {
    let files = [
        ("a.pickle.gz", "loops/plain_adam.pickle.gz"),
        ("b.pickle.gz", "loops/slow_leak.pickle.gz"),
        ("c.pickle.gz", "loops/ema.pickle.gz"),
    ];
    let served = Served::with(&files, gpuheap_serve::Options { memory: Bytes::new(1), ..options() });
    let held = |list: &[Value]| list.iter().filter(|row| row["in_memory"] == true).count();
    let list = served.list().await;
    assert_eq!(held(&list), 1);
    assert!(list.iter().all(|row| row["verdict"]["headline"].is_string()), "the list keeps what it says");
    for _ in 0..2 {
        for id in 1..=3 {
            let page = served.json(&format!("/api/recordings/{id}/page")).await;
            assert_eq!(page["report"]["source"]["path"], files[id - 1].0);
            served.json(&format!("/api/recordings/{id}/moment?tick=5")).await;
        }
    }
    let diff = served.json("/api/diff?a=1&b=3").await;
    assert_eq!(diff["after"]["source"]["path"], "c.pickle.gz");
    assert_eq!(held(&served.list().await), 1);
}

#[tokio::test]
async fn ranks_are_compared_within_their_run() {
    let served = Served::new(&[
        ("one/rank0.pickle.gz", "loops/varlen_train.pickle.gz"),
        ("one/rank1.pickle.gz", "loops/varlen_train.pickle.gz"),
        ("one/rank2.pickle.gz", "loops/varlen_train_expandable.pickle.gz"),
        ("two/rank0.pickle.gz", "loops/ema.pickle.gz"),
        ("two/rank1.pickle.gz", "loops/ema.pickle.gz"),
        ("other.pickle.gz", "loops/ema.pickle.gz"),
    ]);
    served.list().await;
    let skew = served.json("/api/skew").await;
    assert_eq!(skew["schema"], "gpuheap.skew/1");
    let runs = skew["runs"].as_array().unwrap();
    assert_eq!(
        runs.iter().map(|run| run["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["one/rank*.pickle.gz", "two/rank*.pickle.gz"]
    );
    let sentence = runs[0]["sentences"][0].as_str().unwrap();
    assert!(sentence.starts_with("rank 2 reserves "), "{sentence}");
    assert_eq!(runs[0]["measures"][0]["values"].as_array().unwrap().len(), 3);
    assert!(runs[1]["sentences"][0].as_str().unwrap().starts_with("no rank of 2 stands out"), "{skew:#}");
}

#[tokio::test]
async fn an_empty_folder_waits_for_recordings() {
    let served = Served::new(&[]);
    assert!(served.list().await.is_empty());
    assert_eq!(served.get("/").await.status, 200);
    assert!(served.json("/api/skew").await["runs"].as_array().unwrap().is_empty());
}
