//! How much memory a reader may hold, so that no file, however crafted, takes more than it can justify.

/// Memory that any file may take, whatever its size: room for tables of a few thousand rows and their growth.
const BASE: usize = 12 << 20;

/// How much a reader may have taken between two checks.
pub(crate) const SLICE: usize = 1 << 20;

/// The most memory that a reader may hold after `consumed` decompressed bytes.
///
/// Three times the file is far above what a real snapshot needs (an event takes 87 bytes or more in the file, and about as
/// many here while everything is still open), and far below what sharing could be blown up to.
pub(crate) fn limit(consumed: u64) -> usize {
    usize::try_from(consumed.saturating_mul(3)).unwrap_or(usize::MAX).saturating_add(BASE)
}
