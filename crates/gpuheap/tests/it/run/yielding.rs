//! `gpuheap yield` and `gpuheap wake`, with a socket that answers as a process would.

use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread::{self, JoinHandle};

use gpuheap_ledger::State;
use gpuheap_ledger::control::{self, Done, Reply, Request};

use super::rig::{Rig, Running, said, until};
use crate::context::follows;

/// A process of a run, and the answers that it gives, one for each that asks.
struct Process {
    running: Running,
    number: String,
    asked: Option<JoinHandle<Vec<Request>>>,
}

impl Process {
    fn start(rig: &Rig, options: &[&str], replies: Vec<Option<Reply>>) -> Self {
        let client = rig.client();
        let running = Running::start(&mut rig.run(options, &[client.to_str().unwrap(), "hold", "104857600"]), "held");
        let run = rig.place().join(running.number());
        let (_, list, _) = said(rig.command().args(["ps", "--json"]));
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let runs = list["runs"].as_array().unwrap();
        let own = runs.iter().find(|run| run["run"] == running.number()).unwrap();
        let number = own["processes"][0]["pid"].to_string();
        let mut asked = None;
        if !replies.is_empty() {
            let socket = control::socket(&run, number.parse().unwrap());
            // The process itself may have one there by now.
            let _ = std::fs::remove_file(&socket);
            let listener = UnixListener::bind(socket).unwrap();
            asked = Some(thread::spawn(move || {
                let answer = |reply: Option<Reply>| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let request = control::receive(&mut stream).unwrap().parse().unwrap();
                    if let Some(reply) = reply {
                        control::send(&mut stream, &reply).unwrap();
                    }
                    request
                };
                replies.into_iter().map(answer).collect()
            }));
        }
        Self { running, number, asked }
    }

    fn end(self) -> Vec<Request> {
        assert_eq!(self.running.end().0, Some(0));
        self.asked.map(|asked| asked.join().unwrap()).unwrap_or_default()
    }
}

fn asleep() -> Reply {
    let done =
        Done { state: State::Asleep, bytes: 512 << 20, host: 16 << 30, moved: 16 << 30, kept: 512 << 20, seconds: 0.4 };
    Reply::Done(done)
}

#[test]
fn a_process_that_yields_and_wakes_says_what_it_moved() {
    let rig = Rig::new();
    let awake = Done { state: State::Running, bytes: 17 << 30, host: 0, moved: 16 << 30, kept: 0, seconds: 0.5 };
    let nothing = Done { state: State::Running, bytes: 5, ..Done::default() };
    let replies = vec![
        Some(asleep()),
        Some(Reply::Done(awake)),
        Some(asleep()),
        Some(Reply::Done(awake)),
        Some(Reply::Done(nothing)),
    ];
    let process = Process::start(&rig, &[], replies);
    let number = process.number.clone();
    let asked = |arguments: &[&str]| {
        let (code, output, error) = said(rig.command().args(arguments));
        assert_eq!((code, error.as_str()), (Some(0), ""), "{arguments:?}");
        output
    };
    let output = asked(&["yield", &number]);
    assert_eq!(
        output,
        format!("{number} is asleep: 16.0 GiB moved to the host in 0.40 s (42.9 GB/s), 512 MiB left on devices\n")
    );
    assert_eq!(asked(&["wake", &number]), format!("{number} is running: 16.0 GiB moved back in 0.50 s (34.4 GB/s)\n"));
    let json: serde_json::Value =
        serde_json::from_str(&asked(&["yield", &number, "--keep", "2GiB", "--hold", "--json"])).unwrap();
    let expected = serde_json::json!({
        "schema": "gpuheap.yield/1", "pid": number.parse::<u32>().unwrap(), "state": "asleep", "bytes": 512 << 20,
        "host_bytes": 16_u64 << 30, "moved_bytes": 16_u64 << 30, "kept_bytes": 512 << 20, "seconds": 0.4,
        "bytes_per_second": (16_u64 << 30) as f64 / 0.4
    });
    assert_eq!(json, expected);
    let json: serde_json::Value = serde_json::from_str(&asked(&["wake", &number, "--json"])).unwrap();
    assert_eq!((&json["schema"], &json["state"]), (&"gpuheap.wake/1".into(), &"running".into()));
    assert_eq!(
        asked(&["yield", &number]),
        format!("{number} is running: 0 B moved to the host, 5 B left on devices\n")
    );
    let all = Request::Yield { keep: 0, hold: false };
    let expected = [all, Request::Wake, Request::Yield { keep: 2 << 30, hold: true }, Request::Wake, all];
    assert_eq!(process.end(), expected);
}

#[test]
fn the_number_of_a_run_of_one_process_will_do() {
    let rig = Rig::new();
    let process = Process::start(&rig, &[], vec![Some(asleep())]);
    let (code, output, error) = said(rig.command().args(["yield", &process.running.number()]));
    assert_eq!(code, Some(0), "{error}");
    assert!(output.starts_with(&format!("{} is asleep", process.number)), "{output}");
    process.end();
}

#[test]
fn a_process_that_refuses_or_says_nothing_is_told_apart() {
    let rig = Rig::new();
    let refused = Reply::Refused("a graph is being captured".to_owned());
    let process = Process::start(&rig, &[], vec![Some(refused), None]);
    let number = process.number.clone();
    let (code, _, error) = said(rig.command().args(["yield", &number]));
    assert_eq!((code, error), (Some(1), format!("error: Process {number} refused: a graph is being captured\n")));
    let (code, _, error) = said(rig.command().args(["wake", &number]));
    assert_eq!(code, Some(2));
    assert_eq!(error, format!("error: Process {number} gave no answer\n  cause: it ended or closed the connection\n"));
    process.end();
}

