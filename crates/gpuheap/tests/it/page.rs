//! The data of the HTML page, on recordings of real programs: every view adds up to the counters at every tick that it
//! has, whatever was left out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpuheap_explain::{Analysis, Memory, MomentName, Options, Page, Served, accumulated};

use crate::context::TestContext;
use crate::recordings::root;

/// Every recording of the repository.
fn all() -> Vec<PathBuf> {
    let folders = ["examples", "recordings/models", "recordings/edge", "recordings/loops"];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(root().join(folder)).unwrap());
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".pickle.gz"));
    files.sort();
    files
}

fn analyse(path: &Path) -> Analysis {
    let recording = gpuheap_import::read(path, gpuheap_import::Options::default()).unwrap();
    Analysis::new(Arc::new(recording), &Options::default()).unwrap()
}

/// Memory as a page decodes it.
struct Decoded<'a> {
    memory: &'a Memory,
    born: Vec<i64>,
    addresses: Vec<i64>,
    segment_born: Vec<i64>,
    segment_addresses: Vec<i64>,
}

impl<'a> Decoded<'a> {
    fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            born: accumulated(&memory.blocks.born_delta),
            addresses: accumulated(&memory.blocks.address_delta),
            segment_born: accumulated(&memory.segments.born_delta),
            segment_addresses: accumulated(&memory.segments.address_delta),
        }
    }

    /// Rows of blocks that are held, or that take memory, at `tick`.
    fn blocks(&self, tick: i64, waiting: bool) -> Vec<usize> {
        let blocks = &self.memory.blocks;
        let pending: std::collections::BTreeMap<_, _> = blocks.pending.iter().copied().collect();
        let ends = |row: usize| match (blocks.life[row], pending.get(&u32::try_from(row).unwrap())) {
            (_, Some(&completed)) if waiting => completed,
            (-1, _) => -1,
            (life, _) => self.born[row] + life,
        };
        (0..self.born.len()).filter(|&row| self.born[row] <= tick && (ends(row) < 0 || tick < ends(row))).collect()
    }

    fn held(&self, tick: i64) -> u64 {
        self.blocks(tick, false).into_iter().map(|row| self.size(row)).sum()
    }

    fn size(&self, row: usize) -> u64 {
        self.memory.sorts.size[self.memory.blocks.sort[row] as usize]
    }

    fn segments(&self, tick: i64) -> Vec<usize> {
        let segments = &self.memory.segments;
        let ends = |row: usize| self.segment_born[row] + segments.life[row];
        let lives = |row: usize| self.segment_born[row] <= tick && (segments.life[row] < 0 || tick < ends(row));
        (0..self.segment_born.len()).filter(|&row| lives(row)).collect()
    }

    fn reserved(&self, tick: i64) -> u64 {
        self.segments(tick).into_iter().map(|row| self.memory.segments.size[row]).sum()
    }
}

/// Every tick's classes add up to the counters.
fn check_timeline(analysis: &Analysis, page: &Page, path: &Path) -> Vec<i64> {
    let ticks = accumulated(&page.timeline.ticks_delta);
    let reserved = accumulated(&page.timeline.reserved_delta);
    let classes: Vec<Vec<i64>> = page.timeline.classes_delta.iter().map(|column| accumulated(column)).collect();
    assert!(ticks.is_sorted_by(|a, b| a < b), "{}", path.display());
    assert_eq!(ticks.last().copied(), Some(i64::from(analysis.last_tick())));
    for (point, &tick) in ticks.iter().enumerate() {
        let of_classes: i64 = classes.iter().map(|column| column[point]).sum();
        let counters = analysis.counters(u32::try_from(tick).unwrap());
        assert_eq!(
            (of_classes.cast_unsigned(), reserved[point].cast_unsigned()),
            counters,
            "{} at {tick}",
            path.display()
        );
    }
    for moment in &page.moments {
        assert!(ticks.contains(&i64::from(moment.tick)), "{}: {}", path.display(), moment.name);
    }
    ticks
}

#[test]
fn every_view_adds_up_to_the_counters() {
    for path in all() {
        let analysis = analyse(&path);
        let page = analysis.page("test", usize::MAX, Vec::new());
        let ticks = check_timeline(&analysis, &page, &path);
        assert!(page.memory.complete);
        let decoded = Decoded::new(&page.memory);
        let exact = page.report.replay.exact;
        for &tick in ticks.iter().step_by(ticks.len().div_ceil(40)) {
            let at = u32::try_from(tick).unwrap();
            let (allocated, reserved) = analysis.counters(at);
            assert_eq!(decoded.held(tick), allocated, "{} at {tick}", path.display());
            if exact {
                assert_eq!(decoded.reserved(tick), reserved, "{} at {tick}", path.display());
            }
            let map = analysis.segments_at(at);
            let blocks = map.iter().flat_map(|segment| &segment.blocks).filter(|block| !block.waits);
            if exact {
                assert_eq!(blocks.map(|block| block.size).sum::<u64>(), allocated, "{} at {tick}", path.display());
                assert_eq!(map.iter().map(|segment| segment.size).sum::<u64>(), reserved);
            }
            for segment in &map {
                let ends = segment.blocks.iter().map(|block| block.address + block.size);
                let starts = segment.blocks.iter().skip(1).map(|block| block.address);
                assert!(ends.zip(starts).all(|(end, start)| end <= start), "{}: blocks overlap", path.display());
            }
        }
        for (index, moment) in page.moments.iter().enumerate() {
            let of_sites: u64 = page.sites.iter().map(|site| site.at[index]).sum();
            assert_eq!(of_sites, analysis.counters(moment.tick).0, "{} at {}", path.display(), moment.name);
        }
        assert_eq!(page.sites.iter().map(|site| site.count).sum::<u64>(), decoded.born.len() as u64);
    }
}

