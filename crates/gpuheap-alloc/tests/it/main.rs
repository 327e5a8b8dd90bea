//! Every policy against what is true of any allocator.

mod conformance;
mod expandable;
mod worked_example;
