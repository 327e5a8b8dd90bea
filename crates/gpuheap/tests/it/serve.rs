//! `gpuheap serve` on a free port, asked over a socket; `gpuheap open` where there is no browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::context::TestContext;
use crate::recordings::recording;

/// A running server, which ends with this.
struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    host: String,
}

impl Server {
    fn start(context: &TestContext, path: &Path) -> Self {
        let mut child = context
            .command()
            .args(["serve", "--no-open", "--listen", "127.0.0.1:0"])
            .arg(path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let host = line.trim().strip_prefix("http://").and_then(|url| url.strip_suffix('/'));
        let host = host.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, host }
    }

    /// Status, head and body of the answer to these lines of a request.
    fn ask(&self, lines: &str) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("{lines}Connection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), answer[end + 4..].to_vec())
    }

    fn get(&self, path: &str) -> (u16, Vec<u8>) {
        let (status, _, body) = self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n", self.host));
        (status, body)
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).unwrap()
    }

    fn list(&self) -> Vec<Value> {
        let start = Instant::now();
        loop {
            let list = self.json("/api/recordings")["recordings"].as_array().unwrap().clone();
            if list.iter().all(|row| row["state"] != "reading") {
                return list;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{list:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runs() -> TestContext {
    let file = |name| std::fs::read(recording("loops", name)).unwrap();
    TestContext::new()
        .with_file("runs/rank0.pickle.gz", &file("plain_adam"))
        .with_file("runs/rank1.pickle.gz", &file("slow_leak"))
        .with_file("runs/notes.txt", b"no recording")
        .with_file("secret.pickle", b"\x80\x04secret")
}

#[test]
fn a_folder_is_served() {
    let context = runs();
    let server = Server::start(&context, &context.path("runs"));
    let list = server.list();
    let names: Vec<_> = list.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["rank0.pickle.gz", "rank1.pickle.gz"]);
    assert_eq!(list[1]["verdict"]["kind"], "leak");
    assert_eq!(server.json("/api/recordings/1/page")["schema"], "gpuheap.page/1");
    assert_eq!(server.json("/api/diff?a=1&b=2")["schema"], "gpuheap.diff/1");
    assert_eq!(server.json("/api/skew")["runs"][0]["ranks"].as_array().unwrap().len(), 2);
    let (status, head, body) =
        server.ask(&format!("GET /recordings/2 HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: gzip\r\n", server.host));
    assert_eq!((status, &body[..2]), (200, &b"\x1f\x8b"[..]));
    assert!(head.contains("content-encoding: gzip") && head.contains("x-content-type-options: nosniff"), "{head}");
}

#[test]
fn strangers_are_refused() {
    let context = runs();
    let server = Server::start(&context, &context.path("runs"));
    server.list();
    let own = format!("Host: {}\r\n", server.host);
    for (lines, expected) in [
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n".to_owned(), 403),
        ("GET / HTTP/1.0\r\n".to_owned(), 403),
        (format!("GET /api/recordings HTTP/1.1\r\n{own}Origin: https://evil.example\r\n"), 403),
        (format!("GET /api/recordings HTTP/1.1\r\n{own}Sec-Fetch-Site: cross-site\r\n"), 403),
        (format!("POST /api/recordings HTTP/1.1\r\n{own}Content-Length: 0\r\n"), 405),
        (format!("GET /../secret.pickle HTTP/1.1\r\n{own}"), 404),
        (format!("GET /recordings/%2e%2e%2fsecret.pickle HTTP/1.1\r\n{own}"), 404),
        (format!("GET /api/recordings/..%2f..%2fsecret.pickle/page HTTP/1.1\r\n{own}"), 404),
        (format!("GET /{} HTTP/1.1\r\n{own}", "a".repeat(3000)), 414),
        (format!("GET / HTTP/1.1\r\n{own}X: {}\r\n", "a".repeat(40_000)), 431),
    ] {
        let (status, head, body) = server.ask(&lines);
        assert_eq!(status, expected, "{lines}: {head}");
        assert!(!String::from_utf8_lossy(&body).contains("secret"), "{lines}");
    }
}

#[cfg(unix)]
#[test]
fn it_ends_when_asked_to() {
    for signal in ["-INT", "-TERM"] {
        let context = runs();
        let mut server = Server::start(&context, &context.path("runs/rank0.pickle.gz"));
        // Connections that are open do not keep it.
        let _idle = TcpStream::connect(&server.host).unwrap();
        // It answers: from now on it hears signals.
        server.list();
        assert!(Command::new("kill").args([signal, &server.child.id().to_string()]).status().unwrap().success());
        assert_eq!(server.child.wait().unwrap().code(), Some(0), "{signal}");
    }
}

#[test]
fn what_cannot_be_served() {
    let context = TestContext::new();
    insta::assert_snapshot!(context.run(["serve", "-"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Standard input cannot be served: it can be read only once

    hint: save it to a file, or show it with `gpuheap open -`
    ");
    insta::assert_snapshot!(context.run(["serve", "missing"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: Failed to open `missing`
      cause: No such file or directory (os error 2)

    hint: paths start from this folder; PyTorch wrote the file in the folder of the program that ran
    ");
    insta::assert_snapshot!(context.run(["serve", ".", "--listen", "example.org"]), @"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: invalid value 'example.org' for '--listen <ADDRESS>': `example.org` is no address of this machine: write `127.0.0.1:7650`, `[::1]:7650` or a port

    For more information, try '--help'.
    ");
    let context = TestContext::new().with_file("bad/notes.txt", b"no recording").with_file("cut.pickle", b"\x80\x04.");
    for path in ["bad/notes.txt", "cut.pickle"] {
        let text = context.run(["serve", path, "--no-open"]);
        assert!(text.starts_with("exit_code: 2") && text.contains(path), "{text}");
        assert_eq!(text, context.run(["explain", path]));
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let text = context.run(["serve", ".", "--listen", &port]).replace(&port, "[PORT]");
    assert!(text.starts_with("exit_code: 2"), "{text}");
    assert!(text.contains("error: Failed to listen on `127.0.0.1:[PORT]`"), "{text}");
    assert!(text.contains("hint: another program listens there"), "{text}");
}

#[test]
fn a_page_is_kept_where_there_is_no_browser() {
    let context = TestContext::new();
    let mut command = context.command();
    for name in ["DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"] {
        command.env_remove(name);
    }
    // As in a session from elsewhere: no browser is opened, whatever the system.
    command.env("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22");
    for name in ["XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"] {
        command.env(name, context.path("cache"));
    }
    let output = command.arg("open").arg(recording("loops", "plain_adam")).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(stdout.trim());
    assert!(path.starts_with(context.path("cache")), "{stdout}");
    assert!(std::fs::read_to_string(path).unwrap().starts_with("<!doctype html>"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("There is no browser here") && stderr.contains("ssh -L 7650:localhost:7650 HOST"),
        "{stderr}"
    );
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
