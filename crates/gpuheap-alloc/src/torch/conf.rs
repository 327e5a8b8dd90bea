//! Settings as a user writes them in `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! What is accepted, what it comes to and what PyTorch says about the rest was read off PyTorch 2.11 by starting it with
//! each string (`docs/results/allocator-conf.md` in the repository).

use gpuheap_record::ROUNDUP_INTERVALS;

use super::rules::Config;

const MIB: u64 = 1 << 20;

/// Why PyTorch would refuse a string of settings.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfError {
    /// PyTorch refuses it with this message.
    #[error("PyTorch refuses it: {0}")]
    Refused(String),
    /// PyTorch fails an internal check at this place and ends the process.
    #[error("PyTorch ends the process over it: {0}")]
    Malformed(String),
    /// Settings of another allocator: its rules are not PyTorch's own.
    #[error("`backend:cudaMallocAsync` leaves all decisions to the driver: there is nothing to replay")]
    OtherBackend,
}

/// Reads a string of settings: `key:value,key:[a:b,…]`. What is not named keeps its default; what is named twice counts
/// the last time; settings of pinned memory are read and change nothing here.
pub fn parse_conf(conf: &str) -> Result<Config, ConfError> {
    let mut tokens = Tokens::new(conf);
    let mut config = Config::default();
    while let Some(key) = tokens.next() {
        match key {
            "max_split_size_mb" => {
                config.max_split = at_least(key, tokens.number(key)?, config.large_segment / MIB)?;
            }
            "max_non_split_rounding_mb" => {
                config.max_non_split_rounding = at_least(key, tokens.number(key)?, config.large_segment / MIB)?;
            }
            "large_segment_size_mb" => {
                let size = tokens.number(key)?;
                if size <= 10 {
                    return refuse("CachingAllocator option large_segment_size_mb must be > 10 MB");
                }
                config.large_segment = size.saturating_mul(MIB);
            }
            "garbage_collection_threshold" => {
                let share = tokens.fraction(key)?;
                if !(share > 0.0 && share < 1.0) {
                    return refuse("garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
                }
                config.garbage_collection_threshold = share;
            }
            "per_process_memory_fraction" => {
                let share = tokens.fraction(key)?;
                if !(0.0..=1.0).contains(&share) {
                    return refuse("per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
                }
                config.memory_fraction = share;
            }
            "roundup_power2_divisions" => config.roundup_power2_divisions = tokens.divisions()?,
            "expandable_segments" => config.expandable = tokens.boolean(key)?,
            "backend" => match tokens.value(key)? {
                "native" => {}
                "cudaMallocAsync" => return Err(ConfError::OtherBackend),
                _ => return refuse("Unknown allocator backend, options are native and cudaMallocAsync"),
            },
            "release_lock_on_cudamalloc"
            | "graph_capture_record_stream_reuse"
            | "throw_on_cudamalloc_oom"
            | "pinned_use_cuda_host_register"
            | "pinned_use_background_threads"
            | "pinned_free_catch_all" => {
                tokens.boolean(key)?;
            }
            "pinned_num_register_threads" => {
                let threads = tokens.number(key)?;
                if !threads.is_power_of_two() {
                    return refuse(&format!("Number of register threads has to be power of 2, got {threads}"));
                }
                if threads > 128 {
                    let message = "Number of register threads should be less than or equal to 128, got ";
                    return refuse(&format!("{message}{threads}"));
                }
            }
            "pinned_reserve_segment_size_mb" | "pinned_max_round_threshold_mb" | "pinned_max_cached_size_mb" => {
                tokens.number(key)?;
            }
            other => return refuse(&format!("Unrecognized key '{other}' in CUDA allocator config.")),
        }
        match tokens.next() {
            None | Some(",") => {}
            Some(other) => return Err(ConfError::Malformed(format!("Expected `,` before `{other}`"))),
        }
    }
    Ok(config)
}

fn refuse<T>(message: &str) -> Result<T, ConfError> {
    Err(ConfError::Refused(message.to_owned()))
}

fn at_least(key: &str, mib: u64, least: u64) -> Result<u64, ConfError> {
    if mib < least {
        return refuse(&format!("CachingAllocator option {key} too small, must be >= {least}"));
    }
    Ok(mib.saturating_mul(MIB))
}

/// The string in its parts: names and numbers, and each of `,:[]` by itself. Blanks count nowhere.
struct Tokens<'a> {
    tokens: std::vec::IntoIter<&'a str>,
}

impl<'a> Tokens<'a> {
    fn new(conf: &'a str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = conf;
        while let Some(at) = rest.find([',', ':', '[', ']', ' ']) {
            let (word, behind) = rest.split_at(at);
            let (mark, behind) = behind.split_at(1);
            tokens.extend([word, mark].into_iter().filter(|token| !token.trim().is_empty()));
            rest = behind;
        }
        tokens.extend((!rest.trim().is_empty()).then_some(rest));
        Self { tokens: tokens.into_iter() }
    }

    fn next(&mut self) -> Option<&'a str> {
        self.tokens.next()
    }

    fn expect(&mut self, mark: &str, after: &str) -> Result<(), ConfError> {
        match self.next() {
            Some(token) if token == mark => Ok(()),
            _ => Err(ConfError::Malformed(format!("Expected `{mark}` after `{after}`"))),
        }
    }

    fn value(&mut self, key: &str) -> Result<&'a str, ConfError> {
        self.expect(":", key)?;
        self.next().ok_or_else(|| ConfError::Malformed(format!("Expected a value after `{key}:`")))
    }

    /// A whole number; like PyTorch it stops reading at the first character that does not belong to one.
    fn number(&mut self, key: &str) -> Result<u64, ConfError> {
        let value = self.value(key)?;
        number(value)
    }

    fn fraction(&mut self, key: &str) -> Result<f64, ConfError> {
        self.value(key)?.parse().map_err(|_| ConfError::Refused("stod".to_owned()))
    }

    fn boolean(&mut self, key: &str) -> Result<bool, ConfError> {
        match self.value(key)? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => refuse(&format!("Expected 'True' or 'False' at index 2 in ConfigTokenizer but got '{other}'")),
        }
    }

    /// One number for every size, or a list by interval: `[256:1,512:2,>:8]`. The first entry counts for all smaller
    /// sizes too, `>` for all larger ones; what lies between two entries keeps 0.
    fn divisions(&mut self) -> Result<[u64; ROUNDUP_INTERVALS], ConfError> {
        let first = self.value("roundup_power2_divisions")?;
        if first != "[" {
            let divisions = number(first)?;
            if !divisions.is_power_of_two() {
                return refuse("For roundups, the divisions has to be power of 2 ");
            }
            return Ok([divisions; ROUNDUP_INTERVALS]);
        }
        let mut all = [0; ROUNDUP_INTERVALS];
        let mut last = 0;
        let mut is_first = true;
        let unclosed = || ConfError::Malformed("Expected closing bracket `]` before the end".to_owned());
        loop {
            let boundary = match self.next().ok_or_else(unclosed)? {
                "]" => return Ok(all),
                "," => continue,
                boundary => boundary,
            };
            let divisions = number(self.value(boundary)?)?;
            if divisions != 0 && !divisions.is_power_of_two() {
                return refuse("For roundups, the divisions has to be power of 2 or 0 to disable roundup ");
            }
            if boundary == ">" {
                all.iter_mut().skip(last + 1).for_each(|entry| *entry = divisions);
                continue;
            }
            let boundary = number(boundary)?;
            if !boundary.is_power_of_two() {
                return refuse("For roundups, the intervals have to be power of 2 ");
            }
            let index = boundary.ilog2() as usize;
            if is_first {
                all.iter_mut().take(index).for_each(|entry| *entry = divisions);
                is_first = false;
            }
            if let Some(entry) = all.get_mut(index) {
                *entry = divisions;
            }
            last = index;
        }
    }
}

