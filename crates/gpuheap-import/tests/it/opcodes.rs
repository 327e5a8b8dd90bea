//! Every opcode: those that build values, and those that are refused.

use insta::assert_snapshot;

use crate::support::{failure, notes, read, text};

/// A snapshot whose one event has `frames` given by opcodes, and `after` put behind the STOP.
fn around(frames: &[u8]) -> Vec<u8> {
    let mut out = b"\x80\x05}\x8c\x0ddevice_traces]](}(\x8c\x06action\x8c\x05alloc\x8c\x04size".to_vec();
    out.extend(frames);
    out.extend(b"ueas.");
    out
}

/// The size that the opcodes `number` amount to.
fn size(number: &[u8]) -> u64 {
    let recording = read(&around(number)).unwrap_or_else(|error| panic!("{number:?}: {error:?}"));
    recording.devices[0].events.get(gpuheap_record::EventId::new(0)).size
}

#[test]
fn integers() {
    for (opcodes, expected) in [
        (b"K\xff".as_slice(), 255),
        (b"M\xff\xff", 65_535),
        (b"J\xff\xff\xff\x7f", 0x7fff_ffff),
        (b"\x8a\x00", 0),
        (b"\x8a\x01\x05", 5),
        (b"\x8a\x05\xff\xff\xff\xff\x00", 0xffff_ffff),
        (b"\x8a\x08\x01\0\0\0\0\0\0\0", 1),
        (b"\x8a\x09\x01\0\0\0\0\0\0\0\0", 1),
        (b"\x8b\x03\0\0\0\x01\x02\x03", 0x03_0201),
        (b"\x8b\x00\0\0\0", 0),
        (b"I12\n", 12),
        (b"I01\n", 1),
        (b"I00\n", 0),
        (b"L34L\n", 34),
        (b"L34\r\n", 34),
        (b"F56.0\n", 56),
        (b"G\x40\x14\0\0\0\0\0\0", 5),
        (b"\x88", 1),
        (b"N", 0),
        (b"K\x07\x94", 7),
        (b"K\x07q\x05", 7),
        (b"K\x070K\x08", 8),
        (b"K\x0720", 7),
        (b"(K\x01K\x021K\x09", 9),
        (b"K\x07r\xff\xff\xff\x7f0j\xff\xff\xff\x7f", 7),
        (b"K\x07p3\n0g3\n", 7),
        (b"\x95\0\0\0\0\0\0\0\0K\x01", 1),
    ] {
        assert_eq!(size(opcodes), expected, "{opcodes:?}");
    }
}

#[test]
fn texts() {
    for (opcodes, expected) in [
        (b"\x8c\x05train".as_slice(), "train"),
        (b"X\x05\0\0\0train", "train"),
        (b"\x8d\x05\0\0\0\0\0\0\0train", "train"),
        (b"U\x05train", "train"),
        (b"T\x05\0\0\0train", "train"),
        (b"S'tr\\x61in'\n", "train"),
        (b"Vtr\\u0061in\n", "train"),
        (b"\x8c\x04\xed\xb2\x80x", "\u{fffd}\u{fffd}\u{fffd}x"),
    ] {
        let mut frames = b"K\x01\x8c\x06frames](}(\x8c\x04name".to_vec();
        frames.extend(opcodes);
        frames.extend(b"\x8c\x04lineK\x05ue");
        let recording = read(&around(&frames)).unwrap_or_else(|error| panic!("{opcodes:?}: {error:?}"));
        assert!(text(&recording).contains(&format!("[{expected} :5]")), "{}", text(&recording));
    }
}

