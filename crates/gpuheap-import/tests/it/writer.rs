//! A small pickler: writes trees of values in every protocol, the way the various picklers do.

use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;

/// A Python value.
#[derive(Clone, Debug)]
pub(crate) enum Py {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    List(Vec<Py>),
    Tuple(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// One object that several places refer to.
    Shared(Rc<Py>),
}

impl From<&str> for Py {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<i128> for Py {
    fn from(number: i128) -> Self {
        Self::Int(number)
    }
}

impl From<bool> for Py {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<Vec<Py>> for Py {
    fn from(items: Vec<Py>) -> Self {
        Self::List(items)
    }
}

/// A dict with these keys.
pub(crate) fn dict<const N: usize>(pairs: [(&str, Py); N]) -> Py {
    Py::Dict(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

impl Py {
    /// The dict with `key` set, added at the end if it is new.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Py>) -> Self {
        if let Py::Dict(pairs) = &mut self {
            let value = value.into();
            match pairs.iter_mut().find(|(known, _)| matches!(known, Py::Str(text) if text == key)) {
                Some((_, place)) => *place = value,
                None => pairs.push((key.into(), value)),
            }
        }
        self
    }

    /// The dict without `key`.
    pub(crate) fn without(mut self, key: &str) -> Self {
        if let Py::Dict(pairs) = &mut self {
            pairs.retain(|(known, _)| !matches!(known, Py::Str(text) if text == key));
        }
        self
    }

    /// The same as JSON.
    pub(crate) fn json(&self) -> String {
        let list = |items: &[Py]| format!("[{}]", items.iter().map(Py::json).collect::<Vec<_>>().join(", "));
        match self {
            Py::None => "null".to_owned(),
            Py::Bool(value) => value.to_string(),
            Py::Int(value) => value.to_string(),
            Py::Float(value) => format!("{value:?}"),
            Py::Str(text) => serde_json::to_string(text).unwrap(),
            Py::List(items) | Py::Tuple(items) => list(items),
            Py::Dict(pairs) => {
                let pairs: Vec<_> =
                    pairs.iter().map(|(key, value)| format!("{}: {}", key.json(), value.json())).collect();
                format!("{{{}}}", pairs.join(", "))
            }
            Py::Shared(value) => value.json(),
        }
    }
}

/// How to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) protocol: u8,
    /// Whether texts, lists and dicts are memoised, as CPython does. Shared objects always are.
    pub(crate) memo: bool,
    /// How many items go into one APPENDS or SETITEMS; 0: one by one.
    pub(crate) batch: usize,
}

/// CPython up to 3.13.
pub(crate) const CPYTHON: Style = Style { protocol: 4, memo: true, batch: 1000 };

/// Every way of writing that a reader must understand.
pub(crate) fn styles() -> Vec<Style> {
    let mut styles = Vec::new();
    for protocol in 0..=5 {
        for memo in [true, false] {
            for batch in [1000, 1, 2, 3, usize::MAX] {
                styles.push(Style { protocol, memo, batch: if protocol == 0 { 0 } else { batch } });
            }
        }
    }
    styles
}

/// The pickle of `value`.
pub(crate) fn pickle(value: &Py, style: Style) -> Vec<u8> {
    let mut writer = Writer { out: Vec::new(), style, stored: 0, seen: HashMap::new(), texts: HashMap::new() };
    if style.protocol >= 2 {
        writer.out.extend([0x80, style.protocol]);
    }
    if style.protocol >= 4 {
        // The length of the frame is not looked at.
        writer.out.push(0x95);
        writer.out.extend(0_u64.to_le_bytes());
    }
    writer.value(value);
    writer.out.push(b'.');
    writer.out
}

struct Writer {
    out: Vec<u8>,
    style: Style,
    stored: u32,
    seen: HashMap<*const Py, u32>,
    texts: HashMap<String, u32>,
}

impl Writer {
    fn value(&mut self, value: &Py) {
        match value {
            Py::Shared(shared) => match self.seen.get(&Rc::as_ptr(shared)) {
                Some(&index) => self.get(index),
                None => {
                    let index = self.object(shared, true);
                    self.seen.insert(Rc::as_ptr(shared), index.unwrap());
                }
            },
            value => {
                self.object(value, self.style.memo);
            }
        }
    }

