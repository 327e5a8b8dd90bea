//! Every function of the driver API, with all the symbols under which the library exports it.
//!
//! A program asks for a function by its base name and gets the newest form that is not newer than the version that it
//! names (`cuGetProcAddress`), or it takes an exported symbol by its own name (`dlsym`). Names alone do not tell the two
//! apart: `cuCtxSynchronize_v2` is a form of `cuCtxSynchronize` with more arguments, and not what a program of CUDA 12
//! wants.

use std::sync::LazyLock;

/// Whose default stream a function means by stream 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flavour {
    /// The one of the context, which waits for all others.
    Legacy,
    /// The one of the calling thread: functions of memory that take no stream (`_ptds`).
    ThreadNoStream,
    /// The one of the calling thread: functions that take a stream (`_ptsz`).
    ThreadStream,
}

/// One form of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// The name by which `cuGetProcAddress` knows it: `cuMemAlloc`.
    pub base: &'static str,
    /// The first version of the API that has this form: 3020 for 3.2.
    pub since: u32,
    /// Whose default stream it means.
    pub flavour: Flavour,
    /// The exported name: `cuMemAlloc_v2`.
    pub name: &'static str,
}

/// All of them, by base name; of one base name those for the legacy stream first, each sort from old to new.
#[must_use]
pub fn all() -> &'static [Symbol] {
    static ALL: LazyLock<Vec<Symbol>> =
        LazyLock::new(|| include_str!("symbols.txt").lines().filter_map(parse).collect());
    &ALL
}

/// The form of `base` that a program of `version` gets.
#[must_use]
pub fn resolve(base: &str, version: u32, per_thread: bool) -> Option<&'static Symbol> {
    let forms = || all().iter().filter(|symbol| symbol.base == base && symbol.since <= version);
    let of = |thread: bool| forms().rfind(move |symbol| (symbol.flavour != Flavour::Legacy) == thread);
    if per_thread { of(true).or_else(|| of(false)) } else { of(false) }
}

fn parse(line: &'static str) -> Option<Symbol> {
    let mut fields = line.split(' ').filter(|_| !line.starts_with('#'));
    let base = fields.next()?;
    let since = fields.next()?.parse().ok()?;
    let flavour = match fields.next()? {
        "ptds" => Flavour::ThreadNoStream,
        "ptsz" => Flavour::ThreadStream,
        _ => Flavour::Legacy,
    };
    Some(Symbol { base, since, flavour, name: fields.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_is_read_and_no_symbol_is_there_twice() {
        let lines = include_str!("symbols.txt").lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(all().len(), lines);
        let mut names: Vec<_> = all().iter().map(|symbol| symbol.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), lines);
    }

    #[test]
    fn a_program_gets_the_form_of_its_version_and_of_its_default_stream() {
        let name = |base, version, thread| resolve(base, version, thread).map(|symbol| symbol.name);
        assert_eq!(name("cuMemAlloc", 13_000, false), Some("cuMemAlloc_v2"));
        assert_eq!(name("cuMemAlloc", 2000, false), Some("cuMemAlloc"));
        assert_eq!(name("cuMemAllocAsync", 12_000, true), Some("cuMemAllocAsync_ptsz"));
        assert_eq!(name("cuMemAllocAsync", 11_010, true), None);
        assert_eq!(name("cuMemcpyHtoD", 12_000, true), Some("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(name("cuMemcpyHtoD", 6000, true), Some("cuMemcpyHtoD_v2"), "before there were per-thread streams");
        assert_eq!(name("cuCtxSynchronize", 12_080, false), Some("cuCtxSynchronize"));
        assert_eq!(name("cuMemAlloc_v2", 13_000, false), None, "a symbol is no base name");
    }
}
