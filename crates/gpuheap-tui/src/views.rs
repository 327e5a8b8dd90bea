//! The views: one file each. Every view has a state, reacts to keys, makes what it needs, and is drawn.

pub(crate) mod findings;
pub(crate) mod map;
pub(crate) mod sites;
pub(crate) mod timeline;
