//! Where there is no budget, programs are told what NVML says; and what is not about sizes they are always.

use std::fs;

use crate::rig::{Libraries, MIB, Rig, said};

#[test]
fn outside_of_a_run_and_without_a_budget_nothing_is_changed() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    for subject in ["sizes", "oddities", "forked"] {
        let bare = said(rig.command(Libraries::Bare, &client).arg(subject));
        assert!(bare.lines().count() > 5, "{bare}");
        assert_eq!(said(rig.command(Libraries::Ours, &client).arg(subject)), bare);
        // A budget alone is a process's own, of which only the driver's shim in that process knows.
        assert_eq!(said(rig.command(Libraries::Ours, &client).arg(subject).env("GPUHEAP_BUDGET", "1000")), bare);
        let mut run = rig.within(0, &client);
        assert_eq!(said(run.arg(subject)), bare, "a run without a budget, and nothing in it yet");
        for odd in ["", "12GiB", "-1", "99999999999999999999999"] {
            assert_eq!(said(rig.within(0, &client).arg(subject).env("GPUHEAP_BUDGET", odd)), bare, "{odd:?}");
        }
    }
}

#[test]
fn within_a_budget_errors_and_everything_but_sizes_are_as_ever() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    let bare = said(rig.command(Libraries::Bare, &client).arg("oddities"));
    let expected = "before the start: 1 total 1 free 2 used 3\nstart: 0\nno such device: 2 total 1 free 2 used 3\n\
        null: 2 2\nunknown form: 25 7 1 2 3 4\nlater form: 0, 44 bytes as they were given\n\
        processes: 0 1 own 1 bytes 3221225472\ntomorrow: 7\n";
    assert_eq!(bare, expected);
    assert_eq!(said(rig.within(100 * MIB, &client).arg("oddities")), bare);
    for code in ["3", "15", "999"] {
        let bare = said(rig.command(Libraries::Bare, &client).env("FAKE_NVML_CODE", code));
        assert_eq!(said(rig.within(100 * MIB, &client).env("FAKE_NVML_CODE", code)), bare);
    }
}

#[test]
fn a_function_that_the_library_lacks_is_not_there() {
    let rig = Rig::with(&["-DOLD"]);
    let client = rig.client(&[]);
    let bare = said(&mut rig.command(Libraries::Bare, &client));
    assert!(bare.contains("memory, second form: 13 "), "{bare}");
    assert_eq!(said(&mut rig.command(Libraries::Ours, &client)), bare);
    let within = said(&mut rig.within(100 * MIB, &client));
    let sizes = format!("memory: 0 total {0} free {0} used 0", 100 * MIB);
    let expected = bare.replace(&format!("memory: 0 total {} free {} used {}", 1 << 30, 1000 * MIB, 24 * MIB), &sizes);
    assert_eq!(within, expected);
}

#[test]
fn a_ledger_that_is_none_is_left_alone_and_the_budget_holds_for_each_process() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    let plain = said(&mut rig.within(100 * MIB, &client));
    let ledger = rig.path("ledger");
    assert!(!ledger.exists(), "whoever only asks makes none");
    for content in [Vec::new(), b"something else".to_vec(), vec![b'x'; 1 << 21]] {
        fs::write(&ledger, &content).unwrap();
        assert_eq!(said(&mut rig.within(100 * MIB, &client)), plain);
        assert_eq!(fs::read(&ledger).unwrap(), content);
    }
    fs::remove_file(&ledger).unwrap();
    fs::create_dir(&ledger).unwrap();
    assert_eq!(said(&mut rig.within(100 * MIB, &client)), plain);
}
