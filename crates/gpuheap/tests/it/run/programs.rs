//! Programs run as they do without the command: exit codes, output, environment.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::rig::{Rig, said};

#[test]
fn a_program_s_exit_code_is_the_command_s_and_nothing_is_said() {
    let rig = Rig::new();
    for (program, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "exit 255"], 255),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -SEGV $$"], 139),
    ] {
        assert_eq!(said(&mut rig.run(&[], program)), (Some(code), String::new(), String::new()), "{program:?}");
    }
}

#[test]
fn a_program_that_is_not_there_or_no_program_is_told_as_shells_do() {
    let rig = Rig::new();
    fs::write(rig.path("data"), "x").unwrap();
    let missing = rig.path("missing");
    let (code, _, error) = said(&mut rig.run(&[], &["no-such-program"]));
    assert_eq!((code, error.as_str()), (Some(127), "error: Failed to find the program `no-such-program`\n"));
    let (code, _, error) = said(&mut rig.run(&[], &[missing.to_str().unwrap()]));
    assert_eq!((code, error), (Some(127), format!("error: Failed to find the program `{}`\n", missing.display())));
    let (code, _, error) = said(&mut rig.run(&[], &["./data"]));
    assert_eq!(code, Some(126));
    assert_eq!(error, "error: Failed to run `./data`\n  cause: Permission denied (os error 13)\n");
    // A script whose interpreter is not there is found and cannot be run.
    fs::write(rig.path("script"), "#!/nowhere/sh\n").unwrap();
    fs::set_permissions(rig.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let (code, _, error) = said(&mut rig.run(&[], &["./script"]));
    assert_eq!(code, Some(126), "{error}");
    assert!(error.starts_with("error: Failed to run `./script`\n"), "{error}");
    assert_eq!(rig.runs().len(), 0);
}

#[test]
fn without_a_program_or_with_wrong_options_it_says_how_it_is_used() {
    let rig = Rig::new();
    let (code, _, error) = said(rig.command().arg("run"));
    assert_eq!(code, Some(2));
    assert!(error.contains("<PROGRAM>..."), "{error}");
    for (option, value, expected) in [
        ("--budget", "12", "did you mean `12GiB`?"),
        ("--budget", "0", "nothing fits into no memory at all"),
        ("--spill", "much", "or `auto` or `off`"),
    ] {
        let (code, _, error) = said(&mut rig.run(&[option, value], &["true"]));
        assert_eq!(code, Some(2));
        assert!(error.contains(expected), "{error}");
    }
    let (code, _, error) = said(&mut rig.run(&["--no-move", "--spill", "1GiB"], &["true"]));
    assert_eq!(code, Some(2));
    let expected = "error: `--spill` moves memory to the host, and `--no-move` leaves it where it is\n";
    assert!(error.starts_with(expected), "{error}");
}

/// What it is all for, if nothing happens: a program that uses no CUDA gets nothing of it, a static one neither.
#[test]
fn programs_without_cuda_are_not_touched() {
    let rig = Rig::new();
    fs::write(rig.path("plain.c"), "#include <stdio.h>\nint main(void) { puts(\"plain\"); return 5; }\n").unwrap();
    let program = rig.compile("plain", &["plain.c", "-static"]);
    let program = program.to_str().unwrap();
    assert_eq!(said(&mut rig.run(&[], &[program])), (Some(5), "plain\n".to_owned(), String::new()));
    let (code, output, error) = said(&mut rig.run(&["--budget", "1GiB"], &[program]));
    assert_eq!((code, output.as_str()), (Some(5), "plain\n"));
    assert_eq!(error, "gpuheap: no process of this run used CUDA through gpuheap\n");
    let quiet = said(&mut rig.run(&["--budget", "1GiB", "--quiet"], &[program]));
    assert_eq!(quiet, (Some(5), "plain\n".to_owned(), String::new()));
}

#[test]
fn standard_input_and_arguments_go_to_the_program() {
    let rig = Rig::new();
    fs::write(rig.path("input"), "some text").unwrap();
    let mut command = rig.run(&[], &["cat", "-"]);
    command.stdin(fs::File::open(rig.path("input")).unwrap());
    assert_eq!(said(&mut command).1, "some text");
    // Also those that look like the command's own, with and without the two dashes.
    let mut command = rig.command();
    command.args(["run", "printf", "%s\n", "--budget", "--help", "--color", "-q"]);
    assert_eq!(said(&mut command), (Some(0), "--budget\n--help\n--color\n-q\n".to_owned(), String::new()));
}

#[test]
fn the_environment_is_the_user_s_with_the_run_in_front() {
    let rig = Rig::new();
    let shown = |options: &[&str]| {
        let script = "echo $GPUHEAP_RUN; echo $GPUHEAP_LEDGER; echo \"${GPUHEAP_BUDGET-none} ${GPUHEAP_SPILL-none} \
                      ${GPUHEAP_MOVE-none}\"; echo $LD_LIBRARY_PATH; echo ${NUMBA_CUDA_DRIVER-none}; echo $OTHER";
        let mut command = rig.run(options, &["sh", "-c", script]);
        command.env("OTHER", "kept").env("LD_LIBRARY_PATH", format!("{}:/a::/b", rig.path("driver").display()));
        if !options.is_empty() {
            command.env("NUMBA_CUDA_DRIVER", "/usr/lib64/libcuda.so");
        }
        let (code, output, error) = said(&mut command);
        assert_eq!(code, Some(0), "{error}");
        let lines: Vec<String> = output.lines().map(str::to_owned).collect();
        assert!(lines[0].starts_with(rig.place().to_str().unwrap()), "{output}");
        assert_eq!(lines[1], format!("{}/ledger", lines[0]));
        assert_eq!(lines[3], format!("{}/driver:{}:/a::/b", lines[0], rig.path("driver").display()));
        assert_eq!(lines[5], "kept");
        let driver = lines[4].replace(&lines[0], "");
        format!("{} {driver}", lines[2])
    };
    assert_eq!(shown(&[]), "none none none none");
    assert_eq!(shown(&["--budget", "1GiB", "--spill", "2GiB"]), "1073741824 2147483648 none /driver/libcuda.so.1");
    assert_eq!(shown(&["--spill", "auto"]), "none auto none /driver/libcuda.so.1");
    assert_eq!(shown(&["--spill", "off"]), "none none none /driver/libcuda.so.1");
    assert_eq!(shown(&["--no-move"]), "none none 0 /driver/libcuda.so.1");
}
