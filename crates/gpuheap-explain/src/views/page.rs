//! All views of one device together: what a page is made of.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::analysis::Analysis;
use crate::classes::Rule;
use crate::error::Error;
use crate::ledger::{pool_name, stream_name};
use crate::report::{Class, MomentName, Report};
use crate::views::deltas;
use crate::views::memory::{Kept, Memory};
use crate::views::places::{PlaceTable, Places};
use crate::views::sites::{SiteRow, Sites, sites};
use crate::views::timeline::{Timeline, overview};
use crate::views::whatif::WhatIfCurve;

/// The name and version of the JSON form.
pub const PAGE_SCHEMA: &str = "gpuheap.page/1";

/// What a page about one device is made of.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Page {
    /// [`PAGE_SCHEMA`].
    pub schema: &'static str,
    /// The program that wrote it, with its version.
    pub generator: String,
    /// The report.
    pub report: Report,
    /// Every class, in the order of [`Class::ALL`].
    pub classes: Vec<ClassName>,
    /// Every rule by which blocks are classed.
    pub rules: Vec<RuleText>,
    /// The places of the blocks.
    pub places: Places,
    /// What blocks and segments belong to.
    pub lanes: Vec<Lane>,
    /// What each line of the program made and held.
    pub sites: Vec<SiteRow>,
    /// The ends of the steps.
    pub steps: StepTicks,
    /// The moments with a name, by their ticks.
    pub moments: Vec<MomentAt>,
    /// Microseconds of Unix time of the first event; 0 where the recording has no times.
    pub start_us: u64,
    /// Memory through time.
    pub timeline: Timeline,
    /// The blocks and segments that the page has itself.
    pub memory: Memory,
    /// Reserved memory through time under other settings.
    pub whatif: Vec<WhatIfCurve>,
    /// Where a page that a server sent gets the rest from; `None` in a file.
    pub served: Option<ServedFrom>,
}

/// A class with its names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClassName {
    /// The name in JSON.
    pub name: &'static str,
    /// The name in text.
    pub title: &'static str,
}

/// A rule by which blocks are classed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RuleText {
    /// The class that it gives: a row of the classes.
    pub class: usize,
    /// The rule, in words.
    pub text: &'static str,
}

/// What must be the same for a free block to serve a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Lane {
    /// `default pool`, or `private pool (1, 0)`.
    pub pool: String,
    /// `default stream`, or `stream 0x…`.
    pub stream: String,
    /// `small` or `large`.
    pub kind: &'static str,
}

/// The ends of steps.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StepTicks {
    /// Their ticks.
    pub ticks_delta: Vec<i64>,
}

/// A moment with a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MomentAt {
    /// `peak`, `peak_reserved`, `oom` or `end`.
    pub name: &'static str,
    /// Its tick.
    pub tick: u32,
}

/// Where a served page gets the rest from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ServedFrom {
    /// The recording's name on the server.
    pub recording: String,
}

impl Analysis {
    /// The page of this device, with at most `most_blocks` blocks and as many segments: those that are there at the
    /// named moments first, then the largest.
    #[must_use]
    pub fn page(&self, generator: &str, most_blocks: usize, whatif: Vec<WhatIfCurve>) -> Page {
        let mut sites = sites(self);
        let mut places = PlaceTable::new(self);
        let memory = self.embedded_memory(most_blocks, &mut sites, &mut places);
        self.page_of(generator, places.finish(), sites.rows, memory, whatif)
    }

    /// The same page with fewer blocks.
    #[must_use]
    pub fn with_fewer_blocks(&self, page: Page, most_blocks: usize) -> Page {
        let mut sites = sites(self);
        let mut places = PlaceTable::new(self);
        let memory = self.embedded_memory(most_blocks, &mut sites, &mut places);
        Page { memory, places: places.finish(), ..page }
    }

    fn embedded_memory(&self, most_blocks: usize, sites: &mut Sites, places: &mut PlaceTable) -> Memory {
        self.memory(&Kept::most_important(self, &self.exact_ticks(), most_blocks), sites, places)
    }

    /// The moments that readers look at, the most important first: those with a name, those of findings, the last steps.
    fn exact_ticks(&self) -> Vec<u32> {
        let named = [MomentName::Oom, MomentName::Peak, MomentName::PeakReserved, MomentName::End];
        let mut ticks: Vec<u32> = named.into_iter().filter_map(|name| self.tick_of(name)).collect();
        let events = self.report.findings.iter().take(8).filter_map(|finding| finding.event);
        ticks.extend(events.filter_map(|event| u32::try_from(event).ok()).map(|event| event.saturating_add(1)));
        ticks.extend(self.step_ticks().iter().rev().take(3));
        for tick in &mut ticks {
            *tick = (*tick).min(self.last_tick());
        }
        ticks
    }

