//! What snapshots of different versions hold.

use insta::assert_snapshot;

use crate::support::{block, event, failure, frame, notes, read, recorded, segment, snapshot, text, trace};
use crate::writer::{CPYTHON, Py, dict, pickle, styles};

fn cause(value: &Py) -> String {
    failure(&pickle(value, CPYTHON)).lines().nth(1).unwrap().trim_start_matches("  cause: ").to_owned()
}

#[test]
fn a_bare_list_is_the_segments() {
    assert_snapshot!(text(&recorded(&Py::List(vec![segment(4096, 2 << 20, vec![])]))), @r#"
    device 0
      segment 0x1000 2097152 stream 0x0 Large pool (0, 0) expandable false []
    "#);
}

#[test]
fn old_blocks_have_a_history_and_no_address() {
    let past = |size: i128, line| {
        dict([("addr", 4096.into()), ("real_size", size.into()), ("frames", Py::List(vec![frame("f", line)]))])
    };
    let old = |size: i128, state: &str| dict([("size", size.into()), ("state", state.into())]);
    let value = Py::List(vec![dict([
        ("address", 4096.into()),
        ("total_size", 4096.into()),
        ("stream", 0.into()),
        ("segment_type", "small".into()),
        (
            "blocks",
            Py::List(vec![
                old(512, "active_allocated").with("history", vec![past(500, 9), past(100, 8)]),
                old(1024, "active_awaiting_free")
                    .with("history", vec![dict([("addr", 1.into()), ("real_size", 3.into())])]),
                old(512, "inactive").with("history", vec![past(400, 7)]),
                old(2048, "active_allocated").with("history", Py::List(vec![])),
            ]),
        ),
    ])]);
    assert_snapshot!(text(&recorded(&value)), @r#"
    device 0
      segment 0x1000 4096 stream 0x0 Small pool (0, 0) expandable false []
        0x1000 500 of 512 Allocated [f train.py:9]
        0x1200 3 of 1024 PendingFree []
        0x1600 0 of 512 Free []
        0x1800 0 of 2048 Allocated []
    "#);
    for style in styles() {
        assert_eq!(text(&read(&pickle(&value, style)).unwrap()), text(&recorded(&value)), "{style:?}");
    }
    assert_eq!(text(&read(value.json().as_bytes()).unwrap()), text(&recorded(&value)));
}

#[test]
fn missing_and_unknown_keys_are_accepted() {
    let bare = snapshot(
        vec![dict([("blocks", Py::List(vec![dict([("state", "inactive".into())])]))])],
        vec![vec![dict([("action", "alloc".into())]), dict([("addr", 5.into()), ("size", 6.into())])]],
    );
    assert_snapshot!(text(&recorded(&bare)), @r#"
    device 0
      Alloc 0x0 0 stream 0x0 @0 ["", ""] pool None []
      Other 0x5 6 stream 0x0 @0 ["", ""] pool None []
      segment 0x0 0 stream 0x0 Large pool (0, 0) expandable false []
        0x0 0 of 0 Free []
    note: 1 event was without an action; kept as recorded.
    note: 1 segment was without an address.
    "#);
    let more = dict([("deep", Py::List(vec![dict([("deeper", Py::None)]), "x".into(), 1.into()]))]);
    let full = snapshot(
        vec![
            segment(4096, 512, vec![block(4096, 512, "inactive").with("forward_frames", vec![frame("g", 1)])])
                .with("new", more.clone()),
        ],
        vec![vec![
            event("alloc", 1, 1)
                .with("frames", vec![frame("f", 1).with("fx_node_op", "call").with("fx_node_info", more.clone())])
                .with("forward_frames", vec![frame("g", 1), frame("h", 2)])
                .with("internal_metadata", more.clone()),
        ]],
    )
    .with("source_code", dict([("train.py", "import torch".into())]))
    .with("rank", 3);
    assert_snapshot!(text(&recorded(&full)), @r#"
    device 0
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None [f train.py:1]
      segment 0x1000 512 stream 0x0 Large pool (0, 0) expandable false []
        0x1000 0 of 512 Free []
    "#);
    for style in styles() {
        assert_eq!(text(&read(&pickle(&full, style)).unwrap()), text(&recorded(&full)), "{style:?}");
    }
}

#[test]
fn odd_things_are_noted() {
    let annotation = |stage: &str| dict([("stage", stage.into()), ("name", "n".into()), ("time_us", 1.into())]);
    let value = snapshot(
        vec![
            segment(4096, 512, vec![block(4096, 512, "active_dreaming"), block(9, 99, "lost"), Py::Int(3)]),
            Py::None,
            segment(1, 1, vec![]).without("address").with("blocks", 7),
        ],
        vec![
            vec![
                event("alloc", 1, 1).with("frames", 5),
                event("foo", 1, 1),
                event("foo", 1, 1).with("pool_id", "x"),
                event("annotate", 1, 1),
                "strange".into(),
                event("alloc", 1, 1).with("frames", vec![frame("f", 1), Py::Int(5)]),
                event("alloc", 1, 1).with("frames", vec!["f".into(), "g".into()]),
                event("alloc", 1, 1).with("frames", vec![Py::Int(5)]),
            ],
            vec![Py::Int(3)],
        ],
    )
    .with("external_annotations", vec![annotation("START"), annotation("MIDDLE"), annotation("END")])
    .with("allocator_settings", 5);
    assert_snapshot!(text(&recorded(&value)), @r#"
    device 0
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None []
      Other 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None []
      Other 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None []
      Other 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None []
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None [f train.py:1]
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None [f :0, g :0]
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None []
      segment 0x0 1 stream 0x0 Large pool (0, 0) expandable false []
      segment 0x1000 512 stream 0x0 Large pool (0, 0) expandable false []
        0x9 0 of 99 Free []
        0x1000 500 of 512 Allocated []
    annotation n Start None @1
    annotation n End None @1
    note: 2 events were of the unknown kind `foo`; kept as recorded.
    note: 1 entry of `blocks` was not what belongs there and left out.
    note: 2 entries of `device_traces` were not what belongs there and left out.
    note: 1 entry of `frames` was not what belongs there and left out.
    note: 1 entry of `segments` was not what belongs there and left out.
    note: `allocator_settings` has a form that is not known and was left out.
    note: `blocks` has a form that is not known and was left out.
    note: `pool_id` has a form that is not known and was left out.
    note: 2 stacks were in a form that is not known and left empty.
    note: 1 block was in the unknown state `active_dreaming`; taken as allocated.
    note: 1 block was in the unknown state `lost`; taken as free.
    note: 1 segment was without an address.
    note: 1 annotation was neither a start nor an end and left out.
    "#);
}

#[test]
fn an_empty_snapshot_is_a_snapshot() {
    assert_snapshot!(text(&recorded(&snapshot(vec![], vec![vec![], vec![]]))), @"note: The snapshot holds neither events nor segments: recording was perhaps never switched on, or the program used no GPU memory.");
    assert_snapshot!(text(&recorded(&dict([("device_traces", Py::None)]))), @"note: The snapshot holds neither events nor segments: recording was perhaps never switched on, or the program used no GPU memory.");
}

#[test]
fn devices_keep_their_ordinals() {
    let value = snapshot(
        vec![
            segment(8192, 512, vec![]).with("device", 2),
            segment(4096, 512, vec![]).with("device", 2),
            segment(4096, 512, vec![]).with("device", 0),
        ],
        vec![vec![], vec![event("alloc", 1, 1), event("alloc", 2, 1)], vec![], vec![event("alloc", 3, 1)]],
    )
    .with("host_traces", vec![Py::List(vec![event("alloc", 4, 1)]), Py::List(vec![event("alloc", 5, 1)])])
    .with("host_segments", vec![segment(1, 512, vec![])]);
    assert_snapshot!(text(&recorded(&value)), @r#"
    device 0
      segment 0x1000 512 stream 0x0 Large pool (0, 0) expandable false []
    device 1
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None []
      Alloc 0x2 1 stream 0x0 @1700000000000000 ["", ""] pool None []
    device 2
      segment 0x1000 512 stream 0x0 Large pool (0, 0) expandable false []
      segment 0x2000 512 stream 0x0 Large pool (0, 0) expandable false []
    device 3
      Alloc 0x3 1 stream 0x0 @1700000000000000 ["", ""] pool None []
    host
      Alloc 0x4 1 stream 0x0 @1700000000000000 ["", ""] pool None []
      Alloc 0x5 1 stream 0x0 @1700000000000000 ["", ""] pool None []
      segment 0x1 512 stream 0x0 Large pool (0, 0) expandable false []
    "#);
    let host = trace(vec![event("alloc", 1, 1)]).with("host_traces", vec![event("alloc", 4, 1)]);
    assert_eq!(recorded(&host).host.unwrap().events.len(), 1);
}

#[test]
fn blocks_and_segments_are_sorted_by_address() {
    let value = snapshot(
        vec![
            segment(8192, 1024, vec![block(8704, 512, "inactive"), block(8192, 512, "inactive")]),
            segment(4096, 512, vec![block(4096, 512, "inactive")]),
        ],
        vec![],
    );
    let recording = recorded(&value);
    let addresses: Vec<_> = recording.devices[0].segments.iter().map(|segment| segment.address).collect();
    assert_eq!(addresses, [4096, 8192]);
    assert_eq!(recording.devices[0].segments[1].blocks[0].address, 8192);
}

#[test]
fn addresses_with_the_top_bit() {
    for (written, expected) in [
        (0xffff_8000_0000_0000_i128, 0xffff_8000_0000_0000_u64),
        (-0x8000_0000_0000, 0xffff_8000_0000_0000),
        (i128::from(i64::MIN), 1 << 63),
        (1 << 63, 1 << 63),
        ((1 << 60) + 5, (1 << 60) + 5),
    ] {
        let value = snapshot(
            vec![segment(written, 512, vec![block(written, 512, "inactive")])],
            vec![vec![event("alloc", written, 512).with("stream", written)]],
        );
        let recording = recorded(&value);
        let device = &recording.devices[0];
        let first = device.events.get(gpuheap_record::EventId::new(0));
        assert_eq!(first.address, expected);
        assert_eq!(recording.streams.get(first.stream), Some(&expected));
        assert_eq!((device.segments[0].address, device.segments[0].blocks[0].address), (expected, expected));
    }
}

#[test]
fn numbers_that_cannot_be_true_are_refused() {
    let event = || event("alloc", 4096, 512);
    let of_event = |key: &str, value: Py| cause(&trace(vec![event().with(key, value)]));
    let of_segment = |key: &str, value: Py| cause(&snapshot(vec![segment(4096, 512, vec![]).with(key, value)], vec![]));
    let of_block = |key: &str, value: Py| {
        cause(&snapshot(vec![segment(1, 1, vec![block(1, 1, "inactive").with(key, value)])], vec![]))
    };
    let shown = [
        of_event("size", (-1).into()),
        of_event("size", ((1 << 46) + 1).into()),
        of_event("size", "big".into()),
        of_event("size", Py::Float(f64::NAN)),
        of_event("addr", (1_i128 << 64).into()),
        of_event("addr", i128::from(u64::MAX - 100).into()),
        of_event("time_us", (-5).into()),
        of_segment("device", (-1).into()),
        of_segment("device", 5000.into()),
        of_segment("total_size", (1_i128 << 50).into()),
        of_block("size", (-1).into()),
        of_block("requested_size", (1_i128 << 47).into()),
        of_block("address", i128::from(u64::MAX).into()),
    ];
    assert_snapshot!(shown.join("\n"), @r#"
    `size` is -1, out of range, in the object that ends at byte 173
    `size` is 70368744177665, out of range, in the object that ends at byte 176
    `size` is big, out of range, in the object that ends at byte 174
    `size` is NaN, out of range, in the object that ends at byte 177
    `addr` is 18446744073709551616, out of range, in the object that ends at byte 179
    `addr` is 0xffffffffffffff9b with 512 bytes, out of range, in the object that ends at byte 179
    `time_us` is -5, out of range, in the object that ends at byte 167
    `device` is -1, out of range, in the object that ends at byte 189
    `device` is 5000, out of range, in the object that ends at byte 187
    `total_size` is 1125899906842624, out of range, in the object that ends at byte 192
    `size` is -1, out of range, in the object that ends at byte 248
    `requested_size` is 140737488355328, out of range, in the object that ends at byte 249
    `address` is 0xffffffffffffffff with 1 bytes, out of range, in the object that ends at byte 254
    "#);
    assert_eq!(recorded(&trace(vec![event().with("size", 1_i128 << 46)])).event_count(), 1);
}

#[test]
fn frames_of_older_snapshots() {
    let tuple = |items: Vec<Py>| Py::Tuple(items);
    let value = trace(vec![
        event("alloc", 1, 1).with(
            "frames",
            vec![
                tuple(vec!["train.py".into(), 5.into(), "step".into(), "loss.backward()".into()]),
                tuple(vec!["main".into(), "train.py".into(), 9.into()]),
            ],
        ),
        event("alloc", 1, 1).with("frames", vec!["at::empty".into(), "main".into()]),
        event("alloc", 1, 1)
            .with("frames", vec![frame("f", -1), frame("g", 1 << 40), frame("h", i128::from(u64::MAX))]),
        event("alloc", 1, 1).with("frames", vec![dict([("name", "only".into())])]),
    ]);
    assert_snapshot!(text(&recorded(&value)), @r#"
    device 0
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None [step train.py:5, main train.py:9]
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None [at::empty :0, main :0]
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None [f train.py:0, g train.py:0, h train.py:0]
      Alloc 0x1 1 stream 0x0 @1700000000000000 ["", ""] pool None [only :0]
    "#);
}

#[test]
fn settings_of_every_form() {
    let of = |settings: Py| recorded(&trace(vec![]).with("allocator_settings", settings)).settings;
    let stock = of(dict([("PYTORCH_CUDA_ALLOC_CONF", "".into()), ("max_split_size", (-1).into())]));
    assert!(stock.known && stock.is_stock());
    assert_eq!(
        stock.all,
        [("PYTORCH_CUDA_ALLOC_CONF".to_owned(), String::new()), ("max_split_size".to_owned(), "-1".to_owned())]
    );
    let newer =
        of(dict([("PYTORCH_ALLOC_CONF", "expandable_segments:True".into()), ("expandable_segments", true.into())]));
    assert_eq!(newer.conf, "expandable_segments:True");
    assert!(newer.expandable_segments);
    let both = of(dict([("PYTORCH_ALLOC_CONF", "b:1".into()), ("PYTORCH_CUDA_ALLOC_CONF", "a:1".into())]));
    assert_eq!(both.conf, "a:1", "the older name wins");
    let one = of(dict([("PYTORCH_ALLOC_CONF", "b:1".into()), ("PYTORCH_CUDA_ALLOC_CONF", "".into())]));
    assert_eq!(one.conf, "b:1");
    let single = of(dict([("max_split_size", i128::from(i64::MAX).into())]));
    assert_eq!(single.max_split_size, None);
    let divisions = of(dict([("roundup_power2_divisions", 4.into()), ("max_split_size", Py::None)]));
    assert_eq!(divisions.roundup_power2_divisions, [4; 16]);
    assert!(!recorded(&trace(vec![])).settings.known);
    assert!(of(Py::Dict(vec![])).known);
}

#[test]
fn a_lone_key_is_enough() {
    for style in styles() {
        let lone = dict([("device_traces", Py::List(vec![Py::List(vec![dict([("action", "alloc".into())])])]))]);
        assert_eq!(read(&pickle(&lone, style)).unwrap().event_count(), 1, "{style:?}");
    }
    let nothing = recorded(&trace(vec![]));
    assert_eq!(notes(&nothing).len(), 1);
}
