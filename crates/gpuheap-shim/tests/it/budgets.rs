//! A budget for all processes of a run.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::rig::{Driver, Rig, said};

const MIB: usize = 1 << 20;

/// A process that took all that it got.
struct Holder {
    child: Child,
    said: String,
}

impl Holder {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.find_map(|line| line.ok().filter(|line| line.starts_with("held"))).unwrap();
        Self { child, said }
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn hold(rig: &Rig, client: &std::path::Path, budget: usize, piece: usize) -> Command {
    let mut command = rig.command(Driver::Shim, client);
    command.arg("hold").arg(piece.to_string());
    command.env("GPUHEAP_LEDGER", rig.path("ledger")).env("GPUHEAP_BUDGET", budget.to_string());
    command
}

#[test]
fn every_kind_of_memory_stays_within_it_and_sizes_agree() {
    let rig = Rig::new();
    let client = rig.client();
    let (text, charged) =
        said(rig.command(Driver::Shim, &client).arg("budget").env("GPUHEAP_BUDGET", (64 * MIB).to_string()));
    let expected = format!(
        "{start}{info}{all} of {all}, {all}, {all}\n\
         alloc: 0\ncreate more than is left: 2\ncreate: 0\nordered: 2\n\
         {info}{left} of {all}, {left}, {all}\n\
         release: 0\nfree: 0\nordered: 0\nalloc: 2\nalloc: 0\n\
         {info}0 of {all}, 0, {all}\n",
        start = "init: 0\ncount: 0\nretain: 0\ncurrent: 0\n",
        info = "info: 0\ninfo without free: 0\ninfo without total: 0\ninfo without either: 0\ntotal: 0\n",
        all = 64 * MIB,
        left = 14 * MIB,
    );
    assert_eq!(text, expected);
    assert_eq!(charged, format!("budget: 0={} 1={}\n", 32 * MIB, 32 * MIB));
}

/// As `CUDA_VISIBLE_DEVICES` does, each process is given devices of its own, and counts them from 0.
#[test]
fn a_device_has_one_budget_whatever_its_number_and_another_device_of_that_number_has_its_own() {
    let rig = Rig::new();
    let client = rig.client();
    let start = |first: u32| {
        let mut command = hold(&rig, &client, 100 * MIB, 40 * MIB);
        Holder::start(command.env("GPUHEAP_FAKECUDA", format!("devices 2; first {first}")))
    };
    let holders = [start(0), start(1)];
    for holder in &holders {
        assert_eq!(holder.said, format!("held 2, then 2; free {} of {}", 20 * MIB, 100 * MIB));
    }
    let third = start(1);
    assert_eq!(third.said, format!("held 0, then 2; free {} of {}", 20 * MIB, 100 * MIB));
    for holder in holders {
        holder.end();
    }
    third.end();
}

#[test]
fn processes_share_it_and_a_killed_one_gives_its_part_back_without_being_asked() {
    let rig = Rig::new();
    let client = rig.client();
    let start = |budget, piece| Holder::start(&mut hold(&rig, &client, budget, piece));
    let first = start(100 * MIB, 40 * MIB);
    assert_eq!(first.said, format!("held 2, then 2; free {} of {}", 20 * MIB, 100 * MIB));
    // The second one's own wish is not heard: the run has a budget.
    let second = start(500 * MIB, 10 * MIB);
    assert_eq!(second.said, format!("held 2, then 2; free 0 of {}", 100 * MIB));
    let third = start(100 * MIB, MIB);
    assert_eq!(third.said, format!("held 0, then 2; free 0 of {}", 100 * MIB));
    first.kill();
    let fourth = start(100 * MIB, 20 * MIB);
    assert_eq!(fourth.said, format!("held 4, then 2; free 0 of {}", 100 * MIB));
    second.end();
    third.end();
    let fifth = start(100 * MIB, 20 * MIB);
    assert_eq!(fifth.said, format!("held 1, then 2; free 0 of {}", 100 * MIB));
    fourth.kill();
    fifth.kill();
}

#[test]
fn killed_at_any_point_a_process_leaves_nothing_behind() {
    let rig = Rig::new();
    let client = rig.client();
    for round in 0..40_u64 {
        let mut churning: Vec<Child> = (0..3)
            .map(|_| {
                let mut command = rig.command(Driver::Shim, &client);
                command.arg("churn").env("GPUHEAP_LEDGER", rig.path("ledger"));
                command.env("GPUHEAP_BUDGET", (20 * MIB).to_string()).stdout(Stdio::piped());
                let mut child = command.spawn().unwrap();
                // It says when it begins.
                let mut begun = String::new();
                BufReader::new(child.stdout.take().unwrap()).read_line(&mut begun).unwrap();
                child
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_micros(round * 97));
        for child in &mut churning {
            child.kill().unwrap();
        }
        for child in &mut churning {
            child.wait().unwrap();
        }
    }
    let holder = Holder::start(&mut hold(&rig, &client, 20 * MIB, MIB));
    assert_eq!(holder.said, format!("held 20, then 2; free 0 of {}", 20 * MIB));
    holder.end();
}

#[test]
fn what_a_program_held_before_an_exec_is_free_after_it() {
    let rig = Rig::new();
    let client = rig.client();
    let mut command = rig.command(Driver::Shim, &client);
    command.arg("exec").arg(MIB.to_string()).stderr(Stdio::null());
    command.env("GPUHEAP_LEDGER", rig.path("ledger")).env("GPUHEAP_BUDGET", (4 * MIB).to_string());
    let mut holder = Holder::start(&mut command);
    assert_eq!(holder.said, format!("held 4, then 2; free 0 of {}", 4 * MIB));
    holder.child.stdin.as_mut().unwrap().flush().unwrap();
    holder.end();
}

#[test]
fn two_copies_of_the_library_in_a_process_share_it() {
    let rig = Rig::new();
    let client = rig.client();
    let mut command = rig.command(Driver::Shim, &client);
    command.arg("twice").env("GPUHEAP_LEDGER", rig.path("ledger")).env("GPUHEAP_BUDGET", (4 * MIB).to_string());
    let (text, charged) = said(&mut command);
    let start = "init: 0\ncount: 0\nretain: 0\ncurrent: 0\n";
    let expected = format!("{start}alloc: 0\n1\n{start}more than is left: 2\nalloc: 0\nnothing is left: 2\n");
    assert_eq!(text, expected);
    assert_eq!(charged, format!("second: 0={MIB}\nfirst: 0={}\n", 3 * MIB));
}

#[test]
fn a_ledger_that_cannot_be_written_leaves_the_process_its_own_budget() {
    let rig = Rig::new();
    let client = rig.client();
    let mut command = rig.command(Driver::Shim, &client);
    command.arg("hold").arg(MIB.to_string());
    command.env("GPUHEAP_LEDGER", "/nowhere/ledger").env("GPUHEAP_BUDGET", (4 * MIB).to_string());
    let holder = Holder::start(&mut command);
    assert_eq!(holder.said, format!("held 4, then 2; free 0 of {}", 4 * MIB));
    holder.end();
}
