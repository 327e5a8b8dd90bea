//! What is written, read back.

use std::io::Read;

use gpuheap_explain::{Analysis, MomentName};
use parquet::file::reader::{FileReader, SerializedFileReader};
use prost::Message;
use serde_json::Value;

use crate::sample::{empty, hostile, small, untimed};
use crate::{COLUMNS, Error, Format, Options, write};

fn options() -> Options {
    Options { at: None, generator: "gpuheap 0.0.0".to_owned() }
}

fn export(format: Format, analysis: &Analysis) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(format, analysis, &options(), &mut bytes).unwrap();
    bytes
}

fn text(format: Format, analysis: &Analysis) -> String {
    String::from_utf8(export(format, analysis)).unwrap()
}

fn json(format: Format, analysis: &Analysis) -> Value {
    serde_json::from_slice(&export(format, analysis)).unwrap()
}

fn samples() -> [(&'static str, Analysis); 4] {
    [("small", small()), ("empty", empty()), ("hostile", hostile()), ("untimed", untimed())]
}

#[test]
fn folded() {
    insta::assert_snapshot!(text(Format::Folded, &small()), @r"
    main (run.py:1);load (data.py:7) 3145728
    main (run.py:1);train (train.py:16) 2097152
    ");
    assert_eq!(text(Format::Folded, &empty()), "");
}

#[test]
fn csv() {
    insta::assert_snapshot!(text(Format::Csv, &small()).replace("\r\n", "\n"));
    assert_eq!(text(Format::Csv, &empty()).lines().count(), 1);
}

#[test]
fn chrome() {
    insta::assert_snapshot!(text(Format::Chrome, &small()));
}

#[test]
fn speedscope() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&json(Format::Speedscope, &small())).unwrap());
}

/// How the last digit of a number is read depends on which features other crates ask of the parser.
fn round(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Number(number) if number.is_f64() => {
            let rounded = number.as_f64().map(|number| (number * 1e9).round() / 1e9);
            *value = rounded.into();
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(round),
        serde_json::Value::Object(values) => values.values_mut().for_each(round),
        _ => {}
    }
}

#[test]
fn firefox() {
    let mut profile = json(Format::Firefox, &small());
    round(&mut profile);
    insta::assert_snapshot!(serde_json::to_string_pretty(&profile).unwrap());
}

#[test]
fn pprof() {
    insta::assert_snapshot!(format!("{:#?}", profile(&small())));
}

fn profile(analysis: &Analysis) -> crate::pprof::Profile {
    let compressed = export(Format::Pprof, analysis);
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(compressed.as_slice()).read_to_end(&mut bytes).unwrap();
    crate::pprof::Profile::decode(bytes.as_slice()).unwrap()
}

#[test]
fn perfetto() {
    insta::assert_snapshot!(format!("{:#?}", packets(&small())));
}

fn packets(analysis: &Analysis) -> Vec<crate::perfetto::proto::TracePacket> {
    #[derive(Clone, PartialEq, Message)]
    struct Trace {
        #[prost(message, repeated, tag = "1")]
        packet: Vec<crate::perfetto::proto::TracePacket>,
    }
    Trace::decode(export(Format::Perfetto, analysis).as_slice()).unwrap().packet
}

#[test]
fn parquet_has_the_rows_of_csv() {
    for (name, analysis) in samples() {
        let bytes = parquet_bytes(export(Format::Parquet, &analysis));
        let reader = SerializedFileReader::new(bytes).unwrap();
        let columns = reader.metadata().file_metadata().schema().get_fields();
        assert!(columns.iter().map(|column| column.name()).eq(COLUMNS.iter().map(|(name, _)| *name)), "{name}");
        let rows = reader.get_row_iter(None).unwrap().count();
        assert_eq!(rows, text(Format::Csv, &analysis).lines().count() - 1, "{name}");
    }
}

fn parquet_bytes(bytes: Vec<u8>) -> prost::bytes::Bytes {
    bytes.into()
}

#[test]
fn everything_is_valid_and_says_the_same() {
    for (name, analysis) in samples() {
        let moment = analysis.report().ledger_at;
        let (held, _) = analysis.counters(analysis.tick_of(moment).unwrap());
        let sum = |values: &mut dyn Iterator<Item = u64>| values.fold(0, u64::saturating_add);

        let folded = text(Format::Folded, &analysis);
        assert!(folded.lines().all(|line| !line.contains(|c: char| c.is_control())), "{name}");
        let bytes = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
        assert_eq!(sum(&mut folded.lines().map(bytes)), held, "{name}");

        let speedscope = json(Format::Speedscope, &analysis);
        let active = usize::try_from(speedscope["activeProfileIndex"].as_u64().unwrap()).unwrap();
        let shown = &speedscope["profiles"][active];
        let weights = shown["weights"].as_array().unwrap();
        if name != "hostile" {
            assert_eq!(sum(&mut weights.iter().map(|weight| weight.as_u64().unwrap())), held, "{name}");
            let profile = profile(&analysis);
            assert_eq!(profile.sample.iter().map(|sample| sample.value[3]).sum::<i64>(), held.cast_signed(), "{name}");
            let firefox = json(Format::Firefox, &analysis);
            let weights = firefox["threads"][0]["nativeAllocations"]["weight"].as_array().unwrap();
            let retained: i64 = weights.iter().map(|weight| weight.as_i64().unwrap()).sum();
            assert_eq!(retained, held.cast_signed(), "{name}");
        }

        let times: Vec<u64> = packets(&analysis)
            .iter()
            .filter(|packet| packet.track_event.as_ref().is_some_and(|event| event.counter_value.is_some()))
            .filter_map(|packet| packet.timestamp)
            .collect();
        assert!(times.is_sorted() && times.iter().all(|&time| time < 1 << 63), "{name}");
        json(Format::Chrome, &analysis);
        assert!(export(Format::Csv, &analysis).len() < 1 << 20, "{name}");
    }
}

