//! How programs come to the library, and what it needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use gpuheap_shim_nvml::NAMES;

use crate::rig::{Libraries, MIB, Rig, library, said};

fn readelf(arguments: &[&str]) -> String {
    let mut command = Command::new("readelf");
    said(command.args(arguments).arg("--wide").arg(library("libgpuheap_shim_nvml.so")).env("LC_ALL", "C"))
}

#[test]
fn it_has_the_driver_s_name_and_needs_the_c_library_and_the_one_behind_it_alone() {
    let dynamic = readelf(&["--dynamic"]);
    let of = |tag: &str| -> BTreeSet<String> {
        let lines = dynamic.lines().filter(|line| line.contains(tag));
        lines.filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned())).collect()
    };
    assert_eq!(of("(SONAME)"), BTreeSet::from(["libnvidia-ml.so.1".to_owned()]));
    // The older tag, which is searched before LD_LIBRARY_PATH.
    assert_eq!((of("(RPATH)"), of("(RUNPATH)")), (BTreeSet::from(["$ORIGIN".to_owned()]), BTreeSet::new()));
    let mut needed = of("(NEEDED)");
    assert!(needed.remove("libnvidia-ml-real.so") && needed.remove("libc.so.6"), "{needed:?}");
    needed.retain(|name| !name.starts_with("ld-linux"));
    assert_eq!(needed, BTreeSet::new(), "programs without these must run as well");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn it_exports_what_is_overridden_and_its_mark() {
    let text = readelf(&["--dyn-syms"]);
    let defined = text.lines().filter(|line| line.contains(" FUNC ") && !line.contains(" UND "));
    let exported: BTreeSet<&str> = defined.filter_map(|line| line.split_whitespace().last()).collect();
    let mut wanted: BTreeSet<&str> = NAMES.iter().copied().collect();
    wanted.insert("gpuheap_shim_nvml_version");
    assert_eq!(exported, wanted);
}

#[test]
fn it_is_found_by_either_name_however_it_is_opened() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    let plain = said(&mut rig.within(100 * MIB, &client));
    assert!(plain.contains(&format!("total {}", 100 * MIB)), "{plain}");
    for (name, value) in
        [("CLIENT_LIBRARY", "libnvidia-ml.so"), ("CLIENT_DEEP", "1"), ("CLIENT_GLOBAL", "1"), ("CLIENT_REOPEN", "1")]
    {
        assert_eq!(said(rig.within(100 * MIB, &client).env(name, value)), plain, "{name}");
    }
}

/// With and without versions of its symbols, of which the loader says only that ours has none.
#[test]
fn a_program_that_was_linked_with_the_driver_s_own_library_gets_ours() {
    for flags in [&[][..], &["-Wl,--default-symver"]] {
        let rig = Rig::with(flags);
        let plain = said(&mut rig.within(100 * MIB, &rig.client(&[])));
        let folder = format!("-L{}", rig.libraries(Libraries::Bare).display());
        let linked = rig.client(&["-DLINKED", &folder, "-lnvidia-ml"]);
        let output = rig.within(100 * MIB, &linked).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), plain);
        assert!(stderr.lines().all(|line| line.contains("no version information available")), "{stderr}");
        assert_eq!(stderr.is_empty(), flags.is_empty());
    }
}

#[test]
fn programs_that_know_nothing_of_it_run_as_ever() {
    let rig = Rig::new();
    assert_eq!(said(&mut rig.within(MIB, Path::new("/bin/true"))), "");
}

#[test]
fn without_a_library_behind_it_the_loader_says_what_is_missing() {
    let rig = Rig::new();
    let client = rig.client(&[]);
    fs::remove_file(rig.libraries(Libraries::Ours).join("libnvidia-ml-real.so")).unwrap();
    let output = rig.command(Libraries::Ours, &client).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("libnvidia-ml-real.so"), "{text}");
}
