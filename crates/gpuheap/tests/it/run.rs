//! `gpuheap run` and the commands around it, with the driver for tests as the real one.

mod budgets;
mod drivers;
mod folders;
mod ledgers;
mod listing;
mod programs;
mod recording;
mod rig;
mod signals;
mod wrappers;
mod yielding;
