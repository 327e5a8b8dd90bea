//! The report in a terminal: findings, sites, memory through time, the map of memory.
#![forbid(unsafe_code)]
