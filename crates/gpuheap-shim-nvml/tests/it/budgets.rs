//! Sizes within a budget, which are those that CUDA says.

use std::path::Path;

use crate::rig::{Holder, Libraries, MIB, Rig, said};

/// What NVML's two forms have to say of a device.
fn told(total: u64, reserved: u64, free: u64) -> String {
    let used = total - free;
    format!(
        "memory: 0 total {total} free {free} used {used}\n\
         memory, second form: 0 total {total} reserved {reserved} free {free} used {} version 2000028\n",
        used - reserved
    )
}

/// What the client is told of both devices, in NVML's order.
#[track_caller]
fn assert_told(rig: &Rig, client: &Path, budget: u64, devices: [String; 2]) {
    let bar = "BAR1: 0 total 137438953472 free 136365211648 used 1073741824\n";
    let [first, second] = devices;
    let expected = format!("start: 0\ndevice 0: 0\n{first}{bar}device 1: 0\n{second}{bar}end: 0\n");
    assert_eq!(said(&mut rig.within(budget, client)), expected);
}

#[test]
fn a_run_in_which_nobody_started_cuda_has_its_whole_budget_on_each_device() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    assert_told(&rig, &client, 100 * MIB, [told(100 * MIB, 0, 100 * MIB), told(100 * MIB, 0, 100 * MIB)]);
    let all = told(1024 * MIB, 24 * MIB, 1000 * MIB);
    assert_told(&rig, &client, 1 << 40, [all.clone(), all]);
}

#[test]
fn what_others_took_of_a_device_is_gone_for_the_run_too() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    let mut command = rig.within(600 * MIB, &client);
    let text = said(command.env("FAKE_NVML_FREE", (50 * MIB).to_string()));
    assert!(text.contains(&told(600 * MIB, 24 * MIB, 50 * MIB)), "{text}");
    let text = said(rig.within(600 * MIB, &client).env("FAKE_NVML_FREE", "0"));
    assert!(text.contains(&told(600 * MIB, 24 * MIB, 0)), "{text}");
}

#[test]
fn all_processes_see_what_the_run_holds_on_each_device_and_the_same_as_cuda_says() {
    let rig = Rig::new();
    let (client, program) = (rig.client(&[]), Holder::program(&rig));
    let start = |devices, pieces: &[u64]| Holder::start(&mut rig.within(100 * MIB, &program), devices, pieces);
    // CUDA's first device is NVML's second.
    let first = start([0, 1], &[30 * MIB]);
    let says = |free: u64| {
        let sizes = format!("total {} free {}", 100 * MIB, free * MIB);
        format!("CUDA {sizes}, NVML {sizes} used {}", (100 - free) * MIB)
    };
    assert_eq!(first.said, format!("allocate: 0\n{}", says(70)));
    let whole = || told(100 * MIB, 0, 100 * MIB);
    assert_told(&rig, &client, 100 * MIB, [whole(), told(100 * MIB, 0, 70 * MIB)]);
    let second = start([0, 1], &[50 * MIB, 30 * MIB]);
    assert_eq!(second.said, format!("allocate: 0\nallocate: 2\n{}", says(20)));
    let third = start([1, 0], &[10 * MIB]);
    assert_eq!(third.said, format!("allocate: 0\n{}", says(90)));
    assert_told(&rig, &client, 100 * MIB, [told(100 * MIB, 0, 90 * MIB), told(100 * MIB, 0, 20 * MIB)]);
    // The ledger's word is the run's, whatever a process wishes.
    assert_told(&rig, &client, 7, [told(100 * MIB, 0, 90 * MIB), told(100 * MIB, 0, 20 * MIB)]);
    // Nobody has to take a killed one out for this.
    second.kill();
    assert_told(&rig, &client, 100 * MIB, [told(100 * MIB, 0, 90 * MIB), told(100 * MIB, 0, 70 * MIB)]);
    first.end();
    third.end();
    assert_told(&rig, &client, 100 * MIB, [whole(), whole()]);
}

/// Part of what is gone is reserved where less is free than the run left.
#[test]
fn reserved_memory_is_told_as_far_as_the_budget_reaches_it() {
    let rig = Rig::new();
    let (client, program) = (rig.client(&[]), Holder::program(&rig));
    let holder = Holder::start(&mut rig.within(500 * MIB, &program), [0, 1], &[30 * MIB]);
    for (free, reserved) in [(480, 0), (460, 10), (400, 24)] {
        let mut command = rig.within(500 * MIB, &client);
        let text = said(command.env("FAKE_NVML_FREE", (free * MIB).to_string()));
        let expected = told(500 * MIB, reserved * MIB, free.min(470) * MIB);
        assert!(text.contains(&expected), "{expected}{text}");
    }
    holder.end();
}

#[test]
fn a_device_without_a_known_uuid_has_the_budget_and_none_of_what_the_run_holds() {
    let rig = Rig::new();
    let (client, program) = (rig.client(&[]), Holder::program(&rig));
    let holder = Holder::start(&mut rig.within(100 * MIB, &program), [0, 1], &[30 * MIB]);
    let text = said(rig.within(100 * MIB, &client).env("FAKE_NVML_NO_UUID", "1"));
    assert_eq!(text.matches(&told(100 * MIB, 0, 100 * MIB)).count(), 2, "{text}");
    // The UUID of a part is told in the same form.
    let text = said(rig.within(100 * MIB, &client).env("FAKE_NVML_MIG", "1"));
    assert!(text.contains(&told(100 * MIB, 0, 70 * MIB)), "{text}");
    holder.end();
}

#[test]
fn a_library_that_asks_itself_by_exported_names_is_told_the_same() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    let plain = said(&mut rig.within(100 * MIB, &client));
    let mut nested = rig.within(100 * MIB, &client);
    assert_eq!(said(nested.env("FAKE_NVML_NESTED", "1").env("CLIENT_GLOBAL", "1")), plain);
}

#[test]
fn a_child_of_the_process_is_told_the_same() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    let text = said(rig.within(100 * MIB, &client).arg("forked"));
    assert_eq!(text.matches(&told(100 * MIB, 0, 100 * MIB)).count(), 2, "{text}");
    assert!(text.ends_with("child: 0\n"), "{text}");
    let bare = said(rig.command(Libraries::Bare, &client).arg("forked"));
    assert_eq!(bare.lines().count(), text.lines().count());
}