    fn object(&mut self, value: &Py, memo: bool) -> Option<u32> {
        let protocol = self.style.protocol;
        match value {
            Py::None => self.out.push(b'N'),
            Py::Bool(value) if protocol < 2 => self.out.extend(if *value { b"I01\n" } else { b"I00\n" }),
            Py::Bool(value) => self.out.push(if *value { 0x88 } else { 0x89 }),
            Py::Int(value) => self.int(*value),
            Py::Float(value) if protocol == 0 => self.out.extend(format!("F{value:?}\n").bytes()),
            Py::Float(value) => {
                self.out.push(b'G');
                self.out.extend(value.to_be_bytes());
            }
            Py::Str(text) => {
                if let Some(&index) = self.texts.get(text) {
                    self.get(index);
                    return None;
                }
                self.text(text);
                if memo {
                    let index = self.put();
                    self.texts.insert(text.clone(), index);
                    return Some(index);
                }
            }
            Py::Tuple(items) => {
                if protocol < 2 || items.len() > 3 {
                    self.out.push(b'(');
                }
                for item in items {
                    self.value(item);
                }
                let short = [b')', 0x85, 0x86, 0x87];
                self.out.push(if protocol < 2 || items.len() > 3 { b't' } else { short[items.len()] });
                return memo.then(|| self.put());
            }
            Py::List(items) => {
                self.out.extend(if protocol == 0 { b"(l".as_slice() } else { b"]" });
                let index = memo.then(|| self.put());
                self.batches(items, b'a', b'e', Self::value);
                return index;
            }
            Py::Dict(pairs) => {
                self.out.extend(if protocol == 0 { b"(d".as_slice() } else { b"}" });
                let index = memo.then(|| self.put());
                self.batches(pairs, b's', b'u', |writer, (key, value)| {
                    writer.value(key);
                    writer.value(value);
                });
                return index;
            }
            Py::Shared(_) => self.value(value),
        }
        None
    }

    fn batches<T>(&mut self, items: &[T], one: u8, many: u8, mut write: impl FnMut(&mut Self, &T)) {
        for batch in items.chunks(self.style.batch.max(1)) {
            if let [item] = batch {
                write(self, item);
                self.out.push(one);
            } else {
                self.out.push(b'(');
                for item in batch {
                    write(self, item);
                }
                self.out.push(many);
            }
        }
    }

    fn text(&mut self, text: &str) {
        let length = u32::try_from(text.len()).unwrap();
        match self.style.protocol {
            0 => {
                self.out.push(b'V');
                for character in text.chars() {
                    match u8::try_from(character) {
                        Ok(byte) if byte != b'\n' && byte != b'\\' => self.out.push(byte),
                        _ => self.out.extend(format!("\\U{:08x}", u32::from(character)).bytes()),
                    }
                }
                self.out.push(b'\n');
            }
            4.. if length < 256 => self.out.extend([0x8c, length.to_le_bytes()[0]]),
            _ => {
                self.out.push(b'X');
                self.out.extend(length.to_le_bytes());
            }
        }
        if self.style.protocol > 0 {
            self.out.extend(text.as_bytes());
        }
    }

    fn int(&mut self, value: i128) {
        if self.style.protocol == 0 {
            let mut line = String::new();
            write!(
                line,
                "{}",
                if i32::try_from(value).is_ok() { format!("I{value}\n") } else { format!("L{value}L\n") }
            )
            .unwrap();
            self.out.extend(line.bytes());
        } else if let Ok(byte) = u8::try_from(value) {
            self.out.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(word) = i32::try_from(value) {
            self.out.push(b'J');
            self.out.extend(word.to_le_bytes());
        } else if self.style.protocol == 1 {
            self.out.extend(format!("L{value}L\n").bytes());
        } else {
            let bytes = value.to_le_bytes();
            let mut length = bytes.len();
            let sign = if value < 0 { 0xff } else { 0 };
            while length > 1 && bytes[length - 1] == sign && (bytes[length - 2] >= 0x80) == (value < 0) {
                length -= 1;
            }
            self.out.extend([0x8a, u8::try_from(length).unwrap()]);
            self.out.extend(&bytes[..length]);
        }
    }

    fn put(&mut self) -> u32 {
        let index = self.stored;
        self.stored += 1;
        match (self.style.protocol, u8::try_from(index)) {
            (0, _) => self.out.extend(format!("p{index}\n").bytes()),
            (4.., _) => self.out.push(0x94),
            (_, Ok(index)) => self.out.extend([b'q', index]),
            _ => {
                self.out.push(b'r');
                self.out.extend(index.to_le_bytes());
            }
        }
        index
    }

    fn get(&mut self, index: u32) {
        match (self.style.protocol, u8::try_from(index)) {
            (0, _) => self.out.extend(format!("g{index}\n").bytes()),
            (_, Ok(index)) => self.out.extend([b'h', index]),
            _ => {
                self.out.push(b'j');
                self.out.extend(index.to_le_bytes());
            }
        }
    }
}
