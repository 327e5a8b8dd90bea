//! Recordings that lost their start: what the rest says must be as true as the whole.

use gpuheap_explain::{Options, explain};
use gpuheap_record::Bytes;
use proptest::prelude::*;

use crate::maker::Maker;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Action {
    Allocate { size: u64, stream: u64 },
    Free { index: usize },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let size = prop_oneof![1_u64..4000, 1_u64..2 * MIB, MIB..30 * MIB];
    let action = prop_oneof![
        5 => (size, 0..2_u64).prop_map(|(size, stream)| Action::Allocate { size, stream: stream * 0x100 }),
        4 => any::<usize>().prop_map(|index| Action::Free { index }),
    ];
    prop::collection::vec(action, 20..150)
}

fn program(actions: &[Action]) -> Maker {
    let mut maker = Maker::new();
    let stack = maker.stack(&["work@train.py:7", "<module>@train.py:50"]);
    for action in actions {
        match *action {
            Action::Allocate { size, stream } => {
                maker.allocate_on(size, stream, stack);
            }
            Action::Free { index } => {
                let live = maker.live();
                if !live.is_empty() {
                    maker.free(live[index % live.len()]);
                }
            }
        }
    }
    maker
}

proptest! {
    #[test]
    fn the_state_before_the_first_event_is_rebuilt(actions in actions(), share in 0.0..1.0_f64) {
        let maker = program(&actions);
        let whole = explain(&maker.recording(), &Options::default()).expect("a device is there");
        prop_assert!(whole.replay.exact, "{:?}", whole.replay);
        let events = whole.source.device_events;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small number")]
        let lost = (share * events as f64) as usize;
        let cut = explain(&maker.recording_without(lost), &Options::default()).expect("a device is there");
        // The end is the same to the byte, all events fit, and the peak is that of the part that is left.
        prop_assert_eq!(cut.end.allocated_bytes, whole.end.allocated_bytes);
        prop_assert_eq!(cut.end.reserved_bytes, whole.end.reserved_bytes);
        prop_assert!(cut.peaks.allocated_bytes <= whole.peaks.allocated_bytes + Bytes::new(MIB));
        prop_assert!(!cut.source.notes.iter().any(|note| note.contains("did not fit")), "{:?}", cut.source.notes);
        for parts in cut.ledgers.iter().filter(|(name, _)| name.key() == "end").map(|(_, parts)| parts) {
            let sum: Bytes = parts.iter().map(|part| part.bytes).sum();
            prop_assert_eq!(sum, cut.end.reserved_bytes);
        }
    }
}
