//! Which device a figure is of.
//!
//! CUDA numbers the devices that a process may see, in the order that it asked for (`CUDA_VISIBLE_DEVICES`): what is 0 in
//! one process is another device in the next. NVML has an order of its own. The UUID is the same for all of them.

use std::fmt;

/// The UUID of a device, or of a part of one (MIG).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// Of the bytes that CUDA gives.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Of the text that NVML gives: `GPU-` or `MIG-`, then the bytes in hexadecimal, divided by `-`. Nothing for another
    /// text, as parts had before driver 470.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?;
        let divided = [8, 13, 18, 23].iter().all(|place| digits.as_bytes().get(*place) == Some(&b'-'));
        let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b'-').collect();
        if !divided || digits.len() != 32 {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bytes))
    }

    /// What tells devices apart in one word: a sum that depends on every bit. Never 0.
    pub(crate) fn key(self) -> u64 {
        let [low, high] = self.words();
        let mixed = (low ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 29 ^ high).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 32).max(1)
    }

    pub(crate) fn words(self) -> [u64; 2] {
        let word = |start: usize| std::array::from_fn(|index| self.0[start + index]);
        [word(0), word(8)].map(u64::from_ne_bytes)
    }

    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        let bytes = words.map(u64::to_ne_bytes);
        Self(std::array::from_fn(|index| bytes[index / 8][index % 8]))
    }
}

/// As NVML writes it, without what goes before.
impl fmt::Display for Uuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(formatter, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_text_of_the_driver_s_library_is_read() {
        let bytes = [0x8f, 0x1e, 0, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        for text in ["GPU-8f1e00ff-0102-0304-0506-0708090a0b0c", "MIG-8F1E00FF-0102-0304-0506-0708090A0B0C"] {
            assert_eq!(Uuid::parse(text), Some(Uuid::from_bytes(bytes)));
        }
        for text in [
            "",
            "GPU-",
            "8f1e00ff-0102-0304-0506-0708090a0b0c",
            "GPU-8f1e00ff-0102-0304-0506-0708090a0b0",
            "GPU-8f1e00ff-0102-0304-0506-0708090a0b0cc",
            "GPU-8f1e00ff01020304-0506-0708-090a0b0c--",
            "GPU-8f1e00fg-0102-0304-0506-0708090a0b0c",
            "GPU-8f1e00f+-0102-0304-0506-0708090a0b0c",
            "GPU-8f1e00f\u{e9}-0102-0304-0506-0708090a0b0c",
            "MIG-GPU-8f1e00ff-0102-0304-0506-0708090a0b0c/1/0",
        ] {
            assert_eq!(Uuid::parse(text), None, "{text:?}");
        }
    }

    /// The devices of one machine may differ in a few bits.
    #[test]
    fn devices_that_are_alike_have_other_keys() {
        let mut keys = BTreeSet::new();
        for bit in 0..128 {
            let mut bytes = *b"gpuheap fake\0\0\0\0";
            bytes[bit / 8] ^= 1 << (bit % 8);
            keys.insert(Uuid::from_bytes(bytes).key());
        }
        assert_eq!(keys.len(), 128);
        assert!(!keys.contains(&0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn text_and_words_are_read_as_they_were_written(bytes in any::<[u8; 16]>()) {
            let uuid = Uuid::from_bytes(bytes);
            prop_assert_eq!(Uuid::parse(&format!("GPU-{uuid}")), Some(uuid));
            prop_assert_eq!(Uuid::from_words(uuid.words()), uuid);
            prop_assert_eq!(uuid.bytes(), bytes);
        }

        #[test]
        fn no_text_is_too_odd(text in "(GPU-|MIG-)?[0-9a-fA-F\\-é]{0,40}") {
            if let Some(uuid) = Uuid::parse(&text) {
                prop_assert_eq!(text[4..].to_lowercase(), uuid.to_string());
            }
        }
    }
}
