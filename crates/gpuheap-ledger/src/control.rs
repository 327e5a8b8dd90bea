//! What is said over the socket of a process: one line that asks, one line that answers, both text.
//!
//! ```text
//! yield keep=1073741824 hold=0
//! ok state=asleep bytes=0 seconds=0.41 moved=17179869184 kept=536870912 host=17179869184
//! error the process is in the middle of a capture
//! ```
//!
//! One request is answered with more than a line: `export`. Behind its answer, [`Pieces`], come descriptors of memory, as
//! processes of one machine can give them to each other, some at a time; after each lot the other side says with one
//! byte that it has them.
//!
//! A word of a reply that is not known is passed over, so that newer processes may say more; a request is refused if it
//! has one, since it may mean something. Lines have at most [`LONGEST`] bytes.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::layout::State;

/// Bytes of the longest line, its end included.
pub const LONGEST: usize = 4096;

/// The socket of a process, in the folder of its run.
#[must_use]
pub fn socket(run: &Path, process: u32) -> PathBuf {
    run.join(format!("{process}.sock"))
}

/// What a process is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// To say how it is.
    Status,
    /// To move its memory to the host.
    Yield {
        /// Bytes that it may leave on its devices.
        keep: u64,
        /// Whether it stays asleep until it is woken; otherwise it wakes when it next has work for a device.
        hold: bool,
    },
    /// To move its memory back and go on.
    Wake,
    /// To pass memory of an allocation on, to another process of its run. The answer is [`Pieces`].
    Export {
        /// Where the allocation begins, in the process that is asked.
        address: u64,
        /// How long it is, in bytes.
        bytes: u64,
        /// What tells it from others that are or were at that address.
        stamp: u64,
    },
}

/// What goes before the descriptors of an allocation's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pieces {
    /// Bytes of all pieces together.
    pub bytes: u64,
    /// Bytes of each but the last, which may be shorter. Never 0.
    pub each: u64,
}

impl Pieces {
    /// How many descriptors there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.bytes.div_ceil(self.each)
    }
}

impl fmt::Display for Pieces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "pieces bytes={} each={}", self.bytes, self.each)
    }
}

impl FromStr for Pieces {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self, Error> {
        let (word, mut settings) = Settings::split(line)?;
        if word != "pieces" {
            return Err(Error::Word(short(word)));
        }
        let bytes = settings.take("bytes", number)?.ok_or(Error::Missing("bytes"))?;
        let each = settings.take("each", |text| number(text).filter(|each| *each > 0))?;
        Ok(Self { bytes, each: each.ok_or(Error::Missing("each"))? })
    }
}

/// What a process answers.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// It did what it was asked for.
    Done(Done),
    /// It did not, and says why in one line of text.
    Refused(String),
}

/// How a process is once it did what it was asked for.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Done {
    /// What it does now.
    pub state: State,
    /// Bytes that it holds on devices now, of those that count against budgets.
    pub bytes: u64,
    /// Bytes of host memory behind addresses of devices now.
    pub host: u64,
    /// Bytes that this request moved, in either direction.
    pub moved: u64,
    /// Bytes that stayed on devices since they cannot move, or were to be kept.
    pub kept: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// Why a line is no request or no reply.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The line is too long.
    Long,
    /// The first word is none that is known here.
    Word(String),
    /// A setting cannot be understood, is there twice or is not known.
    Setting(String),
    /// A setting is missing.
    Missing(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Long => write!(formatter, "the line is longer than {LONGEST} bytes"),
            Self::Word(word) => write!(formatter, "`{}` is not known here", word.escape_debug()),
            Self::Setting(setting) => write!(formatter, "`{}` is not understood", setting.escape_debug()),
            Self::Missing(name) => write!(formatter, "`{name}` is missing"),
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => formatter.write_str("status"),
            Self::Yield { keep, hold } => write!(formatter, "yield keep={keep} hold={}", u8::from(*hold)),
            Self::Wake => formatter.write_str("wake"),
            Self::Export { address, bytes, stamp } => {
                write!(formatter, "export address={address} bytes={bytes} stamp={stamp}")
            }
        }
    }
}

