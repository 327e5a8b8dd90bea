//! The analyses on programs that are made here, so that the right answer is known.

mod answers;
mod gaps;
mod late_start;
mod maker;