#[test]
fn what_is_left_out_is_said_and_the_named_moments_stay_whole() {
    for path in all().iter().filter(|path| path.to_string_lossy().contains("models")) {
        let analysis = analyse(path);
        let all = analysis.page("test", usize::MAX, Vec::new());
        let most = all.memory.of_blocks / 2;
        let page = analysis.page("test", most, Vec::new());
        assert!(!page.memory.complete && page.memory.blocks.life.len() <= most);
        assert_eq!(page.memory.of_blocks, all.memory.of_blocks);
        check_timeline(&analysis, &page, path);
        let decoded = Decoded::new(&page.memory);
        for tick in accumulated(&page.timeline.ticks_delta).into_iter().step_by(50) {
            assert!(decoded.held(tick) <= analysis.counters(u32::try_from(tick).unwrap()).0);
        }
        let peak = analysis.tick_of(MomentName::Peak).unwrap();
        assert!(page.memory.exact_ticks.contains(&peak), "{}", path.display());
        for &tick in &page.memory.exact_ticks {
            let (allocated, reserved) = analysis.counters(tick);
            assert_eq!(decoded.held(tick.into()), allocated, "{} at {tick}", path.display());
            assert_eq!(decoded.reserved(tick.into()), reserved, "{} at {tick}", path.display());
        }
    }
}

#[test]
fn a_server_says_of_each_moment_what_a_file_says() {
    let path = root().join("examples/gpt2_varlen.pickle.gz");
    let served = Served::new(Arc::new(analyse(&path)));
    let page = analyse(&path).page("test", usize::MAX, Vec::new());
    let decoded = Decoded::new(&page.memory);
    let ticks = accumulated(&page.timeline.ticks_delta);
    for &tick in ticks.iter().step_by(97) {
        let moment = served.moment(u32::try_from(tick).unwrap()).unwrap();
        let here = Decoded::new(&moment.memory);
        let addresses = |decoded: &Decoded<'_>| {
            let mut rows: Vec<(i64, u64)> =
                decoded.blocks(tick, true).into_iter().map(|row| (decoded.addresses[row], decoded.size(row))).collect();
            rows.sort_unstable();
            rows
        };
        assert_eq!(addresses(&here), addresses(&decoded), "at {tick}");
        let segments = |decoded: &Decoded<'_>| -> std::collections::BTreeSet<i64> {
            decoded.segments(tick).into_iter().map(|row| decoded.segment_addresses[row]).collect()
        };
        assert_eq!(segments(&here), segments(&decoded), "at {tick}");
        assert_eq!(moment.classes.iter().sum::<i64>().cast_unsigned(), served.analysis().counters(moment.tick).0);
    }
    assert!(served.moment(u32::MAX).is_err());
    // A range at more points than it has ticks is every tick of it.
    let whole = served.analysis().timeline(1000, 1200, 10_000);
    assert_eq!(accumulated(&whole.ticks_delta), (1000..=1200).collect::<Vec<i64>>());
}

#[test]
fn curves_of_other_settings_reach_their_peaks() {
    let analysis = analyse(&root().join("examples/gpt2_varlen.pickle.gz"));
    let curves = analysis.whatif_curves(&|_, _| {}).unwrap();
    assert!(curves.len() >= 3 && curves.iter().filter(|curve| curve.best).count() == 1);
    for curve in &curves {
        let most = accumulated(&curve.reserved_delta).into_iter().max().unwrap();
        assert_eq!(most.cast_unsigned(), curve.peak_reserved_bytes.get(), "{}", curve.conf);
    }
}

#[test]
fn a_page_is_written_whole_and_nothing_in_it_is_markup() {
    let context = TestContext::new();
    let hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script>";
    let frame = serde_json::json!({"name": hostile, "filename": hostile, "line": 3});
    let event = |action: &str| serde_json::json!({"action": action, "addr": 4096, "size": 512, "stream": 0, "time_us": 1, "frames": [frame]});
    let snapshot = serde_json::json!({
        "segments": [{"device": 0, "address": 4096, "total_size": 2_097_152, "stream": 0, "segment_type": "small",
            "allocated_size": 512, "active_size": 512, "requested_size": 512, "segment_pool_id": [0, 0], "is_expandable": false,
            "blocks": [{"address": 4096, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": []},
                {"address": 4608, "size": 2_096_640, "requested_size": 0, "state": "inactive", "frames": []}]}],
        "device_traces": [[{"action": "segment_alloc", "addr": 4096, "size": 2_097_152, "stream": 0, "time_us": 1, "frames": []}, event("alloc")]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}, "external_annotations": [],
    });
    let file = context.path("<b>.json");
    std::fs::write(&file, snapshot.to_string()).unwrap();
    let page = context.path("page.html");
    let output = context.command().arg("explain").arg(&file).arg("--html").arg(&page).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
    assert!(!html.contains("<img") && !html.contains("<b>") && !html.contains("alert(2)</script>"));
    assert_eq!(html.matches("</script>").count(), 2);
}
