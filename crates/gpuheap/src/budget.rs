//! What a recording must keep to: from the command line and from a file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use gpuheap_explain::Budget;
use gpuheap_record::Bytes;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::cli::Check;
use crate::errors::Error;

/// Bytes of the largest file that is read.
const LARGEST: u64 = 64 << 10;
/// Characters of what a message quotes.
const MOST_QUOTED: usize = 400;

/// What is wrong with a budget file.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub(crate) struct Cause {
    line: usize,
    message: String,
}

/// The budget of the command line; what it leaves open is taken from the file.
pub(crate) fn budget(arguments: &Check) -> Result<Budget, Error> {
    let file = arguments.budget_file.as_deref().map(read).transpose()?.unwrap_or_default();
    let budget = Budget {
        max_peak: arguments.max_peak.or(file.max_peak.map(|amount| amount.0)),
        max_reserved: arguments.max_reserved.or(file.max_reserved.map(|amount| amount.0)),
        max_waste: arguments.max_waste.or(file.max_waste.map(|percent| percent.0)),
        no_leaks: arguments.no_leaks || file.no_leaks,
    };
    if budget == Budget::default() {
        return Err(Error::EmptyBudget { file: arguments.budget_file.clone() });
    }
    Ok(budget)
}

#[derive(Deserialize, Default, Debug)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct BudgetFile {
    max_peak: Option<Amount>,
    max_reserved: Option<Amount>,
    max_waste: Option<Percent>,
    no_leaks: bool,
}

fn read(path: &Path) -> Result<BudgetFile, Error> {
    let failed = |cause: Box<dyn std::error::Error + Send + Sync>| Error::Budget { path: PathBuf::from(path), cause };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| failed(error.into()))?;
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(|error| failed(error.into()))?;
    if text.len() as u64 > LARGEST {
        return Err(failed("it is larger than 64 KiB, which no budget is".into()));
    }
    toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let message: String = error.message().trim().replace('\n', ", ").chars().take(MOST_QUOTED).collect();
        failed(Cause { line, message }.into())
    })
}

/// An amount of memory: a text as on the command line, or a number of bytes.
#[derive(Debug)]
struct Amount(Bytes);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Amount;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an amount of memory such as \"24GiB\", or a number of bytes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                crate::cli::limit(text).map(Amount).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Amount, E> {
                match u64::try_from(bytes) {
                    Ok(bytes) if bytes > 0 => {
                        let bytes = Bytes::new(bytes);
                        crate::cli::too_few(bytes).map_or(Ok(Amount(bytes)), |why| Err(E::custom(why)))
                    }
                    _ => Err(E::invalid_value(de::Unexpected::Signed(bytes), &self)),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A part in percent.
#[derive(Debug)]
struct Percent(f64);

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let percent = f64::deserialize(deserializer)?;
        if (0.0..=100.0).contains(&percent) {
            Ok(Self(percent))
        } else {
            Err(de::Error::invalid_value(de::Unexpected::Float(percent), &"a number from 0 to 100"))
        }
    }
}
