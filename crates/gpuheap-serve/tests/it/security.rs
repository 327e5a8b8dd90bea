//! What is refused.

use axum::body::Body;
use axum::http::{Request, StatusCode};

use crate::support::Served;

fn one() -> Served {
    Served::new(&[("a.pickle.gz", "loops/plain_adam.pickle.gz")])
}

#[tokio::test]
async fn other_hosts() {
    let served = one();
    for host in
        ["evil.example", "evil.example:7650", "localhost.evil.example", "10.0.0.1:7650", "", "127.0.0.1:7650, x"]
    {
        for path in ["/", "/recordings", "/api/recordings", "/recordings/1", "/favicon.ico", "/nothing"] {
            let answer = served.get_with(path, &[("host", host)]).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{host} {path}");
            assert!(answer.json()["hint"].as_str().unwrap().contains("gpuheap serve"));
        }
    }
    for host in ["localhost", "localhost:9999", "127.0.0.1", "[::1]:7650"] {
        assert_eq!(served.get_with("/api/recordings", &[("host", host)]).await.status, StatusCode::OK, "{host}");
    }
    // No host at all, two of them, or another one in the request's own line.
    let none = Request::get("/api/recordings").body(Body::empty()).unwrap();
    assert_eq!(served.ask(none).await.status, StatusCode::FORBIDDEN);
    let two = Request::get("/").header("host", "localhost").header("host", "evil.example").body(Body::empty()).unwrap();
    assert_eq!(served.ask(two).await.status, StatusCode::FORBIDDEN);
    let answer = served.get_with("http://evil.example/api/recordings", &[("host", "localhost")]).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn other_origins() {
    let served = one();
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "http://localhost:3000"),
        ("origin", "null"),
        ("origin", "https://127.0.0.1:7650"),
        ("origin", "http://127.0.0.1:7650.evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-site", "anything"),
    ] {
        for path in ["/", "/api/recordings", "/recordings/1"] {
            let answer = served.get_with(path, &[(name, value)]).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{name}: {value}");
            assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control-")));
        }
    }
    for (name, value) in
        [("origin", "http://127.0.0.1:7650"), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "none")]
    {
        assert_eq!(served.get_with("/api/recordings", &[(name, value)]).await.status, StatusCode::OK, "{value}");
    }
}

#[tokio::test]
async fn paths_and_other_recordings() {
    let served = one();
    served.list().await;
    for path in [
        "/recordings/../../etc/passwd",
        "/recordings/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/recordings/..%5c..%5cboot.ini",
        "/recordings/%252e%252e",
        "/recordings/a.pickle.gz",
        "/recordings/0",
        "/recordings/2",
        "/recordings/-1",
        "/recordings/+1",
        "/recordings/1%00",
        "/recordings/1.0",
        "/recordings/99999999999999999999",
        "/recordings/%FF",
        "/recordings/1/",
        "/recordings/",
        "/api/recordings/../1/page",
        "/api/recordings/%2e%2e/page",
        "/api/recordings/7/page",
        "/api/recordings/7/moment?tick=0",
        "/api/diff?a=1&b=7",
        "/assets/report.js",
        "//etc/passwd",
        "/etc/passwd",
    ] {
        let answer = served.get(path).await;
        let status = answer.status;
        assert!(matches!(status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST), "{path}: {status}");
        assert!(!answer.text().contains("root:"), "{path}");
    }
}

#[tokio::test]
async fn everything_but_questions() {
    let served = one();
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"] {
        let request = Request::builder().method(method).uri("/api/recordings").header("host", "localhost");
        let answer = served.ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert_eq!(answer.header("allow"), "GET, HEAD");
    }
    let head = Request::head("/api/recordings").header("host", "localhost").body(Body::empty()).unwrap();
    let answer = served.ask(head).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::OK, 0));
}

