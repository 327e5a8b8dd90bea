//! The keys and fixed texts of a snapshot, each a small number that texts carry along.

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A key of one of the dicts, or a fixed value of one of them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(crate) enum Word {
            $($(#[$doc])* $name,)*
        }

        impl Word {
            /// The text in the snapshot.
            pub(crate) const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }

        /// The label of a text: the number of the word that it is, or [`NO_WORD`].
        pub(crate) fn label(text: &[u8]) -> u8 {
            $(
                if text == $text.as_bytes() {
                    return Word::$name as u8;
                }
            )*
            NO_WORD
        }
    };
}

words! {
    // Keys.
    Action = "action",
    Addr = "addr",
    DeviceFree = "device_free",
    Size = "size",
    Stream = "stream",
    TimeUs = "time_us",
    CompileContext = "compile_context",
    UserMetadata = "user_metadata",
    Frames = "frames",
    PoolId = "pool_id",
    Address = "address",
    TotalSize = "total_size",
    SegmentType = "segment_type",
    SegmentPoolId = "segment_pool_id",
    IsExpandable = "is_expandable",
    Blocks = "blocks",
    RequestedSize = "requested_size",
    State = "state",
    History = "history",
    RealSize = "real_size",
    Device = "device",
    Name = "name",
    Filename = "filename",
    Line = "line",
    Stage = "stage",
    Segments = "segments",
    DeviceTraces = "device_traces",
    AllocatorSettings = "allocator_settings",
    ExternalAnnotations = "external_annotations",
    HostSegments = "host_segments",
    HostTraces = "host_traces",
    CudaAllocConf = "PYTORCH_CUDA_ALLOC_CONF",
    AllocConf = "PYTORCH_ALLOC_CONF",
    HipAllocConf = "PYTORCH_HIP_ALLOC_CONF",
    MaxSplitSize = "max_split_size",
    GarbageCollectionThreshold = "garbage_collection_threshold",
    ExpandableSegments = "expandable_segments",
    RoundupPower2Divisions = "roundup_power2_divisions",
    // Values. From here on no word is a key: see `KEYS`.
    Alloc = "alloc",
    FreeRequested = "free_requested",
    FreeCompleted = "free_completed",
    SegmentAlloc = "segment_alloc",
    SegmentFree = "segment_free",
    SegmentMap = "segment_map",
    SegmentUnmap = "segment_unmap",
    Oom = "oom",
    Snapshot = "snapshot",
    Annotate = "annotate",
    UserDefined = "user_defined",
    ActiveAllocated = "active_allocated",
    ActivePendingFree = "active_pending_free",
    ActiveAwaitingFree = "active_awaiting_free",
    Inactive = "inactive",
    Small = "small",
    Large = "large",
    Start = "START",
    End = "END",
    NotAvailable = "N/A",
}

/// How many words are keys.
const KEYS: u8 = Word::Alloc as u8;

/// The slot of every key that is no word.
const OTHER_KEY: u8 = 63;
const _: () = assert!(KEYS <= OTHER_KEY, "the mask of keys has 64 bits, the last for all other keys");

/// The label of texts that are no word.
pub(crate) const NO_WORD: u8 = u8::MAX;

/// The slot, below 64, of a key with this label.
#[inline]
pub(crate) const fn slot(label: u8) -> u8 {
    if label < KEYS { label } else { OTHER_KEY }
}

/// A set of keys.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Keys(u64);

impl Keys {
    /// The keys that are not in the format.
    pub(crate) const OTHER: Self = Self(1 << OTHER_KEY);

    pub(crate) const fn of(words: &[Word]) -> Self {
        let mut set = 0;
        let mut rest = words;
        while let [first, others @ ..] = rest {
            set |= 1 << (*first as u64);
            rest = others;
        }
        Self(set)
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: u8) {
        self.0 |= 1 << (slot & 63);
    }

    #[inline]
    pub(crate) const fn has(self, word: Word) -> bool {
        self.0 >> (word as u64) & 1 != 0
    }

    /// Whether any key of `other` is in the set.
    #[inline]
    pub(crate) const fn any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The set without `other`.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_labels() {
        assert_eq!(label(b"action"), Word::Action as u8);
        assert_eq!(label(b"END"), Word::End as u8);
        assert_eq!(label(b"source_code"), NO_WORD);
        assert_eq!(slot(label(b"frames")), Word::Frames as u8);
        assert_eq!(slot(label(b"alloc")), OTHER_KEY, "a value is no key");
        let keys = Keys::of(&[Word::Action, Word::RoundupPower2Divisions]);
        assert!(keys.has(Word::Action) && keys.has(Word::RoundupPower2Divisions) && !keys.has(Word::Addr));
    }
}
