//! A table of allocations as [Parquet](https://github.com/apache/parquet-format): the columns of CSV with their types,
//! texts through dictionaries, compressed with Snappy. Row groups are written one by one, so that memory is bounded.

use std::io::{self, Write};
use std::sync::Arc;

use foldhash::HashMap;
use gpuheap_explain::Analysis;
use parquet::basic::{Compression, ConvertedType, Encoding, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type};

use crate::names::Place;
use crate::rows::{COLUMNS, Row, Rows, kind_name};
use crate::{Error, Options};

/// Rows of a row group.
const GROUP_ROWS: usize = 128 * 1024;
/// Bytes of the distinct texts of a row group, after which it ends early.
const GROUP_TEXT_BYTES: usize = 32 * 1024 * 1024;

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Whole numbers below 2³².
    Small,
    /// Whole numbers below 2⁶⁴.
    Large,
    /// Text that repeats.
    Text,
}

/// The kinds of [`COLUMNS`], and which may be without a value.
const KINDS: [(Kind, Repetition); COLUMNS.len()] = {
    use Kind::{Large, Small, Text};
    const REQUIRED: Repetition = Repetition::REQUIRED;
    const OPTIONAL: Repetition = Repetition::OPTIONAL;
    [
        (Small, REQUIRED),
        (Small, REQUIRED),
        (Large, REQUIRED),
        (Large, REQUIRED),
        (Large, REQUIRED),
        (Text, REQUIRED),
        (Text, REQUIRED),
        (Large, REQUIRED),
        (Text, REQUIRED),
        (Text, REQUIRED),
        (Small, OPTIONAL),
        (Small, OPTIONAL),
        (Small, OPTIONAL),
        (Large, OPTIONAL),
        (Large, OPTIONAL),
        (Text, OPTIONAL),
        (Small, OPTIONAL),
        (Text, OPTIONAL),
        (Text, OPTIONAL),
    ]
};

pub(crate) fn write(
    analysis: &Analysis,
    options: &Options,
    at: Option<u32>,
    out: &mut (dyn Write + Send),
) -> Result<(), Error> {
    table(analysis, options, at, out).map_err(|error| match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(error) => Error::Write(*error),
            Err(cause) => Error::Write(io::Error::other(cause)),
        },
        error => Error::Write(io::Error::other(error)),
    })
}

fn table(
    analysis: &Analysis,
    options: &Options,
    at: Option<u32>,
    out: &mut (dyn Write + Send),
) -> Result<(), ParquetError> {
    let mut writer = SerializedFileWriter::new(out, Arc::new(schema()?), Arc::new(properties(analysis, options)))?;
    let mut rows = Rows::new(analysis);
    let mut group = Group::new();
    let mut stack = String::new();
    for allocation in Rows::allocations(analysis, at) {
        let place = group.add(&rows.row(allocation));
        group.add_stack(place, |place| {
            rows.fold(&mut stack, place);
            stack.clone()
        });
        if group.rows == GROUP_ROWS || group.text_bytes > GROUP_TEXT_BYTES {
            std::mem::replace(&mut group, Group::new()).write(writer.next_row_group()?)?;
        }
    }
    if group.rows > 0 {
        group.write(writer.next_row_group()?)?;
    }
    writer.close()?;
    Ok(())
}

fn schema() -> Result<Type, ParquetError> {
    let column = |((name, _), (kind, repetition)): (&(&str, &str), (Kind, Repetition))| {
        let (physical, logical, converted) = match kind {
            Kind::Small => {
                let logical = LogicalType::integer(32, false);
                (Physical::INT32, logical, ConvertedType::UINT_32)
            }
            Kind::Large => {
                let logical = LogicalType::integer(64, false);
                (Physical::INT64, logical, ConvertedType::UINT_64)
            }
            Kind::Text => (Physical::BYTE_ARRAY, LogicalType::String, ConvertedType::UTF8),
        };
        let builder = Type::primitive_type_builder(name, physical).with_repetition(repetition);
        builder.with_logical_type(Some(logical)).with_converted_type(converted).build().map(Arc::new)
    };
    let columns = COLUMNS.iter().zip(KINDS).map(column).collect::<Result<_, _>>()?;
    Type::group_type_builder("allocation").with_fields(columns).build()
}

fn properties(analysis: &Analysis, options: &Options) -> WriterProperties {
    let source = &analysis.report().source;
    let metadata = [("gpuheap.generator", options.generator.clone()), ("gpuheap.device", source.device.to_string())];
    let meanings = COLUMNS.iter().map(|(name, meaning)| (format!("gpuheap.column.{name}"), (*meaning).to_owned()));
    let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).chain(meanings);
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(options.generator.clone())
        .set_dictionary_page_size_limit(2 * GROUP_TEXT_BYTES)
        .set_key_value_metadata(Some(metadata.map(|(key, value)| KeyValue::new(key, value)).collect()));
    // These hardly repeat but rise or stay close to the value before: differences are short.
    for name in ["id", "address", "born_event", "freed_event", "reusable_event", "born_us", "freed_us"] {
        let column = || ColumnPath::from(name);
        builder = builder
            .set_column_dictionary_enabled(column(), false)
            .set_column_encoding(column(), Encoding::DELTA_BINARY_PACKED);
    }
    builder.build()
}

