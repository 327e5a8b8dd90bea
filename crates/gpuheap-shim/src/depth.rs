//! Whether the calling thread is inside an overridden function already.
//!
//! A call of the driver may end in an exported function again. The second time it goes straight to the driver. The
//! thread's mark is in static thread storage, reached without a call of the loader and without memory being taken,
//! as a function that an allocator may call has to; the language has no way to ask for that, hence the instructions.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod mark {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss,\"awT\",@nobits",
        ".p2align 2",
        ".globl gpuheap_shim_depth",
        ".hidden gpuheap_shim_depth",
        ".type gpuheap_shim_depth, %tls_object",
        ".size gpuheap_shim_depth, 4",
        "gpuheap_shim_depth:",
        ".zero 4",
        ".popsection",
    );

    /// The calling thread's mark.
    #[inline]
    fn place() -> *mut u32 {
        let place: *mut u32;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: reads the thread's base and the mark's distance from it, and changes nothing else but flags.
        unsafe {
            asm!(
                "mov {place}, qword ptr fs:[0]",
                "add {place}, qword ptr [rip + gpuheap_shim_depth@gottpoff]",
                place = out(reg) place,
                options(nostack, readonly),
            );
        };
        #[cfg(target_arch = "aarch64")]
        // SAFETY: reads the thread's base and the mark's distance from it, and changes nothing else.
        unsafe {
            asm!(
                "mrs {place}, tpidr_el0",
                "adrp {distance}, :gottprel:gpuheap_shim_depth",
                "ldr {distance}, [{distance}, :gottprel_lo12:gpuheap_shim_depth]",
                "add {place}, {place}, {distance}",
                place = out(reg) place,
                distance = out(reg) _,
                options(nostack, readonly),
            );
        };
        place
    }

    /// A number that tells the calling thread from others.
    #[inline]
    pub(super) fn thread() -> u64 {
        place().addr() as u64
    }

    pub(super) fn get() -> bool {
        // SAFETY: the thread's own word, there as long as the thread is.
        unsafe { place().read() != 0 }
    }

    pub(super) fn set(inside: bool) {
        // SAFETY: as above; no other thread knows it.
        unsafe { place().write(u32::from(inside)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod mark {
    use std::cell::Cell;

    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn thread() -> u64 {
        INSIDE.with(|inside| std::ptr::from_ref(inside).addr() as u64)
    }

    pub(super) fn get() -> bool {
        INSIDE.get()
    }

    pub(super) fn set(inside: bool) {
        INSIDE.set(inside);
    }
}

/// A number that tells the calling thread from all others that are there now.
#[inline]
pub(crate) fn thread() -> u64 {
    mark::thread()
}

/// As long as this is there, calls of this thread go straight to the driver.
pub(crate) struct Inside(());

impl Inside {
    /// Marks the thread; nothing if it is marked.
    pub(crate) fn enter() -> Option<Self> {
        if mark::get() {
            return None;
        }
        mark::set(true);
        Some(Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        mark::set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_is_inside_once() {
        let outer = Inside::enter();
        assert!(outer.is_some());
        assert!(Inside::enter().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(Inside::enter().is_some()));
        });
        drop(outer);
        assert!(Inside::enter().is_some());
    }
}
