//! A ledger that is gone while its run goes on: nobody ends for it, and everybody says so.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use super::rig::{MIB, Rig, Running, said};

#[test]
fn a_ledger_that_is_cut_short_or_written_over_is_told_and_the_program_goes_on() {
    let rig = Rig::new();
    let client = rig.client();
    let piece = (10 * MIB).to_string();
    for is_cut in [true, false] {
        let running =
            Running::start(&mut rig.run(&["--budget", "64MiB"], &[client.to_str().unwrap(), "hold", &piece]), "held 6");
        let path = rig.place().join(running.number()).join("ledger");
        let ledger = OpenOptions::new().write(true).open(&path).unwrap();
        if is_cut {
            ledger.set_len(0).unwrap();
        } else {
            ledger.write_all_at(b"something else", 0).unwrap();
        }
        let why = if is_cut {
            format!("Failed to read the ledger `{}`", path.display())
        } else {
            format!("`{}` is no ledger of this version of gpuheap", path.display())
        };
        let (code, _, error) = said(rig.command().args(["ps", "--json"]));
        let expected = format!("gpuheap: {}: what run {} holds is not known\n", why, running.number());
        let no_ledger = format!("gpuheap: `{}` is no ledger of this version of gpuheap: what", path.display());
        assert!(code == Some(0) && (error == expected || error.starts_with(&no_ledger)), "{error}");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let (code, error) = running.end();
        assert_eq!(code, Some(0), "{error}");
        let told = format!("gpuheap: {why}: somebody cut it short, or its disk fails.");
        assert_eq!(error.lines().filter(|line| line.starts_with(&told)).count(), 1, "{error}");
        assert_eq!(rig.runs().len(), 0, "nothing is left behind");
    }
}
