//! Python: NVML by ctypes, as pynvml calls it, and by the Python package of this project.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::rig::{Holder, MIB, Rig, said};

fn there_is_python() -> bool {
    Command::new("python3").arg("--version").output().is_ok()
}

#[test]
fn structures_of_pynvml_are_filled_in() {
    if !there_is_python() {
        eprintln!("skipped: there is no python3 here");
        return;
    }
    let (rig, script) = (Rig::new(), "client.py");
    fs::write(rig.path(script), include_str!("client.py")).unwrap();
    let holder = Holder::start(&mut rig.within(100 * MIB, &Holder::program(&rig)), [0, 1], &[30 * MIB]);
    let text = said(rig.within(100 * MIB, Path::new("python3")).arg(rig.path(script)));
    let expected = format!(
        "0 fake {all} {all} 0 | {all} 0 {all} 0\n1 fake {all} {left} {used} | {all} 0 {left} {used}\n",
        all = 100 * MIB,
        left = 70 * MIB,
        used = 30 * MIB
    );
    assert_eq!(text, expected);
    holder.end();
}

#[test]
fn the_package_s_own_account_is_the_budget_s() {
    if !there_is_python() {
        eprintln!("skipped: there is no python3 here");
        return;
    }
    let rig = Rig::new();
    let holder = Holder::start(&mut rig.within(100 * MIB, &Holder::program(&rig)), [0, 1], &[30 * MIB]);
    // The file alone, which needs nothing else: the package as a whole has to be built.
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/gpuheap/_nvml.py");
    let script = format!(
        "import importlib.util, sys\n\
         found = importlib.util.spec_from_file_location('nvml', {:?})\n\
         nvml = sys.modules['nvml'] = importlib.util.module_from_spec(found)\n\
         found.loader.exec_module(nvml)\n\
         for one in nvml.devices():\n    print(one.index, one.uuid[-2:], one.total, one.free, one.used, one.mig)\n\
         print(nvml.driver_version(), [one.bytes for one in nvml.processes(0)])\n",
        module.display().to_string()
    );
    let text = said(rig.within(100 * MIB, Path::new("python3")).args(["-c", &script]));
    let expected = format!(
        "0 01 {all} {all} 0 False\n1 00 {all} {left} {used} False\n580.65.06 [{}]\n",
        3_u64 << 30,
        all = 100 * MIB,
        left = 70 * MIB,
        used = 30 * MIB
    );
    assert_eq!(text, expected);
    holder.end();
}