    fn page_of(
        &self,
        generator: &str,
        places: Places,
        sites: Vec<SiteRow>,
        memory: Memory,
        whatif: Vec<WhatIfCurve>,
    ) -> Page {
        Page {
            schema: PAGE_SCHEMA,
            generator: generator.to_owned(),
            report: self.report.clone(),
            classes: Class::ALL.iter().map(|class| ClassName { name: class.name(), title: class.title() }).collect(),
            rules: Rule::ALL.iter().map(|rule| RuleText { class: rule.class() as usize, text: rule.text() }).collect(),
            places,
            lanes: self.lanes(),
            sites,
            steps: StepTicks { ticks_delta: deltas(self.step_ticks().into_iter().map(u64::from)) },
            moments: self.moments().into_iter().map(|(name, tick)| MomentAt { name: name.key(), tick }).collect(),
            start_us: self.time_us(0),
            timeline: overview(self),
            memory,
            whatif,
            served: None,
        }
    }

    fn lanes(&self) -> Vec<Lane> {
        let lanes = self.basis.replay.lanes.iter();
        lanes
            .map(|(_, lane)| Lane {
                pool: if lane.pool == gpuheap_record::PoolId::default() {
                    "default pool".to_owned()
                } else {
                    pool_name(&self.recording, lane.pool).0
                },
                stream: stream_name(lane.stream),
                kind: match lane.kind {
                    gpuheap_record::SegmentKind::Small => "small",
                    gpuheap_record::SegmentKind::Large => "large",
                },
            })
            .collect()
    }
}

/// A device that is asked again and again, from many threads: an [`Analysis`] with what all of its answers share.
pub struct Served {
    analysis: Arc<Analysis>,
    tables: Mutex<(Sites, PlaceTable)>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("analysis", &self.analysis).finish_non_exhaustive()
    }
}

/// Memory at one tick, with every block.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MomentView {
    /// The tick.
    pub tick: u32,
    /// Reserved bytes.
    pub reserved: u64,
    /// Bytes by class, in the order of [`Class::ALL`]; together the allocated bytes.
    pub classes: Vec<i64>,
    /// The blocks and segments.
    pub memory: Memory,
}

impl Served {
    /// Makes what the answers share: places and sites of all blocks.
    #[must_use]
    pub fn new(analysis: Arc<Analysis>) -> Self {
        let mut sites = sites(&analysis);
        let mut places = PlaceTable::new(&analysis);
        for row in analysis.basis.replay.allocations.rows() {
            let site = sites.row_of[sites.index.of(&analysis, row)];
            places.of(&analysis, row, site);
        }
        Self { analysis, tables: Mutex::new((sites, places)) }
    }

    fn tables(&self) -> MutexGuard<'_, (Sites, PlaceTable)> {
        // All places are known from the start: whoever panicked has changed nothing.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The analysis.
    #[must_use]
    pub fn analysis(&self) -> &Arc<Analysis> {
        &self.analysis
    }

    /// The page without blocks: they are asked for by moment.
    #[must_use]
    pub fn page(&self, generator: &str, recording: &str) -> Page {
        let memory = Memory {
            of_blocks: self.analysis.basis.replay.allocations.len(),
            of_segments: self.analysis.basis.replay.segments.len(),
            ..Memory::default()
        };
        let tables = self.tables();
        let page = self.analysis.page_of(generator, tables.1.places(), tables.0.rows.clone(), memory, Vec::new());
        Page { served: Some(ServedFrom { recording: recording.to_owned() }), ..page }
    }

    /// Memory at a tick, with every block.
    pub fn moment(&self, tick: u32) -> Result<MomentView, Error> {
        let last = self.analysis.last_tick();
        if tick > last {
            return Err(Error::NoSuchTick { asked: tick, last });
        }
        let values = crate::views::timeline::at_ticks(&self.analysis, &[tick]);
        Ok(MomentView {
            tick,
            reserved: self.analysis.counters(tick).1,
            classes: values.classes_delta.iter().map(|column| column.first().copied().unwrap_or(0)).collect(),
            memory: self.analysis.moment_memory(tick, |kept| {
                let (sites, places) = &mut *self.tables();
                self.analysis.memory(kept, sites, places)
            }),
        })
    }
}
