//! How much host memory there is to spill into.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::Spill;

/// Bytes that may spill; 0 is none.
pub(crate) fn most(spill: Option<Spill>) -> u64 {
    match spill {
        None | Some(Spill::Off) => 0,
        Some(Spill::Most(bytes)) => bytes.get(),
        // Half: the program and the rest of the machine need some, and spilled memory cannot be swapped out.
        Some(Spill::Auto) => free_of_machine().min(free_of_groups(Path::new("/sys/fs/cgroup"))) / 2,
    }
}

/// What the kernel would give without swapping.
fn free_of_machine() -> u64 {
    available(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn available(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kibibytes.map_or(0, |kibibytes: u64| kibibytes.saturating_mul(1024))
}

/// What the groups that this process is in may still take: the least of them counts.
fn free_of_groups(root: &Path) -> u64 {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // In a container the path is often one outside of it; its own group is then the root.
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let group = root.join(path);
    let groups = group.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_path_buf);
    let old = root.join("memory");
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let new =
        groups.filter_map(|group| Some((number(group.join("memory.max"))?, number(group.join("memory.current"))?)));
    let old = number(old.join("memory.limit_in_bytes")).zip(number(old.join("memory.usage_in_bytes")));
    new.chain(old).map(|(most, used)| most.saturating_sub(used)).min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use gpuheap_record::Bytes;

    use super::*;

    #[test]
    fn as_much_as_was_said_or_half_of_what_is_free() {
        assert_eq!((most(None), most(Some(Spill::Off)), most(Some(Spill::Most(Bytes::new(5))))), (0, 0, 5));
        let auto = most(Some(Spill::Auto));
        assert!(auto > 0 && auto < 1 << 50, "{auto}");
        assert_eq!(available("MemTotal:  100 kB\nMemAvailable:    24684084 kB\n"), 24_684_084 * 1024);
        assert_eq!(available(""), 0);
    }

    #[test]
    fn the_tightest_group_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(free_of_groups(folder.path()), u64::MAX);
        fs::write(folder.path().join("memory.max"), "1000\n").unwrap();
        fs::write(folder.path().join("memory.current"), "300\n").unwrap();
        assert_eq!(free_of_groups(folder.path()), 700);
        fs::create_dir(folder.path().join("memory")).unwrap();
        fs::write(folder.path().join("memory/memory.limit_in_bytes"), "500\n").unwrap();
        fs::write(folder.path().join("memory/memory.usage_in_bytes"), "600\n").unwrap();
        assert_eq!(free_of_groups(folder.path()), 0);
        fs::remove_dir_all(folder.path().join("memory")).unwrap();
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(free_of_groups(folder.path()), u64::MAX);
    }
}
