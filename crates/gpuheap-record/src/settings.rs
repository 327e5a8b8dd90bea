//! The allocator's settings, as the recording tells them.

/// How many size intervals `roundup_power2_divisions` distinguishes.
pub const ROUNDUP_INTERVALS: usize = 16;

/// Settings of PyTorch's caching allocator at the time of the dump. A recording does not say what was in force before.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AllocatorSettings {
    /// Whether the recording says anything about its settings.
    pub known: bool,
    /// The string that configured the allocator (`PYTORCH_CUDA_ALLOC_CONF`); empty for stock settings.
    pub conf: String,
    /// Blocks of at least this many bytes are never split. `None`: no limit.
    pub max_split_size: Option<u64>,
    /// The share of the memory cap from which cached blocks are collected; 0 is off.
    pub garbage_collection_threshold: f64,
    /// Whether segments are expandable.
    pub expandable_segments: bool,
    /// Divisions between powers of two, by interval of the size: below 2 MiB, 2 to 4 MiB, …, 32 GiB and above;
    /// 0 and 1 are off.
    pub roundup_power2_divisions: [u64; ROUNDUP_INTERVALS],
    /// Every setting as the recording spells it: name and value.
    pub all: Vec<(String, String)>,
}

impl AllocatorSettings {
    /// Whether everything that changes the size or the place of a block is as PyTorch ships it.
    #[must_use]
    pub fn is_stock(&self) -> bool {
        self.max_split_size.is_none()
            && self.garbage_collection_threshold <= 0.0
            && !self.expandable_segments
            && self.roundup_power2_divisions.iter().all(|&divisions| divisions <= 1)
    }
}