impl FromStr for Request {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self, Error> {
        let (word, mut settings) = Settings::split(line)?;
        let request = match word {
            "status" => Self::Status,
            "wake" => Self::Wake,
            "export" => Self::Export {
                address: settings.take("address", number)?.ok_or(Error::Missing("address"))?,
                bytes: settings.take("bytes", number)?.ok_or(Error::Missing("bytes"))?,
                stamp: settings.take("stamp", number)?.ok_or(Error::Missing("stamp"))?,
            },
            "yield" => {
                let keep = settings.take("keep", number)?.unwrap_or(0);
                let flag = |text: &str| ["0", "1"].iter().position(|flag| *flag == text);
                Self::Yield { keep, hold: settings.take("hold", flag)? == Some(1) }
            }
            other => return Err(Error::Word(short(other))),
        };
        match settings.0.first() {
            Some((name, value)) => Err(Error::Setting(short(&format!("{name}={value}")))),
            None => Ok(request),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(Done { state, bytes, host, moved, kept, seconds }) => write!(
                formatter,
                "ok state={} bytes={bytes} seconds={seconds} moved={moved} kept={kept} host={host}",
                state.name()
            ),
            // It stays one line of a bounded length, whatever text it is.
            Self::Refused(text) => {
                let mut left = LONGEST - 16;
                formatter.write_str("error ")?;
                for sign in text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }) {
                    let Some(rest) = left.checked_sub(sign.len_utf8()) else { break };
                    left = rest;
                    write!(formatter, "{sign}")?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Reply {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self, Error> {
        let line = line.strip_suffix('\n').unwrap_or(line);
        if line.len() >= LONGEST {
            return Err(Error::Long);
        }
        if let Some(text) = line.strip_prefix("error ") {
            return match text.chars().find(|sign| sign.is_control()) {
                Some(sign) => Err(Error::Setting(sign.to_string())),
                None => Ok(Self::Refused(text.to_owned())),
            };
        }
        let (word, mut settings) = Settings::split(line)?;
        if word != "ok" {
            return Err(Error::Word(short(word)));
        }
        let state = |text: &str| State::ALL.into_iter().find(|state| state.name() == text);
        Ok(Self::Done(Done {
            state: settings.take("state", state)?.ok_or(Error::Missing("state"))?,
            bytes: settings.take("bytes", number)?.unwrap_or(0),
            host: settings.take("host", number)?.unwrap_or(0),
            moved: settings.take("moved", number)?.unwrap_or(0),
            kept: settings.take("kept", number)?.unwrap_or(0),
            seconds: settings.take("seconds", seconds)?.unwrap_or(0.0),
        }))
    }
}

/// What follows the first word of a line.
struct Settings<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Settings<'a> {
    fn split(line: &'a str) -> Result<(&'a str, Self), Error> {
        let line = line.strip_suffix('\n').unwrap_or(line);
        if line.len() >= LONGEST {
            return Err(Error::Long);
        }
        let mut words = line.split(' ');
        let first = words.next().unwrap_or_default();
        let mut settings: Vec<(&str, &str)> = Vec::new();
        for word in words {
            let refused = || Error::Setting(short(word));
            let (name, value) = word.split_once('=').ok_or_else(refused)?;
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            let is_value = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_name || !is_value || settings.iter().any(|(other, _)| *other == name) {
                return Err(refused());
            }
            settings.push((name, value));
        }
        Ok((first, Self(settings)))
    }

    /// Takes a setting out, if it is there.
    fn take<T>(&mut self, name: &'static str, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Error> {
        let Some(place) = self.0.iter().position(|(other, _)| *other == name) else { return Ok(None) };
        let (_, value) = self.0.remove(place);
        read(value).map(Some).ok_or_else(|| Error::Setting(short(&format!("{name}={value}"))))
    }
}

fn number(text: &str) -> Option<u64> {
    // `parse` takes a sign, which nobody writes here.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn seconds(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_plain.then(|| text.parse().ok()).flatten().filter(|seconds: &f64| seconds.is_finite())
}

/// As much of a text as a message quotes.
fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Sends a request or a reply as a line.
pub fn send(stream: &mut impl Write, line: &impl fmt::Display) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())?;
    stream.flush()
}

