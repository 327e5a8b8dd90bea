//! Which library asked for an allocation.
//!
//! The stack is walked up to the first code that is neither this library's nor the CUDA runtime's, and its file says who
//! asked: `libraries` has the rules. Libraries with a runtime of their own inside are told by that.
//!
//! A walk costs microseconds, so what it found is kept. The next time the stack is compared with what was found before:
//! at a fixed distance from here lies the address that this function returns to; it tells which place of which function
//! called, and so how large that function's frame is and where the address lies that it returns to itself, and so on.
//! That holds as long as frames of that place always have the same size. Where one was seen with another size, nothing
//! is kept beyond it, and what comes from there is walked each time.

mod libraries;
mod objects;
mod paths;
mod walk;

pub(crate) use gpuheap_ledger::Origin;

/// Who called the overridden function that this is called in. Not for the launch path.
///
/// Never inlined: the distance from here to the caller's frame has to be the same each time.
#[inline(never)]
pub(crate) fn of_caller() -> Origin {
    let base = paths::base();
    let loaded = objects::unloads();
    if let Some(origin) = paths::find(base, loaded) {
        return origin;
    }
    let walk = walk::up();
    paths::keep(base, loaded, &walk);
    walk.origin
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caller of everything here is the test program itself, which is this library as well, and behind it libc.
    #[test]
    fn where_nobody_is_found_nobody_is_named() {
        for _ in 0..3 {
            assert_eq!(of_caller(), Origin::Unknown);
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(of_caller(), Origin::Unknown));
            }
        });
    }
}
