//! `gpuheap serve` on a recording of a gigabyte: how soon it shows the page, what it takes, how fast it answers.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{Bar, Limit, Pin, peak_of};
use crate::failure::Failure;
use crate::workspace::{self, Workspace};

/// Events that make about a gigabyte.
pub(super) const EVENTS: u64 = 6_000_000;

/// The most seconds from the start to the page.
const START_BAR: f64 = 5.0;
/// The most memory, in sizes of the file.
const MEMORY_BAR: f64 = 3.0;
/// The most milliseconds of an answer.
const ANSWER_BAR: f64 = 100.0;
/// A server that is not ready by then never will be.
const PATIENCE: Duration = Duration::from_secs(120);
/// Moments and ranges that are asked for.
const LOOKS: u64 = 20;

/// Serves the file, asks as a reader would, and says what came of it.
pub(super) fn run(workspace: &Workspace, pin: Pin, binary: &Path, file: &Path) -> Result<Vec<Bar>, Failure> {
    let start = Instant::now();
    let server = Server::start(workspace, pin, binary, file)?;
    while server.get("/recordings/1")?.status == 202 {
        if start.elapsed() > PATIENCE {
            return Err(Failure::new("`gpuheap serve` never finished to read"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    server.answered("/api/recordings/1/page")?;
    let ready = start.elapsed().as_secs_f64();
    // The first look at the page started the search for other settings.
    let busy = slowest(&server)?;
    while server.get("/api/recordings/1/whatif")?.status == 202 {
        thread::sleep(Duration::from_millis(50));
    }
    let idle = slowest(&server)?;
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).ok();
    let peak = status.as_deref().and_then(peak_of);

    let mut bars = vec![Bar {
        name: "serve, 1 GB: seconds until the page is there",
        value: ready,
        limit: Limit::AtMost(START_BAR),
    }];
    match peak {
        Some(peak) => bars.push(Bar {
            name: "serve, 1 GB: peak memory / file",
            value: peak as f64 / super::file_bytes(file)? as f64,
            limit: Limit::AtMost(MEMORY_BAR),
        }),
        None => println!("this system does not tell a program's peak memory: serve's is not compared with the file"),
    }
    for (name, value) in
        [("serve, 1 GB: ms of the slowest answer", idle), ("  the same while other settings are tried", busy)]
    {
        bars.push(Bar { name, value, limit: Limit::AtMost(ANSWER_BAR) });
    }
    Ok(bars)
}

/// Milliseconds of the slowest of all that a reader asks for.
fn slowest(server: &Server) -> Result<f64, Failure> {
    let last = server.events()?;
    let mut questions =
        vec!["/recordings/1".to_owned(), "/api/recordings/1/page".to_owned(), "/api/diff?a=1&b=1".to_owned()];
    for look in 0..=LOOKS {
        let tick = last * look / LOOKS;
        questions.push(format!("/api/recordings/1/moment?tick={tick}"));
        // From everything down to some events.
        let span = (last >> look).max(100).min(last);
        let from = (last - span) * look / LOOKS;
        questions.push(format!("/api/recordings/1/timeline?from={from}&to={}&points=1500", from + span));
    }
    let mut slowest: (f64, &str) = (0.0, "");
    for question in &questions {
        let start = Instant::now();
        server.answered(question)?;
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        if milliseconds > slowest.0 {
            slowest = (milliseconds, question);
        }
    }
    println!("serve: the slowest of {} answers took {:.0} ms: {}", questions.len(), slowest.0, slowest.1);
    Ok(slowest.0)
}

/// A running server, which ends with this.
struct Server {
    child: Child,
    host: String,
}

struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Server {
    fn start(workspace: &Workspace, pin: Pin, binary: &Path, file: &Path) -> Result<Self, Failure> {
        let mut command = pin.pair(workspace, binary);
        command.args(["serve", "--no-open", "--listen", "127.0.0.1:0"]).arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| workspace::not_started(&command, error))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // An empty line is found out below.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let host = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        let server = Self { child, host };
        if server.host.is_empty() { Err(Failure::new("`gpuheap serve` said no address")) } else { Ok(server) }
    }

    fn get(&self, path: &str) -> Result<Answer, Failure> {
        let failed = |error| Failure::new(format!("Failed to ask `gpuheap serve` for `{path}`")).cause(error);
        let mut stream = TcpStream::connect(&self.host).map_err(failed)?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n", self.host);
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map_err(failed)?;
        let status = answer.get(9..12).and_then(|code| std::str::from_utf8(code).ok()?.parse().ok()).unwrap_or(0);
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").map_or(answer.len(), |end| end + 4);
        Ok(Answer { status, body: answer.split_off(end) })
    }

    fn answered(&self, path: &str) -> Result<Answer, Failure> {
        let answer = self.get(path)?;
        match answer.status {
            200 => Ok(answer),
            status => Err(Failure::new(format!("`gpuheap serve` answered `{path}` with {status}"))),
        }
    }

    /// How many events the recording has.
    fn events(&self) -> Result<u64, Failure> {
        let list = self.answered("/api/recordings")?;
        let text = String::from_utf8_lossy(&list.body);
        let digits = text.split_once("\"events\":").map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
        let events = digits.flatten().and_then(|digits| digits.parse().ok());
        events.ok_or_else(|| Failure::new("`gpuheap serve` does not say how many events there are"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that is gone already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