#[test]
fn containers() {
    // LIST and DICT with a mark, tuples of every length, sets and bytes that mean nothing.
    let mut frames = b"K\x01\x8c\x06frames(".to_vec();
    frames.extend(b"(\x8c\x04name\x8c\x01a\x8c\x04lineK\x05d");
    frames.extend(b"\x8c\x01fK\x06\x8c\x01b\x87");
    frames.extend(b"(\x8c\x01fK\x07\x8c\x01c\x8c\x04codet");
    frames.extend(b"\x8c\x01d");
    frames.push(b'l');
    for nothing in [
        b")".as_slice(),
        b"K\x01\x85",
        b"\x8f",
        b"\x8f(K\x01\x90",
        b"(K\x01\x91",
        b"C\x03abc",
        b"B\x03\0\0\0abc",
        b"\x8e\x03\0\0\0\0\0\0\0abc",
        b"\x96\x03\0\0\0\0\0\0\0abc",
        b"\x89",
        b"]",
        b"}",
        b"](K\x01K\x02e",
        b"}(K\x01K\x02u",
        b"\x8a\x14aaaaaaaaaaaaaaaaaaaa",
    ] {
        frames.extend(b"\x8c\x0bmore_of_the");
        frames.extend(nothing);
    }
    assert_snapshot!(text(&read(&around(&frames)).unwrap()), @r#"
    device 0
      Alloc 0x0 1 stream 0x0 @0 ["", ""] pool None [a :5, b f:6, c f:7, d :0]
    "#);
}

#[test]
fn texts_too_long_to_keep_are_skipped() {
    let length = 300_000_u32;
    let mut frames = b"K\x01\x8c\x0bsource_codeX".to_vec();
    frames.extend(length.to_le_bytes());
    frames.extend(vec![b'x'; length as usize]);
    frames.extend(b"\x8c\x06stream\x8a\x06\x01\x02\x03\x04\x05\x06");
    assert_snapshot!(text(&read(&around(&frames)).unwrap()), @r#"
    device 0
      Alloc 0x0 1 stream 0x60504030201 @0 ["", ""] pool None []
    "#);
}

#[test]
fn code_is_refused_by_name() {
    for (opcodes, expected) in [
        (
            b"cos\nsystem\n".as_slice(),
            "the pickle asks for `os.system` of the program that reads it, at byte 44 (GLOBAL)",
        ),
        (b"ios\nsystem\n", "the pickle asks for `os.system` of the program that reads it, at byte 44 (INST)"),
        (
            b"\x8c\x02os\x8c\x06system\x93",
            "the pickle asks for `os.system` of the program that reads it, at byte 56 (STACK_GLOBAL)",
        ),
        (
            b"\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93",
            "the pickle asks for `os.system` of the program that reads it, at byte 62 (STACK_GLOBAL)",
        ),
        (b"K\x01K\x02\x93", "the pickle asks for code to be run, at byte 48 (STACK_GLOBAL)"),
        (b"R", "the pickle asks for code to be run, at byte 44 (REDUCE)"),
        (b"b", "the pickle asks for code to be run, at byte 44 (BUILD)"),
        (b"o", "the pickle asks for code to be run, at byte 44 (OBJ)"),
        (b"\x81", "the pickle asks for code to be run, at byte 44 (NEWOBJ)"),
        (b"\x92", "the pickle asks for code to be run, at byte 44 (NEWOBJ_EX)"),
        (b"\x82\x01", "the pickle asks for code to be run, at byte 44 (EXT1)"),
        (b"\x83\x01\x01", "the pickle asks for code to be run, at byte 44 (EXT2)"),
        (b"\x84\x01\x01\x01\x01", "the pickle asks for code to be run, at byte 44 (EXT4)"),
        (b"Pid\n", "the pickle asks for code to be run, at byte 44 (PERSID)"),
        (b"Q", "the pickle asks for code to be run, at byte 44 (BINPERSID)"),
        (b"\x97", "byte 44 is the opcode NEXT_BUFFER, which no memory snapshot needs"),
        (b"\x98", "byte 44 is the opcode READONLY_BUFFER, which no memory snapshot needs"),
        (b"\xff", "byte 44 is 0xff, not a pickle opcode, which no memory snapshot needs"),
    ] {
        let shown = failure(&around(opcodes));
        assert_eq!(shown.lines().nth(1), Some(format!("  cause: {expected}").as_str()));
    }
    assert_snapshot!(failure(b"\x80\x04cos\nsystem\n\x8c\x02lsR."), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: the pickle asks for `os.system` of the program that reads it, at byte 2 (GLOBAL)
    hint: a memory snapshot holds only lists, dicts, numbers and texts, and gpuheap never imports or runs what a pickle asks for; record one with `torch.cuda.memory._record_memory_history()` before the work and `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after it
    "#);
}

#[test]
fn malformed_pickles() {
    for (pickle, expected) in [
        (b"\x80\x04.".as_slice(), "malformed pickle at byte 2: STOP finds too little on the stack"),
        (b"\x80\x04h\x07.", "malformed pickle at byte 2: BINGET reads a memo entry that was never stored"),
        (b"\x80\x04j\x07\0\0\0.", "malformed pickle at byte 2: LONG_BINGET reads a memo entry that was never stored"),
        (b"\x80\x04g7\n.", "malformed pickle at byte 2: GET reads a memo entry that was never stored"),
        (b"\x80\x04\x94.", "malformed pickle at byte 2: MEMOIZE finds too little on the stack"),
        (b"\x80\x04q\0.", "malformed pickle at byte 2: BINPUT finds too little on the stack"),
        (b"\x80\x04r\0\0\0\0.", "malformed pickle at byte 2: LONG_BINPUT finds too little on the stack"),
        (b"\x80\x04p1\n.", "malformed pickle at byte 2: PUT finds too little on the stack"),
        (b"\x80\x04]e.", "malformed pickle at byte 3: APPENDS finds no mark on the stack"),
        (b"\x80\x04(e.", "malformed pickle at byte 3: APPENDS finds too little on the stack"),
        (b"\x80\x04](K\x01a.", "malformed pickle at byte 6: APPEND finds too little on the stack"),
        (b"\x80\x04}K\x01s.", "malformed pickle at byte 5: SETITEM finds too little on the stack"),
        (b"\x80\x04}(K\x01u.", "malformed pickle at byte 6: SETITEMS finds a key without a value"),
        (b"\x80\x04(K\x01d.", "malformed pickle at byte 5: DICT finds a key without a value"),
        (b"\x80\x04](K\x01K\x02u.", "malformed pickle at byte 8: SETITEMS is applied to an object of another type"),
        (b"\x80\x04}(K\x01e.", "malformed pickle at byte 6: APPENDS is applied to an object of another type"),
        (b"\x80\x04NK\x01a.", "malformed pickle at byte 5: APPEND is applied to an object of another type"),
        (b"\x80\x04K\x01\x86.", "malformed pickle at byte 4: TUPLE2 finds too little on the stack"),
        (b"\x80\x04K\x01(\x85.", "malformed pickle at byte 5: TUPLE1 finds too little on the stack"),
        (b"\x80\x04t.", "malformed pickle at byte 2: TUPLE finds no mark on the stack"),
        (b"\x80\x04l.", "malformed pickle at byte 2: LIST finds no mark on the stack"),
        (b"\x80\x04\x91.", "malformed pickle at byte 2: FROZENSET finds no mark on the stack"),
        (b"\x80\x040.", "malformed pickle at byte 2: POP finds too little on the stack"),
        (b"\x80\x041.", "malformed pickle at byte 2: POP_MARK finds no mark on the stack"),
        (b"\x80\x042.", "malformed pickle at byte 2: DUP finds too little on the stack"),
        (b"\x80\x04Ix\n.", "malformed pickle at byte 2: INT has an argument that cannot be read"),
        (b"\x80\x04Fx\n.", "malformed pickle at byte 2: FLOAT has an argument that cannot be read"),
        (b"\x80\x04Sx\n.", "malformed pickle at byte 2: STRING has an argument that cannot be read"),
        (b"\x80\x04g-1\n.", "malformed pickle at byte 2: GET has an argument that cannot be read"),
        (b"\x80\x06.", "pickle protocol 6 is not known (the newest is 5)"),
        (b"\x80\x04", "unexpected end of file at byte 2: another opcode should follow"),
        (b"\x80", "unexpected end of file at byte 1: the rest of an opcode's argument should follow"),
        (b"\x80\x04\x8c\x05trai", "unexpected end of file at byte 8: the rest of a text should follow"),
        (
            b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc",
            "unexpected end of file at byte 14: the rest of a text should follow",
        ),
        (b"\x80\x04I12", "unexpected end of file at byte 5: the rest of an opcode's argument should follow"),
    ] {
        let shown = failure(pickle);
        assert_eq!(shown.lines().nth(1), Some(format!("  cause: {expected}").as_str()), "{pickle:?}");
    }
    let mut endless = b"\x80\x04V".to_vec();
    endless.extend(vec![b'x'; 1 << 20]);
    assert_snapshot!(failure(&endless), @r#"
    Failed to read snapshot `snapshot.pickle`
      cause: malformed pickle at byte 2: UNICODE has an argument without an end
    hint: the file is damaged, or was not written by a pickler; copy it again from where it was written
    "#);
}

#[test]
fn bytes_after_the_end_are_noted() {
    let mut bytes = around(b"K\x01");
    bytes.extend(b"\n\n");
    assert_eq!(notes(&read(&bytes).unwrap()), ["2 bytes follow the end of the snapshot and were ignored."]);
    bytes.extend(vec![0; 2 << 20]);
    assert_eq!(notes(&read(&bytes).unwrap()), ["More data follows the end of the snapshot and was ignored."]);
}