/// The rows of a row group, by column.
struct Group {
    rows: usize,
    columns: Vec<Column>,
    texts: HashMap<String, ByteArray>,
    stacks: HashMap<Place, ByteArray>,
    text_bytes: usize,
}

/// The values of a column, and for each row whether it has one.
struct Column {
    values: Values,
    levels: Vec<i16>,
}

enum Values {
    Small(Vec<i32>),
    Large(Vec<i64>),
    Text(Vec<ByteArray>),
}

impl Group {
    fn new() -> Self {
        let columns = KINDS.iter().map(|(kind, _)| Column {
            values: match kind {
                Kind::Small => Values::Small(Vec::new()),
                Kind::Large => Values::Large(Vec::new()),
                Kind::Text => Values::Text(Vec::new()),
            },
            levels: Vec::new(),
        });
        let columns = columns.collect();
        Self { rows: 0, columns, texts: HashMap::default(), stacks: HashMap::default(), text_bytes: 0 }
    }

    /// Adds everything but the stack, whose place is returned.
    fn add(&mut self, row: &Row<'_>) -> Option<Place> {
        let allocation = &row.allocation;
        self.columns[0].push_number(Some(u64::from(allocation.id)));
        self.columns[1].push_number(Some(u64::from(row.device)));
        self.columns[2].push_number(Some(allocation.address));
        self.columns[3].push_number(Some(allocation.size.get()));
        self.columns[4].push_number(Some(allocation.requested.get()));
        self.text(5, Some(allocation.class.name()));
        self.text(6, Some(allocation.rule));
        self.columns[7].push_number(Some(allocation.stream));
        self.text(8, Some(row.pool));
        self.text(9, Some(kind_name(allocation.kind)));
        self.columns[10].push_number(allocation.born.map(u64::from));
        self.columns[11].push_number(allocation.freed.map(u64::from));
        self.columns[12].push_number(allocation.completed.map(u64::from));
        self.columns[13].push_number(row.born_us);
        self.columns[14].push_number(row.freed_us);
        self.text(15, row.file);
        self.columns[16].push_number(row.line.map(u64::from));
        self.text(17, row.function);
        self.rows += 1;
        row.place
    }

    fn add_stack(&mut self, place: Option<Place>, fold: impl FnOnce(Place) -> String) {
        let text = place.map(|place| {
            self.stacks
                .entry(place)
                .or_insert_with(|| {
                    let text = fold(place);
                    self.text_bytes += text.len();
                    text.into_bytes().into()
                })
                .clone()
        });
        self.columns[18].push_text(text);
    }

    fn text(&mut self, column: usize, text: Option<&str>) {
        let text = text.map(|text| match self.texts.get(text) {
            Some(known) => known.clone(),
            None => {
                self.text_bytes += text.len();
                let shared = ByteArray::from(text.as_bytes().to_vec());
                self.texts.insert(text.to_owned(), shared.clone());
                shared
            }
        });
        self.columns[column].push_text(text);
    }

    fn write<W: Write + Send>(self, mut group: SerializedRowGroupWriter<'_, W>) -> Result<(), ParquetError> {
        for (column, (_, repetition)) in self.columns.iter().zip(KINDS) {
            let levels = (repetition == Repetition::OPTIONAL).then_some(column.levels.as_slice());
            match &column.values {
                Values::Small(values) => write_column::<Int32Type, W>(&mut group, values, levels)?,
                Values::Large(values) => write_column::<Int64Type, W>(&mut group, values, levels)?,
                Values::Text(values) => write_column::<ByteArrayType, W>(&mut group, values, levels)?,
            }
        }
        group.close()?;
        Ok(())
    }
}

impl Column {
    fn push_number(&mut self, value: Option<u64>) {
        self.levels.push(i16::from(value.is_some()));
        let Some(value) = value else { return };
        match &mut self.values {
            // The type says that the numbers have no sign.
            Values::Small(values) => values.push(u32::try_from(value).unwrap_or(u32::MAX).cast_signed()),
            Values::Large(values) => values.push(value.cast_signed()),
            Values::Text(_) => {}
        }
    }

    fn push_text(&mut self, text: Option<ByteArray>) {
        self.levels.push(i16::from(text.is_some()));
        if let (Values::Text(values), Some(text)) = (&mut self.values, text) {
            values.push(text);
        }
    }
}

fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else { return Ok(()) };
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}
