use std::sync::Arc;

use super::Mover;
use crate::chunks::Chunk;
use crate::rig::{self, MIB, Rig, control, happened, used};

const BYTES: usize = 2 * MIB;

/// Chunks on the host and on the device, each of a value of its own: those on the host first.
fn both(rig: &Rig, host: usize, device: usize) -> Vec<Arc<Chunk>> {
    let make = |number| rig.chunk(BYTES, value(number));
    let mut all: Vec<Arc<Chunk>> = (0..host).map(make).collect();
    rig.exchange(&all, &[]);
    all.extend((host..host + device).map(make));
    all
}

fn value(number: usize) -> u8 {
    u8::try_from(number + 1).unwrap()
}

/// Each chunk has what it had, is somewhere as a whole, and is charged for where it is.
#[track_caller]
fn check(rig: &Rig, chunks: &[Arc<Chunk>]) {
    for (number, chunk) in chunks.iter().enumerate() {
        assert!(chunk.inner().backing.is_some(), "{number} is nowhere");
        assert!(rig.is_all(chunk, value(number)), "{number} has another content");
    }
    let here = chunks.iter().filter(|chunk| !chunk.is_spilled()).count();
    assert_eq!(used(), (here * BYTES) as u64);
}

#[test]
fn any_number_goes_and_comes_and_the_host_s_memory_is_never_mapped_beside_copies_out() {
    for (outs, backs) in [(1, 1), (3, 2), (7, 7), (10, 5), (2, 9), (20, 20), (17, 1), (1, 33), (0, 40)] {
        let rig = rig::rig(256 * MIB, 256 * MIB);
        let chunks = both(&rig, backs, outs);
        let before = happened("host mapped beside copies out");
        control("delay 100");
        rig.exchange(&chunks[backs..], &chunks[..backs]);
        control("delay 0");
        assert_eq!(happened("host mapped beside copies out"), before, "{outs} out and {backs} back");
        assert!(outs < 7 || backs < 5 || happened("host mapped beside copies in") > 0, "{outs} out and {backs} back");
        check(&rig, &chunks);
        assert!(chunks[backs..].iter().all(|chunk| chunk.is_spilled()));
    }
}

/// What comes takes over the memory that others leave, within the budget at all times.
#[test]
fn without_room_on_the_device_each_comes_when_another_has_gone() {
    let rig = rig::rig(12 * BYTES, 256 * MIB);
    let chunks = both(&rig, 12, 12);
    let before = happened("cuMemCreate");
    rig.exchange(&chunks[12..], &chunks[..12]);
    check(&rig, &chunks);
    let made = happened("cuMemCreate") - before;
    // Memory of the host for the first group, and no other.
    assert_eq!(made, 6);
    // One more than there is room for.
    let (gone, came) = Mover::new(rig.moving, 0).unwrap().exchange(&chunks[..11], &chunks[12..]);
    assert_eq!((gone.chunks, came.chunks), (11, 11));
    assert!(gone.error.is_none() && came.error.is_none());
    check(&rig, &chunks);
}

#[test]
fn without_room_on_the_host_each_goes_when_another_has_come() {
    let rig = rig::rig(16 * BYTES, 12 * BYTES);
    let chunks = both(&rig, 12, 12);
    rig.exchange(&chunks[12..], &chunks[..12]);
    check(&rig, &chunks);
    // Neither here nor there: nothing can move, and it says so at once.
    drop((chunks, rig));
    let rig = rig::rig(12 * BYTES, 12 * BYTES);
    let chunks = both(&rig, 12, 12);
    let (gone, came) = Mover::new(rig.moving, 0).unwrap().exchange(&chunks[12..], &chunks[..12]);
    assert_eq!((gone.chunks, came.chunks), (0, 0));
    check(&rig, &chunks);
}

/// Calls that fail as often as they are tried: at that place all ends, and nothing is half moved.
#[test]
fn an_error_in_the_middle_leaves_nothing_half_moved() {
    let functions =
        ["cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemcpyDtoDAsync_v2", "cuMemCreate", "cuEventRecord"];
    for function in functions {
        for nth in [1, 2, 5, 11, 20] {
            let rig = rig::rig(256 * MIB, 256 * MIB);
            let chunks = both(&rig, 9, 9);
            control(&format!("fail {function} {nth} 999 4"));
            let (gone, came) = Mover::new(rig.moving, 0).unwrap().exchange(&chunks[9..], &chunks[..9]);
            control("reset");
            let moved = chunks[9..].iter().filter(|chunk| chunk.is_spilled()).count();
            assert_eq!(gone.chunks, moved, "{function} {nth}");
            check(&rig, &chunks);
            // And it goes on.
            let (out, back): (Vec<_>, Vec<_>) = chunks.iter().cloned().partition(|chunk| !chunk.is_spilled());
            rig.exchange(&out, &back);
            check(&rig, &chunks);
            drop((gone, came));
        }
    }
}

#[test]
fn streams_are_kept_from_one_move_to_the_next_and_not_beyond_their_context() {
    let rig = rig::rig(256 * MIB, 256 * MIB);
    let chunks = both(&rig, 2, 2);
    let made = || happened("cuStreamCreate") + happened("cuEventCreate");
    let before = made();
    for _ in 0..3 {
        rig.exchange(&chunks[2..], &chunks[..2]);
        rig.exchange(&chunks[..2], &chunks[2..]);
    }
    assert_eq!(made(), before);
    // Nobody was told.
    rig::reset();
    rig.exchange(&chunks[2..], &chunks[..2]);
    check(&rig, &chunks);
    // A wait that failed says that something is wrong with them.
    let before = made();
    control("fail cuStreamSynchronize 1 700 4");
    Mover::new(rig.moving, 0).unwrap().exchange(&chunks[..2], &chunks[2..]);
    control("reset");
    let before = made().min(before);
    rig.exchange(&[], &[]);
    assert!(made() > before);
}
