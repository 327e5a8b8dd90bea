//! The folder of a run: nobody else's, and gone when the run is.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::rig::{Rig, Running, said, state_of, until};

fn mode(path: &std::path::Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[test]
fn only_its_user_can_enter_it() {
    let rig = Rig::new();
    let client = rig.client();
    // Whatever the user's own mask allows.
    let mut command = rig.command();
    let script = "umask 0; exec \"$0\" \"$@\"";
    let own = env!("CARGO_BIN_EXE_gpuheap");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, own, "run", "--", client.to_str().unwrap(), "hold", "1048576"]);
    for (name, value) in command.arg("ps").get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let running = Running::start(&mut shell, "held");
    let folder = rig.place().join(running.number());
    assert_eq!((mode(&rig.place()), mode(&folder), mode(&folder.join("ledger"))), (0o700, 0o700, 0o600));
    assert_eq!(mode(&folder.join("driver")), 0o700);
    assert_eq!(running.end().0, Some(0));
    assert_eq!(rig.runs().len(), 0);
}

#[test]
fn a_place_that_others_can_enter_or_that_cannot_be_written_is_left_out() {
    let rig = Rig::new();
    let shown = |session: &str| {
        let mut command = rig.run(&[], &["sh", "-c", "echo $GPUHEAP_RUN"]);
        let (code, output, error) = said(command.env("XDG_RUNTIME_DIR", rig.path(session)));
        assert_eq!(code, Some(0), "{error}");
        output
    };
    let own = rig.place().display().to_string();
    assert!(shown("session").starts_with(&own));
    fs::set_permissions(rig.place(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = shown("session");
    assert!(output.starts_with('/') && !output.starts_with(&own), "{output}");
    fs::write(rig.path("file"), "").unwrap();
    for session in ["missing", "file"] {
        let output = shown(session);
        assert!(output.starts_with('/') && !output.contains(session), "{output}");
    }
    // A home that cannot be written does not matter.
    let (code, _, error) = said(rig.run(&[], &["true"]).env("HOME", "/nowhere").env("XDG_RUNTIME_DIR", "/nowhere"));
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn it_stays_as_long_as_a_child_needs_it() {
    let rig = Rig::new();
    let client = rig.client();
    // The program ends, what it started goes on and uses the driver later.
    let script = format!(
        "mkfifo go; (until test -e go-on; do sleep 0.01; done; {0} hold 10485760 < go > out 2> err) & echo $!",
        client.display()
    );
    let mut command = rig.run(&["--budget", "25MiB"], &["sh", "-c", &script]);
    let log = fs::File::create(rig.path("log")).unwrap();
    assert!(command.stdout(log.try_clone().unwrap()).stderr(log).status().unwrap().success());
    let said_by = fs::read_to_string(rig.path("log")).unwrap();
    let child = said_by.lines().next().unwrap().to_owned();
    assert_eq!(rig.runs().len(), 1, "{said_by}");
    fs::write(rig.path("go-on"), "").unwrap();
    // Opening it lets the client start; closing it ends the client.
    let go = fs::OpenOptions::new().write(true).open(rig.path("go")).unwrap();
    until("the client holds something", || fs::read_to_string(rig.path("out")).is_ok_and(|out| out.contains("held")));
    assert!(fs::read_to_string(rig.path("out")).unwrap().contains("held 2, then 2;"), "it is still within the budget");
    let (_, list, _) = said(rig.command().arg("ps"));
    assert!(list.contains("20.0 MiB"), "{list}");
    drop(go);
    until("the child ends", || state_of(&child).is_none_or(|state| state == 'Z'));
    // Whoever comes next takes it away.
    until("the folder is swept", || {
        assert_eq!(said(&mut rig.run(&[], &["true"])).0, Some(0));
        rig.runs().is_empty()
    });
}

#[test]
fn a_killed_command_leaves_the_program_running_and_the_next_one_sweeps() {
    let rig = Rig::new();
    let client = rig.client();
    let mut running =
        Running::start(&mut rig.run(&["--budget", "25MiB"], &[client.to_str().unwrap(), "hold", "10485760"]), "held");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let (_, list, _) = said(rig.command().args(["ps"]));
    assert!(list.contains(&running.number()) && list.contains("20.0 MiB"), "{list}");
    // Its standard input ends with the test's, and so does it.
    assert_eq!(rig.runs().len(), 1);
    running.end();
    until("the folder is swept", || {
        said(rig.command().arg("ps"));
        rig.runs().is_empty()
    });
}
