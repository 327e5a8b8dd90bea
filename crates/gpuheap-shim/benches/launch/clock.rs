//! Time of an operation: the best of several runs of many. It is time on cores, of all threads of the program together or of
//! the one that calls, so that other programs on the machine disturb it little.

use std::time::Duration;

const RUNS: usize = 9;
const LEAST: Duration = Duration::from_millis(20);

/// Nanoseconds of one operation. `many` does so many of them.
pub(crate) fn nanoseconds(mut many: impl FnMut(u32)) -> f64 {
    let mut count = 1_000;
    while timed(&mut many, count, ALL) < LEAST && count < 1 << 30 {
        count *= 2;
    }
    (0..RUNS).map(|_| per(timed(&mut many, count, ALL), count)).fold(f64::INFINITY, f64::min)
}

/// Of two operations, in turn, so that what disturbs one disturbs the other.
pub(crate) fn pair(one: impl FnMut(u32), other: impl FnMut(u32), count: u32) -> (f64, f64) {
    pair_by(one, other, count, ALL)
}

/// The same by the time of the thread that calls alone: where others do the work that is asked for.
pub(crate) fn pair_of_caller(one: impl FnMut(u32), other: impl FnMut(u32), count: u32) -> (f64, f64) {
    pair_by(one, other, count, CALLER)
}

fn pair_by(mut one: impl FnMut(u32), mut other: impl FnMut(u32), count: u32, clock: libc::clockid_t) -> (f64, f64) {
    let mut best = (f64::INFINITY, f64::INFINITY);
    for _ in 0..RUNS {
        best.0 = best.0.min(per(timed(&mut one, count, clock), count));
        best.1 = best.1.min(per(timed(&mut other, count, clock), count));
    }
    best
}

fn timed(many: &mut impl FnMut(u32), count: u32, clock: libc::clockid_t) -> Duration {
    let start = spent(clock);
    many(count);
    spent(clock).saturating_sub(start)
}

const ALL: libc::clockid_t = libc::CLOCK_PROCESS_CPUTIME_ID;
const CALLER: libc::clockid_t = libc::CLOCK_THREAD_CPUTIME_ID;

/// What this program, or this thread, has had of the cores so far.
fn spent(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanoseconds.unwrap_or(0))
}

fn per(time: Duration, count: u32) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(count)
}

/// Prints a figure.
#[expect(clippy::print_stdout, reason = "it is what this program is for")]
pub(crate) fn say(name: &str, value: f64) {
    println!("{name}\t{value}");
}

/// Says what went wrong.
#[expect(clippy::print_stderr, reason = "this is a program")]
pub(crate) fn complain(text: &str) {
    eprintln!("error: {text}");
}
