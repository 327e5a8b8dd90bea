//! A library over real recordings, and requests to it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use flate2::read::GzDecoder;
use gpuheap_record::Bytes;
use gpuheap_serve::{Access, Library, Options, Root, router};
use serde_json::Value;
use tower::ServiceExt;

/// A folder with recordings, and the server that serves it.
pub(crate) struct Served {
    pub(crate) folder: tempfile::TempDir,
    library: Arc<Library>,
    access: Access,
}

/// What a request got.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// A recording of the repository.
pub(crate) fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name)
}

pub(crate) fn root(path: &Path) -> Root {
    let finder = |folder: &Path| -> std::io::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
        Ok(entries.filter(|path| path.to_string_lossy().contains(".pickle")).collect())
    };
    Root::new(path, Box::new(finder)).unwrap()
}

pub(crate) fn options() -> Options {
    Options {
        limit: None,
        memory: Bytes::new(1 << 30),
        patience: Duration::from_secs(60),
        poll: Some(Duration::from_millis(20)),
    }
}

impl Served {
    /// A folder with copies of recordings: the name there, the recording.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        Self::with(files, options())
    }

    pub(crate) fn with(files: &[(&str, &str)], options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, from) in files {
            let to = folder.path().join(name);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(recording(from), to).unwrap();
        }
        let library = Library::open(root(folder.path()), options).unwrap();
        Self::of(folder, library)
    }

    pub(crate) fn of(folder: tempfile::TempDir, library: Library) -> Self {
        let access = Access::new("127.0.0.1:7650".parse().unwrap()).unwrap();
        Self { folder, library: Arc::new(library), access }
    }

    /// The same for those who come from elsewhere.
    pub(crate) fn listening_on(mut self, address: &str) -> Self {
        self.access = Access::new(address.parse().unwrap()).unwrap();
        self
    }

    pub(crate) fn url(&self) -> String {
        self.access.url()
    }

    pub(crate) async fn ask(&self, request: Request<Body>) -> Answer {
        let answer = router(Arc::clone(&self.library), self.access.clone()).oneshot(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::get(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:7650");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.ask(request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        answer.json()
    }

    /// The list, when `done` says that what is waited for happened.
    pub(crate) async fn list_when(&self, done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let start = Instant::now();
        loop {
            let list = self.json("/api/recordings").await["recordings"].as_array().unwrap().clone();
            if done(&list) {
                return list;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{list:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The list when everything was read.
    pub(crate) async fn list(&self) -> Vec<Value> {
        self.list_when(|list| list.iter().all(|row| row["state"] != "reading")).await
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if self.header("content-encoding") == "gzip" {
            GzDecoder::new(&self.body[..]).read_to_string(&mut text).unwrap();
        } else {
            text.push_str(std::str::from_utf8(&self.body).unwrap());
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), "application/json");
        serde_json::from_str(&self.text()).unwrap()
    }
}
