//! Typed ids: each is the index of a row in one table, and cannot be mistaken for the index of another.

/// An index into one kind of table.
pub trait TypedId: Copy + Eq + Ord {
    /// The id of the row `index`. Rows beyond `u32::MAX` cannot be named: `None`.
    fn try_from_index(index: usize) -> Option<Self>;

    /// The row that this id names.
    fn index(self) -> usize;
}

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(u32);

        impl $name {
            /// The id of row `index`.
            #[must_use]
            pub const fn new(index: u32) -> Self {
                Self(index)
            }

            /// The row as a plain number.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// The id of row `index`; the last possible id if there are more rows than ids.
            #[must_use]
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }

            /// The row that this id names.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl TypedId for $name {
            fn try_from_index(index: usize) -> Option<Self> {
                u32::try_from(index).ok().map(Self)
            }

            fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

typed_id!(
    /// A string of the [string table](crate::StringTable). Id 0 is the empty string.
    StringId
);
typed_id!(
    /// A frame (function, file, line) of the [frame table](crate::FrameTable).
    FrameId
);
typed_id!(
    /// A stack of the [stack table](crate::StackTable). Id 0 is the empty stack.
    StackId
);
typed_id!(
    /// A stream of the [stream table](crate::StreamTable). Id 0 is the default stream.
    StreamId
);
typed_id!(
    /// A pool of the [pool table](crate::PoolTable). Id 0 is the default pool.
    PoolId
);
typed_id!(
    /// A [context](crate::Context) of events. Id 0 is "none".
    ContextId
);
typed_id!(
    /// A row of one device's [events](crate::Events).
    EventId
);
typed_id!(
    /// A device by its ordinal, as the program saw it (`cuda:0` is 0).
    DeviceId
);
