//! The analyses on programs that are made here, so that the right answer is known.

mod answers;
mod late_start;
mod maker;
