//! The rank of a process, out of the name of its recording.

/// The most digits of a rank: longer numbers are something else.
const MOST_DIGITS: usize = 6;

/// A rank in a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    /// The rank.
    pub(crate) rank: u32,
    /// The name with `*` in place of the rank: the same for all ranks of one run.
    pub(crate) pattern: String,
}

/// The last `rank3`, `rank_03`, `rank-3` or `r3` in a name.
pub(crate) fn rank(name: &str) -> Option<Named> {
    let bytes = name.as_bytes();
    let mut found = None;
    let mut at = 0;
    while at < bytes.len() {
        match digits_at(bytes, at) {
            Some((from, to)) => {
                found = Some((from, to));
                at = to;
            }
            None => at += 1,
        }
    }
    let (from, to) = found?;
    // Digits are ASCII, so both ends are between characters.
    let rank = name[from..to].parse().ok()?;
    Some(Named { rank, pattern: format!("{}*{}", &name[..from], &name[to..]) })
}

/// The digits of a rank whose word begins at `at`.
fn digits_at(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = &bytes[at..];
    let before = at.checked_sub(1).map(|before| bytes[before]);
    let mut from = if rest.len() >= 4 && rest[..4].eq_ignore_ascii_case(b"rank") {
        at + 4
    } else if rest[0].eq_ignore_ascii_case(&b'r') && before.is_none_or(|byte| !byte.is_ascii_alphanumeric()) {
        at + 1
    } else {
        return None;
    };
    if from == at + 4 && bytes.get(from).is_some_and(|byte| b"_-.= ".contains(byte)) {
        from += 1;
    }
    let count = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends = bytes.get(from + count).is_none_or(|byte| !byte.is_ascii_alphanumeric());
    (ends && (1..=MOST_DIGITS).contains(&count)).then_some((from, from + count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_by_name() {
        for (name, rank, pattern) in [
            ("rank3.pickle", 3, "rank*.pickle"),
            ("snapshot_rank_03.pickle.gz", 3, "snapshot_rank_*.pickle.gz"),
            ("step100/Rank-12/snapshot.pickle", 12, "step100/Rank-*/snapshot.pickle"),
            ("r3.pickle", 3, "r*.pickle"),
            ("run7_r0_step10.pkl", 0, "run7_r*_step10.pkl"),
            ("rank0/rank1.pickle", 1, "rank0/rank*.pickle"),
            ("é rank 5 é", 5, "é rank * é"),
            ("local_rank=7", 7, "local_rank=*"),
        ] {
            assert_eq!(super::rank(name), Some(Named { rank, pattern: pattern.to_owned() }), "{name}");
        }
        for name in
            ["", "r", "rank", "step3.pickle", "rank12345678", "r3d18.pickle", "bar3.pickle", "error3", "rank_x3"]
        {
            assert_eq!(super::rank(name), None, "{name}");
        }
    }
}
