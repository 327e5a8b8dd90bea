//! Time of an operation: the best of several runs of many. It is time on cores, of all threads of the program together, so
//! that other programs on the machine disturb it little.

use std::time::Duration;

const RUNS: usize = 9;
const LEAST: Duration = Duration::from_millis(20);

/// Nanoseconds of one operation. `many` does so many of them.
pub(crate) fn nanoseconds(mut many: impl FnMut(u32)) -> f64 {
    let mut count = 1_000;
    while timed(&mut many, count) < LEAST && count < 1 << 30 {
        count *= 2;
    }
    (0..RUNS).map(|_| per(timed(&mut many, count), count)).fold(f64::INFINITY, f64::min)
}

/// Of two operations, in turn, so that what disturbs one disturbs the other.
pub(crate) fn pair(mut one: impl FnMut(u32), mut other: impl FnMut(u32), count: u32) -> (f64, f64) {
    let mut best = (f64::INFINITY, f64::INFINITY);
    for _ in 0..RUNS {
        best.0 = best.0.min(per(timed(&mut one, count), count));
        best.1 = best.1.min(per(timed(&mut other, count), count));
    }
    best
}

fn timed(many: &mut impl FnMut(u32), count: u32) -> Duration {
    let start = spent();
    many(count);
    spent().saturating_sub(start)
}

/// What this program has had of the cores so far.
fn spent() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
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
