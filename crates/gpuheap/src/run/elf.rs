//! What a library or a program is, read from the file without loading it.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::elf::{DT_RPATH, DT_RUNPATH, EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::{ElfFile, FileHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache};

/// Tell gpuheap's own libraries from the driver's.
const MARKS: [&str; 2] = ["gpuheap_shim_version", "gpuheap_shim_nvml_version"];

/// What is of interest here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Elf {
    /// Whether it is one of gpuheap's own.
    pub(super) is_shim: bool,
    /// Folders that the loader searches before `LD_LIBRARY_PATH`.
    pub(super) first: Vec<PathBuf>,
}

/// Reads a file of this machine's kind; nothing for others.
pub(super) fn read(path: &Path) -> Option<Elf> {
    let file = File::open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    // Drivers have a hundred megabytes, of which little is needed.
    let cache = ReadCache::new(file);
    let elf = ElfFile::<FileHeader64<Endianness>, _>::parse(&cache).ok()?;
    let machine = elf.elf_header().e_machine(elf.endian());
    let is_ours = (cfg!(target_arch = "x86_64") && machine == EM_X86_64)
        || (cfg!(target_arch = "aarch64") && machine == EM_AARCH64);
    if !is_ours {
        return None;
    }
    let is_shim = elf
        .dynamic_symbols()
        .any(|symbol| symbol.is_definition() && symbol.name().is_ok_and(|name| MARKS.contains(&name)));
    Some(Elf { is_shim, first: first(&elf, path) })
}

/// The folders of `DT_RPATH`, which do not count where there is a `DT_RUNPATH`.
fn first<'a>(elf: &ElfFile<'a, FileHeader64<Endianness>, &'a ReadCache<File>>, path: &Path) -> Vec<PathBuf> {
    let Ok(table) = elf.elf_dynamic_table() else { return Vec::new() };
    let text = |tag| {
        let entry = table.iter().find(|entry| entry.tag == tag)?;
        table.string(entry).ok().map(|text| String::from_utf8_lossy(text).into_owned())
    };
    if text(DT_RUNPATH).is_some() {
        return Vec::new();
    }
    let own = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let own = own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    let folders = text(DT_RPATH).unwrap_or_default();
    let folders = folders.split(':').filter(|folder| !folder.is_empty());
    folders.map(|folder| PathBuf::from(folder.replace("${ORIGIN}", &own).replace("$ORIGIN", &own))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_and_no_other_file() {
        let program = std::env::current_exe().unwrap();
        assert!(read(&program).is_some_and(|elf| !elf.is_shim));
        for path in ["Cargo.toml", "src", "/dev/null", "/nowhere"] {
            assert_eq!(read(Path::new(path)), None, "{path}");
        }
    }
}