#[test]
fn neighbours_in_time_keep_their_order() {
    let clock = crate::clock::Clock::new(&untimed());
    assert!(!clock.is_timed);
    assert_eq!((clock.offset_ns(0), clock.offset_ns(7), clock.start_ns), (0, 7000, 0));
    // Time 1 of both events, then a clock that goes back.
    let mut sample = crate::sample::Sample::new().with_times(5_000_000, 0);
    for index in 0..3 {
        sample.alloc(0x1000 * (index + 1), 0x1000, gpuheap_record::StackId::default());
    }
    let mut sample = sample.with_times(1_000_000, 0);
    sample.alloc(0x9000, 0x1000, gpuheap_record::StackId::default());
    let clock = crate::clock::Clock::new(&sample.analysis());
    assert_eq!([0, 1, 2, 3, 4].map(|tick| clock.offset_ns(tick)), [0, 1, 2, 3, 4]);
}

#[test]
fn moments() {
    let analysis = small();
    let write_at = |format, at| {
        let mut bytes = Vec::new();
        write(format, &analysis, &Options { at: Some(at), ..options() }, &mut bytes).map(|()| bytes)
    };
    let end = String::from_utf8(write_at(Format::Folded, MomentName::End).unwrap()).unwrap();
    assert_eq!(end, "main (run.py:1);train (train.py:16) 2097152\nno frames recorded 1048576\n");
    let rows = String::from_utf8(write_at(Format::Csv, MomentName::End).unwrap()).unwrap();
    assert_eq!(rows.lines().count(), 3);
    for format in Format::ALL {
        let missing = write_at(format, MomentName::Oom);
        assert!(matches!(missing, Err(Error::NoSuchMoment { asked: MomentName::Oom })), "{format:?}");
    }
    let everything = write_at(Format::Perfetto, MomentName::End).unwrap_err();
    assert_eq!(everything.to_string(), "The format `perfetto` has every moment of the recording");
}

/// A writer that is full at once.
struct Full;

impl std::io::Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn a_full_disk_is_told_as_such() {
    for format in Format::ALL {
        match write(format, &small(), &options(), &mut Full) {
            Err(Error::Write(error)) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{format:?}"),
            other => panic!("{format:?}: {other:?}"),
        }
    }
}

/// The library that other profilers write this format with says which keys there are, and of which types.
#[test]
fn firefox_has_the_keys_of_its_library() {
    use fxprof_processed_profile::{
        CategoryHandle, Frame, FrameFlags, FrameInfo, Profile, ReferenceTimestamp, SamplingInterval, Timestamp,
    };
    let start = Timestamp::from_nanos_since_reference(0);
    let reference = ReferenceTimestamp::from_millis_since_unix_epoch(1.0);
    let mut theirs = Profile::new("p", reference, SamplingInterval::from_millis(1));
    let process = theirs.add_process("p", 1, start);
    let thread = theirs.add_thread(process, 1, start, true);
    let label = theirs.intern_string("f");
    let frame = FrameInfo {
        frame: Frame::Label(label),
        category_pair: CategoryHandle::OTHER.into(),
        flags: FrameFlags::empty(),
    };
    let stack = theirs.intern_stack_frames(thread, [frame].into_iter());
    theirs.add_allocation_sample(thread, start, stack, 1, 2);
    let counter = theirs.add_counter(process, "c", "Memory", "d");
    theirs.add_counter_sample(counter, start, 1.0, 0);

    let ours = json(Format::Firefox, &small());
    let theirs = serde_json::to_value(&theirs).unwrap();
    let mut missing = Vec::new();
    compare("", &theirs, &ours, &mut missing);
    assert_eq!(missing, Vec::<String>::new());
    assert_eq!(ours["meta"]["preprocessedProfileVersion"], theirs["meta"]["preprocessedProfileVersion"]);
}

/// Adds every place where `ours` lacks a key of `theirs`, or has a value of another type.
fn compare(place: &str, theirs: &Value, ours: &Value, missing: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for (key, value) in theirs {
                match ours.get(key) {
                    Some(other) => compare(&format!("{place}.{key}"), value, other, missing),
                    None => missing.push(format!("{place}.{key}")),
                }
            }
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            if let (Some(one), Some(other)) = (theirs.first(), ours.first()) {
                compare(&format!("{place}[0]"), one, other, missing);
            }
        }
        // Columns may be without a value.
        (Value::Null, _) | (_, Value::Null) => {}
        (theirs, ours) if std::mem::discriminant(theirs) != std::mem::discriminant(ours) => {
            missing.push(format!("{place}: {theirs} is not {ours}"));
        }
        _ => {}
    }
}