fn number(text: &str) -> Result<u64, ConfError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..digits].parse().map_err(|_| ConfError::Refused("stoull".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(conf: &str) -> String {
        parse_conf(conf).expect_err(conf).to_string()
    }

    #[test]
    fn strings_come_to_what_pytorch_makes_of_them() {
        let stock = Config::default;
        for conf in [
            "",
            "backend:native",
            "expandable_segments:True,expandable_segments:False",
            "pinned_num_register_threads:8",
        ] {
            assert_eq!(parse_conf(conf), Ok(stock()), "{conf}");
        }
        let expandable = Config { expandable: true, ..stock() };
        for conf in ["expandable_segments:True", "expandable_segments:True,", " expandable_segments : True "] {
            assert_eq!(parse_conf(conf), Ok(expandable.clone()), "{conf}");
        }
        let split = |mib: u64| Config { max_split: mib << 20, ..stock() };
        assert_eq!(parse_conf("max_split_size_mb:20"), Ok(split(20)));
        assert_eq!(parse_conf("max_split_size_mb:128.5"), Ok(split(128)));
        let divisions = |list: [u64; 16]| Ok(Config { roundup_power2_divisions: list, ..stock() });
        assert_eq!(parse_conf("roundup_power2_divisions:8"), divisions([8; 16]));
        assert_eq!(
            parse_conf("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"),
            divisions([1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8])
        );
        assert_eq!(
            parse_conf("roundup_power2_divisions:[>:8]"),
            divisions([0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8])
        );
        assert_eq!(
            parse_conf("roundup_power2_divisions:[64:8,>:4]"),
            divisions([8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4])
        );
    }

    #[test]
    fn refusals_are_pytorchs_own() {
        for (conf, message) in [
            ("max_split_size_mb:19", "CachingAllocator option max_split_size_mb too small, must be >= 20"),
            ("max_split_size_mb:abc", "stoull"),
            (
                "max_non_split_rounding_mb:10",
                "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
            ),
            ("garbage_collection_threshold:1", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
            ("garbage_collection_threshold:abc", "stod"),
            ("roundup_power2_divisions:0", "For roundups, the divisions has to be power of 2 "),
            ("roundup_power2_divisions:[256:3]", "power of 2 or 0 to disable roundup "),
            ("roundup_power2_divisions:[300:1]", "For roundups, the intervals have to be power of 2 "),
            ("expandable_segments:true", "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'"),
            ("unknown_key:1", "Unrecognized key 'unknown_key' in CUDA allocator config."),
            (",expandable_segments:True", "Unrecognized key ',' in CUDA allocator config."),
            ("backend:foo", "Unknown allocator backend, options are native and cudaMallocAsync"),
            ("large_segment_size_mb:5", "CachingAllocator option large_segment_size_mb must be > 10 MB"),
            ("per_process_memory_fraction:2", "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"),
            ("pinned_num_register_threads:256", "should be less than or equal to 128, got 256"),
        ] {
            let told = refused(conf);
            assert!(told.starts_with("PyTorch refuses it") && told.ends_with(message), "{conf}: {told}");
        }
        for conf in [
            "max_split_size_mb",
            "max_split_size_mb:",
            "expandable_segments:True max_split_size_mb:128",
            "roundup_power2_divisions:[256:1",
        ] {
            assert!(refused(conf).starts_with("PyTorch ends the process"), "{conf}: {}", refused(conf));
        }
        assert_eq!(parse_conf("backend:cudaMallocAsync"), Err(ConfError::OtherBackend));
    }
}
