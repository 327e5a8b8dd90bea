//! Programs that run the program: its exit code and its figures come through; and those that lose the library on the way.

use std::process::Command;
use std::time::Duration;

use super::rig::{MIB, Rig, Running, library, said};

#[test]
fn a_program_behind_others_is_counted_and_its_exit_code_comes_through() {
    let rig = Rig::new();
    let client = rig.client();
    let client = client.to_str().unwrap();
    let quoted = format!("{client} once 4194304 > said; cat said; exit 7");
    let launcher = format!("import subprocess, sys; sys.exit(subprocess.call(['sh', '-c', {quoted:?}]))");
    let mut wrappers = vec![
        vec!["env", "OTHER=1", "sh", "-c", &quoted],
        vec!["nice", "-n", "1", "sh", "-c", &quoted],
        vec!["timeout", "60", "sh", "-c", &quoted],
        vec!["sh", "-c", "exec env sh -c \"$0\"", &quoted],
        // Each in a session of its own, and in a group of its own.
        vec!["setsid", "-w", "sh", "-c", &quoted],
    ];
    // As torchrun and its like start their workers.
    if Command::new("python3").arg("--version").output().is_ok() {
        wrappers.push(vec!["python3", "-c", &launcher]);
    }
    for wrapper in wrappers {
        let (code, output, error) = said(&mut rig.run(&[], &wrapper));
        assert_eq!((code, output.as_str()), (Some(7), "once 0\n"), "{wrapper:?}: {error}");
        assert_eq!(error, "gpuheap: peak 4.00 MiB on device 0\n", "{wrapper:?}");
    }
}

#[test]
fn a_program_that_loads_the_driver_and_never_begins_is_no_mistake() {
    let rig = Rig::new();
    let client = rig.client();
    let program = [client.to_str().unwrap(), "loads"];
    assert_eq!(said(&mut rig.run(&[], &program)), (Some(9), String::new(), String::new()));
    let (code, _, error) = said(&mut rig.run(&["--budget", "1GiB", "--spill", "auto"], &program));
    assert_eq!((code, error.as_str()), (Some(9), "gpuheap: no process of this run used CUDA through gpuheap\n"));
}

/// One started without the search path, one that opens the driver by its path; one beside them that does neither.
#[test]
fn who_uses_the_driver_without_the_library_is_told() {
    let rig = Rig::new();
    let client = rig.client();
    let (client, driver) = (client.display(), rig.path("driver"));
    let file = driver.join("libcuda.so.1");
    let script = format!(
        "mkfifo wait; \
         env -u LD_LIBRARY_PATH LD_LIBRARY_PATH={driver} {client} once 1048576 < wait & \
         CLIENT_LIBRARY={file} {client} once 2097152 < wait & \
         {client} once {piece} < wait & exec 3> wait; cat; exec 3>&-; wait; exit 3",
        driver = driver.display(),
        file = file.display(),
        piece = 4 * MIB,
    );
    let running = Running::start(&mut rig.run(&[], &["sh", "-c", &script]), "once 0");
    std::thread::sleep(Duration::from_millis(1500));
    let (code, error) = running.end();
    assert_eq!(code, Some(3), "{error}");
    let fake = library("libgpuheap_fakecuda.so");
    let uses =
        format!(" uses `{}` without gpuheap: what it allocates is neither counted nor limited. ", fake.display());
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 3, "{error}");
    let told = |bytes: &str, why: &str| {
        let line = lines.iter().find(|line| line.contains(bytes)).unwrap_or_else(|| panic!("{error}"));
        assert!(line.starts_with("gpuheap: ") && line.contains(&uses) && line.contains(why), "{line}");
    };
    told("(client once 1048576)", "It was started without the LD_LIBRARY_PATH of the run");
    told("(client once 2097152)", "It does not ask for the driver by its name");
    assert_eq!(lines[2], "gpuheap: peak 4.00 MiB on device 0; 2 processes used the driver without gpuheap");
}
