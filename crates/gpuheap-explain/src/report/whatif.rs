//! What other settings would have done.

use gpuheap_record::Bytes;
use serde::Serialize;

#[cfg(doc)]
use super::SCHEMA;
use super::{ReplayCheck, Site, SourceInfo};

/// What another setting would have done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WhatIf {
    /// The settings as given; empty for stock settings.
    pub conf: String,
    /// Why this row is here.
    pub role: WhatIfRole,
    /// The cap on reserved memory, if one was given.
    pub limit_bytes: Option<Bytes>,
    /// The most allocated memory.
    pub peak_allocated_bytes: Bytes,
    /// The most allocated memory and such as waits for other streams.
    pub peak_active_bytes: Bytes,
    /// The most reserved memory.
    pub peak_reserved_bytes: Bytes,
    /// Native segments taken from the driver (`segment.all.allocated`); expandable segments do not count.
    pub segments: u64,
    /// Calls that took memory from the driver or gave it back.
    pub driver_calls: u64,
    /// Times that all cached memory was released for a request (`num_alloc_retries`).
    pub retries: u64,
    /// Whether an allocation failed. The replay ends there: what the program would have done then is not known.
    pub oom: bool,
    /// The event of the request that failed.
    pub oom_event: Option<u64>,
    /// Where the request that failed was made.
    pub oom_site: Option<Site>,
    /// The smallest cap on reserved memory under which the program runs to its end, to 2 MiB; `None` where it was not
    /// looked for, or the program does not run to its end at all.
    pub smallest_limit_bytes: Option<Bytes>,
    /// Whether the replay is exact: the recording is complete, its own settings explain every event of it, and no free
    /// had to wait for another stream.
    pub exact: bool,
}

/// Why a row of settings is in a report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WhatIfRole {
    /// The settings of the recording.
    Recorded,
    /// The user asked for them.
    Given,
    /// They are among the settings that are always tried.
    Tried,
    /// The search found them.
    Found,
}

/// What other settings would have done with one device's recording.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WhatIfReport {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was read.
    pub source: SourceInfo,
    /// How well the recorded settings explain the recording.
    pub replay: ReplayCheck,
    /// The recorded settings first, then the others.
    pub whatif: Vec<WhatIf>,
    /// The settings to use, if any are better than the recorded ones: the string for `PYTORCH_CUDA_ALLOC_CONF`.
    pub best: Option<String>,
    /// Bytes of reserved memory that they save at the peak.
    pub saves_bytes: Option<Bytes>,
}