#[tokio::test]
async fn bad_questions() {
    let served = one();
    served.list().await;
    let long = format!("/api/recordings/1/moment?tick={}", "0".repeat(2000));
    assert_eq!(served.get(&long).await.status, StatusCode::URI_TOO_LONG);
    for question in [
        "moment",
        "moment?tick=",
        "moment?tick=-1",
        "moment?tick=1.5",
        "moment?tick=99999999999",
        "moment?tick=1&tick=2",
        "moment?tick=1&x=2",
        "moment?tick=%31",
        "timeline",
        "timeline?from=5&to=1",
        "timeline?from=0&to=10&points=0",
        "timeline?from=0&to=10&points=4000000000",
        "page?x",
        "whatif?tick=1",
    ] {
        let answer = served.get(&format!("/api/recordings/1/{question}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{question}: {}", answer.text());
        assert!(answer.json()["error"].is_string());
    }
    for question in ["moment?tick=4294967295", "timeline?from=0&to=4294967295"] {
        let answer = served.get(&format!("/api/recordings/1/{question}")).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{question}");
    }
    for question in ["/api/diff", "/api/diff?a=1", "/api/diff?a=1&b=x", "/api/skew?x=1", "/api/recordings?path=/etc"] {
        assert_eq!(served.get(question).await.status, StatusCode::BAD_REQUEST, "{question}");
    }
}

#[tokio::test]
async fn every_answer_says_how_it_may_be_used() {
    let served = one();
    served.list().await;
    for path in ["/", "/recordings", "/recordings/1", "/api/recordings", "/api/recordings/1/page", "/nothing"] {
        let answer = served.get(path).await;
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin");
        assert_eq!(answer.header("cross-origin-opener-policy"), "same-origin");
        assert_eq!(answer.header("cache-control"), "no-store");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe-eval") && !policy.contains("script-src 'unsafe"), "{policy}");
        assert_eq!(policy.contains("script-src 'sha256-"), path.starts_with("/recordings"), "{path}: {policy}");
    }
}

#[tokio::test]
async fn strangers_without_the_token() {
    let served = one().listening_on("10.0.0.5:7650");
    let url = served.url();
    let token = url.split_once("token=").unwrap().1;
    let host = ("host", "10.0.0.5:7650");
    for path in ["/", "/recordings", "/api/recordings", "/?token=", "/?token=0", &format!("/?token={token}0")] {
        let answer = served.get_with(path, &[host]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(answer.header("set-cookie"), "");
    }
    let wrong = served.get_with("/recordings", &[host, ("cookie", "gpuheap-7650=0")]).await;
    assert_eq!(wrong.status, StatusCode::FORBIDDEN);

    let first = served.get_with(&format!("/?token={token}"), &[host]).await;
    assert_eq!((first.status, first.header("location")), (StatusCode::SEE_OTHER, "/"));
    let cookie = first.header("set-cookie");
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    let cookie = format!("other=1; {}", cookie.split(';').next().unwrap());
    assert_eq!(served.get_with("/api/recordings", &[host, ("cookie", &cookie)]).await.status, StatusCode::OK);
    let elsewhere = [("host", "evil.example"), ("cookie", cookie.as_str())];
    assert_eq!(served.get_with("/api/recordings", &elsewhere).await.status, StatusCode::FORBIDDEN);
}

#[cfg(unix)]
#[tokio::test]
async fn hostile_names_stay_text() {
    let name = "<img src=x onerror=alert(1)>\"'\u{202e}\n.pickle.gz";
    let served =
        Served::new(&[(name, "loops/plain_adam.pickle.gz"), ("bad<script>.pickle", "labels-are-no-recording")][..1]);
    std::fs::write(served.folder.path().join("bad<script>.pickle"), b"\x80\x04bad").unwrap();
    let list = served.list_when(|list| list.len() == 2 && list.iter().all(|row| row["state"] != "reading")).await;
    let row = list.iter().find(|row| row["state"] == "ready").unwrap();
    assert_eq!(row["name"], name);
    for path in [format!("/recordings/{}", row["id"]), "/recordings".to_owned()] {
        let text = served.get(&path).await.text();
        assert!(!text.contains("<img src=x"), "{path}");
    }
    let failed = list.iter().find(|row| row["state"] == "failed").unwrap();
    let answer = served.get_with(&format!("/recordings/{}", failed["id"]), &[("accept", "text/html")]).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer.text().contains("bad&lt;script&gt;.pickle") && !answer.text().contains("bad<script>"));
}
