//! A budget for all processes of a run, and what is said of it.

use super::rig::{MIB, Rig, Running, said, until};

#[test]
fn what_the_budget_refuses_is_told_with_request_process_holders_and_budget() {
    let rig = Rig::new();
    let client = rig.client();
    let (code, output, error) = said(&mut rig.run(&["--budget", "64MiB"], &[client.to_str().unwrap(), "budget"]));
    assert_eq!(code, Some(0), "{error}");
    assert!(output.contains("\n67108864 of 67108864, 67108864, 67108864\n"), "the size of the device: {output}");
    assert!(output.ends_with("0 of 67108864, 0, 67108864\n") && !output.contains("gpuheap"), "{output}");
    for refused in
        ["26.0 MiB of physical memory on device 0", "32.0 MiB for a pool on device 0", "33.0 MiB on device 0"]
    {
        assert!(error.contains(&format!("gpuheap: refused {refused} to ")), "{error}");
    }
    assert!(error.ends_with("gpuheap: peak 64.0 MiB of 64.0 MiB on device 0; 3 requests refused\n"), "{error}");

    let mut command = rig.run(&["--budget", "100MiB"], &[client.to_str().unwrap(), "hold", "41943040"]);
    let running = Running::start(&mut command, "held");
    assert_eq!(running.said, format!("held 2, then 2; free {} of {}", 20 * MIB, 100 * MIB));
    // It is told while it goes on.
    std::thread::sleep(std::time::Duration::from_millis(400));
    let number = process_of(&rig, &running);
    let (code, error) = running.end();
    assert_eq!(code, Some(0));
    let expected = format!(
        "gpuheap: refused 40.0 MiB on device 0 to {number} (client): the run holds 80.0 MiB of its budget of 100 MiB \
         ({number} (client): 80.0 MiB)\ngpuheap: peak 80.0 MiB of 100 MiB on device 0; 1 request refused\n"
    );
    assert_eq!(error, expected);
}

/// The only process of a run.
fn process_of(rig: &Rig, running: &Running) -> String {
    let (_, list, _) = said(rig.command().args(["ps", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let runs = list["runs"].as_array().unwrap();
    let run = runs.iter().find(|run| run["run"] == running.number()).unwrap();
    run["processes"][0]["pid"].to_string()
}

#[test]
fn all_processes_of_a_run_share_it() {
    let rig = Rig::new();
    let client = rig.client();
    // One holds 40 MiB until it is told to end; the other gets what is left.
    let script = format!(
        "mkfifo wait; {0} hold 41943040 < wait > first & exec 3> wait; until grep -q held first; do sleep 0.01; done; \
         {0} hold 1048576 < /dev/null",
        client.display()
    );
    let (code, output, error) = said(&mut rig.run(&["--budget", "64MiB"], &["sh", "-c", &script]));
    assert_eq!(code, Some(0), "{error}");
    assert!(output.ends_with(&format!("held 24, then 2; free 0 of {}\n", 64 * MIB)), "{output}");
    assert!(error.ends_with("gpuheap: peak 64.0 MiB of 64.0 MiB on device 0; 2 requests refused\n"), "{error}");
    until("the run's folder goes away", || rig.runs().is_empty());
}

#[test]
fn without_a_budget_all_is_counted_and_nothing_refused() {
    let rig = Rig::new();
    let client = rig.client();
    let (code, _, error) =
        said(rig.run(&[], &[client.to_str().unwrap(), "devices"]).env("GPUHEAP_FAKECUDA", "devices 2"));
    assert_eq!(code, Some(0), "{error}");
    let last = error.lines().last().unwrap();
    assert!(last.starts_with("gpuheap: peak 1.00 MiB on device 0, ") && last.ends_with(" on device 1"), "{error}");
}

#[test]
fn a_program_that_asks_again_and_again_is_not_told_of_again_and_again() {
    let rig = Rig::new();
    let client = rig.client();
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do {} hold 2097152 < /dev/null > /dev/null; done",
        client.display()
    );
    let (code, _, error) = said(&mut rig.run(&["--budget", "1MiB"], &["sh", "-c", &script]));
    assert_eq!(code, Some(0));
    assert_eq!(error.matches("gpuheap: refused 2.00 MiB on device 0 to ").count(), 20, "{error}");
    assert_eq!(error.matches("(client): the run holds 0 B of its budget of 1.00 MiB\n").count(), 20, "{error}");
    let end = "gpuheap: more requests are refused; they are counted in the summary\n\
               gpuheap: nothing allocated; 25 requests refused\n";
    assert!(error.ends_with(end), "{error}");
}

#[test]
fn a_run_inside_a_run_counts_in_the_outer_one() {
    let rig = Rig::new();
    let (client, own) = (rig.client(), env!("CARGO_BIN_EXE_gpuheap"));
    let client = client.to_str().unwrap();
    for inner in
        [&["run"][..], &["run", "--budget", "64MiB"], &["run", "--budget", "1GiB", "--spill", "off", "--no-move"]]
    {
        let program: Vec<&str> = [&[own], inner, &["--", client, "hold", "10485760"]].concat();
        let (code, output, error) = said(&mut rig.run(&["--budget", "64MiB"], &program));
        assert_eq!(code, Some(0), "{error}");
        assert!(output.ends_with(&format!("held 6, then 2; free {} of {}\n", 4 * MIB, 64 * MIB)), "{output}");
        // The outer one says what there is to say, once.
        assert_eq!(error.lines().count(), 2, "{error}");
        assert!(error.ends_with("gpuheap: peak 60.0 MiB of 64.0 MiB on device 0; 1 request refused\n"), "{error}");
        assert_eq!(rig.runs().len(), 0);
    }
    let refused = |outer: &[&str], inner: &[&str]| {
        let program: Vec<&str> = [&[own, "run"], inner, &["--", "touch", "was-run"]].concat();
        let (code, _, error) = said(&mut rig.run(&[outer, &["--quiet"]].concat(), &program));
        assert_eq!(code, Some(2), "{error}");
        assert!(!rig.path("was-run").exists());
        error
    };
    let hint = "\nhint: leave `--budget` out: what is run counts in the outer run's\n";
    assert_eq!(
        refused(&["--budget", "64MiB"], &["--budget", "32MiB"]),
        format!(
            "error: This is part of a run with a budget of 64.0 MiB: a part of a run cannot have a budget of 32.0 MiB\n{hint}"
        )
    );
    assert_eq!(
        refused(&[], &["--budget", "32MiB"]),
        format!(
            "error: This is part of a run without a budget: a part of a run cannot have a budget of 32.0 MiB\n{hint}"
        )
    );
    assert_eq!(
        refused(&[], &["--spill", "auto"]),
        "error: This is part of a run, which has its own `--spill`\n\nhint: leave `--spill` out\n"
    );
    // The settings of a run that is gone are no run.
    let mut command = rig.run(&["--budget", "64MiB"], &[client, "hold", "10485760"]);
    let (code, output, _) = said(command.env("GPUHEAP_RUN", rig.path("gone")));
    assert_eq!(code, Some(0));
    assert!(output.contains("held 6, then 2;"), "{output}");
}
