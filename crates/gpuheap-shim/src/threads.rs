//! Threads of this library's own. A program's signals are for its own threads, and calls of the driver that end in
//! exported functions are not the program's there.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{self, JoinHandle};

use crate::depth::Inside;

/// Begins a thread that lasts.
pub(crate) fn begin(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let own = move || {
        let _inside = Inside::enter();
        work();
    };
    // A new thread begins with those signals blocked that its maker blocks.
    let before = block_signals();
    let started = thread::Builder::new().name(name.to_owned()).spawn(own);
    restore_signals(before);
    started
}

/// Blocks all signals of the calling thread but that of a ledger that is cut short, which ends whoever does not hear it;
/// what was blocked before is given back.
fn block_signals() -> MaybeUninit<libc::sigset_t> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: makes a set in `all`.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: made above.
    unsafe { libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS) };
    // SAFETY: `all` was made above, `before` is filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    before
}

fn restore_signals(before: MaybeUninit<libc::sigset_t>) {
    // SAFETY: filled by `block_signals`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_its_own_is_inside_and_hears_no_signal_of_the_program() {
        let (said, heard) = std::sync::mpsc::channel();
        let look = move || {
            let mut now = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: asks only, and fills `now`.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), now.as_mut_ptr()) };
            // SAFETY: filled by the call above.
            let has = |signal| unsafe { libc::sigismember(now.as_ptr(), signal) } == 1;
            said.send((Inside::enter().is_none(), has(libc::SIGINT), has(libc::SIGBUS))).unwrap();
        };
        begin("gpuheap test", look).unwrap().join().unwrap();
        assert_eq!(heard.recv(), Ok((true, true, false)));
        let mut now = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: asks only, and fills `now`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), now.as_mut_ptr()) };
        // SAFETY: filled by the call above.
        assert_eq!(unsafe { libc::sigismember(now.as_ptr(), libc::SIGINT) }, 0, "the maker hears as before");
    }
}