#[test]
fn whoever_cannot_be_asked_is_told_why() {
    let rig = Rig::new();
    let asked = |number: &str| {
        let (code, output, error) = said(rig.command().args(["yield", number]));
        assert_eq!((code, output.as_str()), (Some(2), ""));
        error
    };
    assert_eq!(asked("4194303"), "error: There is no process 4194303\n");
    let own = std::process::id();
    let hint = "\nhint: `gpuheap ps` lists the processes that can be asked\n";
    assert_eq!(asked(&own.to_string()), format!("error: Process {own} was not started by `gpuheap run`\n{hint}"));
    assert!(asked("0").contains("invalid value '0'"));
    assert!(asked("x").contains("invalid value 'x'"));

    let waiting = Running::start(&mut rig.run(&[], &["sh", "-c", "echo $$; cat"]), "");
    for number in [waiting.said.clone(), waiting.number()] {
        let expected = format!("error: Process {number} has not used CUDA yet: it holds nothing on a device\n");
        assert_eq!(asked(&number), expected);
    }
    waiting.end();

    let process = Process::start(&rig, &["--no-move"], vec![]);
    let number = process.number.clone();
    assert_eq!(
        asked(&number),
        format!("error: Process {number} was started with `--no-move`: its memory stays where it is\n")
    );
    process.end();

    let process = Process::start(&rig, &[], vec![Some(asleep())]);
    let number = process.number.clone();
    let send = |signal: &str| assert!(Command::new("kill").args([signal, &number]).status().unwrap().success());
    send("-STOP");
    until("it is stopped", || super::rig::state_of(&number) == Some('T'));
    let hint = format!("\nhint: `kill -CONT {number}` lets it go on\n");
    assert_eq!(asked(&number), format!("error: Process {number} is stopped and cannot answer\n{hint}"));
    send("-CONT");
    until("it goes on", || super::rig::state_of(&number) != Some('T'));
    assert_eq!(said(rig.command().args(["yield", &number])).0, Some(0));
    process.end();
}

#[test]
fn of_a_run_of_several_processes_one_must_be_named() {
    let rig = Rig::new();
    let client = rig.client();
    let script = format!(
        "mkfifo wait; {0} hold 104857600 < wait > first & exec 3> wait; until grep -q held first; do sleep 0.01; done; {0} hold 104857600",
        client.display()
    );
    let running = Running::start(&mut rig.run(&[], &["sh", "-c", &script]), "held");
    let (code, _, error) = said(rig.command().args(["yield", &running.number()]));
    assert_eq!(code, Some(2));
    assert!(
        error.starts_with(&format!(
            "error: Process {} is a run of 2 processes\n\nhint: choose one:\n  ",
            running.number()
        )),
        "{error}"
    );
    assert_eq!(error.matches(" (client)\n").count(), 2, "{error}");
    running.end();
}

/// With the library's own answers: what is on the device goes to the host and comes back.
#[test]
fn a_real_process_yields_and_wakes() {
    let rig = Rig::new();
    let client = rig.client();
    let running = Running::start(&mut rig.run(&[], &[client.to_str().unwrap(), "once", "67108864"]), "once 0");
    let asked = |arguments: &[&str]| -> serde_json::Value {
        let (code, output, error) = said(rig.command().args(arguments).arg("--json"));
        assert_eq!(code, Some(0), "{error}");
        serde_json::from_str(&output).unwrap()
    };
    let number = running.number();
    let line = || {
        let (_, list, _) = said(rig.command().arg("ps"));
        let found = list.lines().find(|line| line.starts_with(&number)).unwrap_or_else(|| panic!("{list}"));
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let slept = asked(&["yield", &number]);
    assert_eq!((&slept["state"], &slept["moved_bytes"]), (&"asleep".into(), &(64 << 20).into()));
    assert!(
        line().ends_with(" asleep 0 0 B 64.0 MiB 64.0 MiB - 64.0 MiB spilled the program itself 64.0 MiB on the host")
    );
    let held = asked(&["yield", &number, "--hold"]);
    assert_eq!((&held["state"], &held["moved_bytes"]), (&"held".into(), &0.into()), "what sleeps can be held");
    assert!(line().contains(" held 0 0 B "), "{}", line());
    let (_, list, _) = said(rig.command().args(["ps", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    follows(include_str!("../../../schema/ps.schema.json"), &list);
    let run = list["runs"].as_array().unwrap().iter().find(|run| run["run"] == *number).unwrap();
    let process = &run["processes"][0];
    let by_origin = serde_json::json!({"program": 64 << 20});
    assert_eq!((&process["state"], &process["spilled_by_origin"]), (&"held".into(), &by_origin));
    let woken = asked(&["wake", &number]);
    assert_eq!(
        (&woken["state"], &woken["bytes"], &woken["host_bytes"]),
        (&"running".into(), &(64 << 20).into(), &0.into())
    );
    let (code, error) = running.end();
    assert_eq!(code, Some(0));
    assert!(error.contains("64.0 MiB moved to the host, 64.0 MiB back"), "{error}");
}