/// Receives a line, without its end. One that is cut short, too long or no text is an error.
pub fn receive(stream: &mut impl Read) -> io::Result<String> {
    let bad = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if line.len() >= LONGEST {
            return Err(bad("the line has no end"));
        }
    }
    String::from_utf8(line).map_err(|_| bad("the line is no text"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_what_they_look_like() {
        assert_eq!("status".parse(), Ok(Request::Status));
        assert_eq!("wake\n".parse(), Ok(Request::Wake));
        assert_eq!("yield".parse(), Ok(Request::Yield { keep: 0, hold: false }));
        assert_eq!("yield hold=1 keep=5".parse(), Ok(Request::Yield { keep: 5, hold: true }));
        assert_eq!(Request::Yield { keep: 5, hold: true }.to_string(), "yield keep=5 hold=1");
        let export = Request::Export { address: 7, bytes: 8, stamp: 9 };
        assert_eq!(export.to_string(), "export address=7 bytes=8 stamp=9");
        assert_eq!("export stamp=9 bytes=8 address=7".parse(), Ok(export));
        let pieces = Pieces { bytes: 70, each: 32 };
        assert_eq!((pieces.to_string().as_str(), pieces.count()), ("pieces bytes=70 each=32", 3));
        assert_eq!("pieces each=32 bytes=70 later=1".parse(), Ok(pieces));
        let done = Done { state: State::Asleep, bytes: 1, host: 2, moved: 3, kept: 4, seconds: 0.5 };
        let line = "ok state=asleep bytes=1 seconds=0.5 moved=3 kept=4 host=2";
        assert_eq!(Reply::Done(done).to_string(), line);
        assert_eq!(line.parse(), Ok(Reply::Done(done)));
        assert_eq!(format!("{line} later=word").parse(), Ok(Reply::Done(done)), "newer processes may say more");
        assert_eq!("error no such thing = a=b".parse(), Ok(Reply::Refused("no such thing = a=b".to_owned())));
        assert_eq!(Reply::Refused("two\nlines".to_owned()).to_string(), "error two lines");
    }

    #[test]
    fn hostile_lines_are_refused() {
        for line in [
            "",
            " ",
            "sleep",
            "Status",
            "status ",
            " status",
            "status now",
            "status keep=1",
            "wake hold=1",
            "yield keep",
            "yield keep=",
            "yield =1",
            "yield keep=-1",
            "yield keep=+1",
            "yield keep=1GiB",
            "yield keep=0x10",
            "yield keep=18446744073709551616",
            "yield hold=2",
            "yield hold=true",
            "yield keep=1 keep=1",
            "yield keep=1  hold=0",
            "yield keep=1\thold=0",
            "yield keep=1\r",
            "yield keep=1 force=1",
            "yield\nwake",
            "yield keep=１",
            "export",
            "export address=1 bytes=2",
            "export address=1 bytes=2 stamp=3 pieces=4",
            "export address=0x1 bytes=2 stamp=3",
        ] {
            assert!(line.parse::<Request>().is_err(), "{line:?}");
        }
        for line in [
            "ok",
            "ok state=dead",
            "ok bytes=1",
            "ok state=asleep state=asleep",
            "ok state=asleep seconds=nan",
            "ok state=asleep seconds=-1",
            "ok state=asleep seconds=inf",
            "ok state=asleep seconds=1e999",
            "ok state=asleep bytes=x",
            "ok state=asleep Bytes=1",
            "error",
            "error\u{7}",
            "error a\u{1b}[2J",
            "okay state=asleep",
        ] {
            assert!(line.parse::<Reply>().is_err(), "{line:?}");
        }
        for line in ["pieces", "pieces bytes=1", "pieces bytes=1 each=0", "pieces bytes=-1 each=1", "error no"] {
            assert!(line.parse::<Pieces>().is_err(), "{line:?}");
        }
        let long = format!("yield keep={}", "1".repeat(LONGEST));
        assert_eq!(long.parse::<Request>(), Err(Error::Long));
        assert_eq!(format!("error {long}").parse::<Reply>(), Err(Error::Long));
        let error = "yield keep=\u{1b}[2J".parse::<Request>().unwrap_err();
        assert_eq!(error.to_string(), "`keep=\\u{1b}[2J` is not understood");
    }

    #[test]
    fn a_line_is_received_whole_or_not_at_all() {
        let received = |bytes: &[u8]| receive(&mut &*bytes);
        assert_eq!(received(b"wake\nstatus\n").unwrap(), "wake");
        assert_eq!(received(b"wake").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(received(&vec![b'x'; 1 << 20]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(received(b"\xff\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut sent = Vec::new();
        send(&mut sent, &Reply::Refused("x".repeat(LONGEST * 2))).unwrap();
        assert!(sent.len() < LONGEST);
        assert!(receive(&mut &*sent).unwrap().parse::<Reply>().is_ok());
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let done =
            (0..4_u64, any::<[u64; 4]>(), 0.0..1e12_f64).prop_map(|(state, [bytes, host, moved, kept], seconds)| {
                Reply::Done(Done { state: State::from_number(state), bytes, host, moved, kept, seconds })
            });
        prop_oneof![done, "[^\\p{Cc}]{0,100}".prop_map(Reply::Refused)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn requests_come_back(keep: u64, hold: bool, [address, bytes, stamp]: [u64; 3]) {
            let export = Request::Export { address, bytes, stamp };
            for request in [Request::Status, Request::Wake, Request::Yield { keep, hold }, export] {
                prop_assert_eq!(request.to_string().parse(), Ok(request));
            }
        }

        #[test]
        fn replies_come_back(reply in reply()) {
            prop_assert_eq!(reply.to_string().parse(), Ok(reply));
        }

        #[test]
        fn no_line_is_too_much(line in any::<String>()) {
            let _ = line.parse::<Request>().map(|request| request.to_string().parse::<Request>().unwrap());
            let _ = line.parse::<Pieces>().map(|pieces| pieces.count());
            let _ = line.parse::<Reply>().map(|reply| reply.to_string().parse::<Reply>().unwrap());
        }

        #[test]
        fn settings_in_any_form_are_taken_or_named(
            word in "status|yield|wake|export|ok|error",
            settings in prop::collection::vec(("[a-z=]{0,5}|keep|hold|state|bytes", "[0-9a-z.=-]{0,8}"), 0..5),
        ) {
            let settings: Vec<String> = settings.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            let line = format!("{word}{}", settings.concat());
            if let Err(error) = line.parse::<Request>() {
                prop_assert!(error.to_string().len() < 300);
            }
            let _ = line.parse::<Reply>();
        }
    }
}
