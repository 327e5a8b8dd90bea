//! The formats.

/// A form in which a recording can be written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Format {
    /// A trace of [Perfetto](https://ui.perfetto.dev), as protobuf.
    Perfetto,
    /// The Trace Event Format of `chrome://tracing`, as JSON.
    Chrome,
    /// A profile of [pprof](https://github.com/google/pprof), as compressed protobuf.
    Pprof,
    /// A profile of [speedscope](https://www.speedscope.app), as JSON.
    Speedscope,
    /// A profile of the [Firefox Profiler](https://profiler.firefox.com), as JSON.
    Firefox,
    /// Folded stacks, as `flamegraph.pl` and `inferno` read them.
    Folded,
    /// A table of allocations as text.
    Csv,
    /// A table of allocations as [Parquet](https://parquet.apache.org).
    Parquet,
    /// The recording itself in our own format, see [`gpuheap_record::file`]: small, and nothing is left out.
    Gpuheap,
}

/// What of a recording a format has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Memory through time: the whole recording.
    Recording,
    /// Memory at one moment, by stack.
    Moment,
    /// Allocations: all of them, or those of one moment.
    Rows,
}

impl Format {
    /// All formats, in the order in which they are listed.
    pub const ALL: [Self; 9] = [
        Self::Perfetto,
        Self::Chrome,
        Self::Pprof,
        Self::Speedscope,
        Self::Firefox,
        Self::Folded,
        Self::Csv,
        Self::Parquet,
        Self::Gpuheap,
    ];

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Perfetto => "perfetto",
            Self::Chrome => "chrome",
            Self::Pprof => "pprof",
            Self::Speedscope => "speedscope",
            Self::Firefox => "firefox",
            Self::Folded => "folded",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Gpuheap => "gpuheap",
        }
    }

    /// Whether a terminal can show it.
    #[must_use]
    pub const fn is_text(self) -> bool {
        !matches!(self, Self::Perfetto | Self::Pprof | Self::Parquet | Self::Gpuheap)
    }

    /// What of a recording it has.
    #[must_use]
    pub const fn scope(self) -> Scope {
        match self {
            Self::Perfetto | Self::Chrome | Self::Gpuheap => Scope::Recording,
            Self::Pprof | Self::Speedscope | Self::Firefox | Self::Folded => Scope::Moment,
            Self::Csv | Self::Parquet => Scope::Rows,
        }
    }
}
