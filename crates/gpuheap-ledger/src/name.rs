//! What the system calls a process: a short name, kept in two words, for whoever meets its figures when it is gone.

use std::fmt;
use std::fs;

/// The name of a process, at most 15 bytes as Linux has it; zero is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Name([u64; 2]);

impl Name {
    /// The calling process's.
    #[must_use]
    pub fn own() -> Self {
        Self::of(fs::read("/proc/self/comm").unwrap_or_default().trim_ascii_end())
    }

    /// The name that these bytes are, as much of them as there is room for.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let word = |start: usize| {
            let mut word = [0; 8];
            for (place, byte) in word.iter_mut().zip(bytes.iter().skip(start)) {
                *place = *byte;
            }
            u64::from_ne_bytes(word)
        };
        Self([word(0), word(8)])
    }

    /// As it is kept.
    #[must_use]
    pub fn words(self) -> [u64; 2] {
        self.0
    }

    /// The name that was kept as this.
    #[must_use]
    pub fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == [0, 0]
    }
}

/// Control characters, which a program may put into its name, are left out.
impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
        let text: String = String::from_utf8_lossy(&bytes).chars().filter(|sign| !sign.is_control()).collect();
        formatter.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_as_much_of_it_as_there_is_room_for() {
        let told = |bytes: &[u8]| Name::from_words(Name::of(bytes).words()).to_string();
        assert_eq!(told(b"python3.12"), "python3.12");
        assert_eq!(told(b"a\x1b[2Jb\n"), "a[2Jb");
        assert_eq!(told(b"0123456789abcdefgh"), "0123456789abcdef");
        assert_eq!((told(b""), Name::of(b"").is_empty(), Name::of(b"x").is_empty()), (String::new(), true, false));
        assert!(!Name::own().is_empty());
    }
}
