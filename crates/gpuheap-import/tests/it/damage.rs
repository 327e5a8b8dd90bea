//! Damaged files: an error or a recording, never a panic.

use proptest::prelude::*;

use crate::support::{read, sample};
use crate::writer::{CPYTHON, Style, pickle, styles};

#[test]
fn every_cut_is_an_error() {
    for style in styles() {
        let whole = pickle(&sample(), style);
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{style:?}: {length} of {} bytes", whole.len());
        }
    }
    let json = sample().json();
    for length in 0..json.len() {
        assert!(read(&json.as_bytes()[..length]).is_err(), "JSON: {length} bytes");
    }
}

#[test]
fn a_changed_byte_is_never_a_panic() {
    let files = [
        pickle(&sample(), CPYTHON),
        pickle(&sample(), Style { protocol: 2, memo: true, batch: 1 }),
        pickle(&sample(), Style { protocol: 0, memo: true, batch: 0 }),
        sample().json().into_bytes(),
    ];
    for mut file in files {
        for place in 0..file.len() {
            let before = file[place];
            for after in [0, 0xff, before ^ 1, before ^ 0x80, b'(', b'a', b'u', b'}'] {
                file[place] = after;
                let _ = read(&file);
            }
            file[place] = before;
        }
    }
}

/// Opcodes without arguments, and short ones: random sequences of these get much further than random bytes.
fn opcode() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "action",
        "alloc",
        "frames",
        "name",
        "line",
        "filename",
        "size",
        "addr",
        "state",
        "inactive",
        "blocks",
        "total_size",
        "segments",
        "device_traces",
        "stage",
        "START",
        "real_size",
        "history",
        "pool_id",
        "1",
        "allocator_settings",
        "roundup_power2_divisions",
        "max_split_size",
        "device",
        "time_us",
        "foreign",
    ];
    prop_oneof![
        prop::sample::select(b"(.012NR]}ael)tsud\x85\x86\x87\x88\x89\x8f\x90\x91\x93\x94".to_vec())
            .prop_map(|op| vec![op]),
        (0..8_u8).prop_map(|index| vec![b'h', index]),
        (0..8_u8).prop_map(|index| vec![b'q', index]),
        any::<u8>().prop_map(|number| vec![b'K', number]),
        any::<[u8; 4]>().prop_map(|number| [&b"J"[..], &number].concat()),
        prop::collection::vec(any::<u8>(), 0..10)
            .prop_map(|digits| { [&[0x8a, u8::try_from(digits.len()).unwrap()][..], &digits].concat() }),
        prop::sample::select(words.to_vec())
            .prop_map(|word| { [&[0x8c, u8::try_from(word.len()).unwrap()][..], word.as_bytes()].concat() }),
        prop::sample::select(words.to_vec()).prop_map(|word| {
            [&[b'(', 0x8c, u8::try_from(word.len()).unwrap()][..], word.as_bytes(), b"K\x01d"].concat()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
        let _ = read(&[b"\x80\x04", &bytes[..]].concat());
        let _ = read(&[b"{\"segments\":[", &bytes[..]].concat());
        let _ = read(&[b"\x1f\x8b\x08\0\0\0\0\0\0\0", &bytes[..]].concat());
        let _ = read(&[b"\x28\xb5\x2f\xfd", &bytes[..]].concat());
    }

    #[test]
    fn random_opcodes_are_never_a_panic(opcodes in prop::collection::vec(opcode(), 0..80)) {
        let body = opcodes.concat();
        let _ = read(&[b"\x80\x04", &body[..], b"."].concat());
        let _ = read(&[b"\x80\x04}\x8c\x0ddevice_traces]", &body[..], b"as."].concat());
        let _ = read(&[b"\x80\x04}(\x8c\x08segments](", &body[..], b"eu."].concat());
    }
}
