//! Descriptors of files over a socket between processes, some at a time, and lines without the signal that a socket
//! sends whose other end is gone: the signals of the process are the program's.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// The most that go at once. The system takes 253; those under way count as open files of who sends them.
pub(super) const MOST: usize = 100;

/// Room for a control message with [`MOST`] descriptors, aligned as one has to be.
struct Room([u64; 64]);

impl Room {
    fn new() -> Self {
        const { assert!(size_of::<Self>() >= size_of::<libc::cmsghdr>() + MOST * size_of::<RawFd>()) };
        Self([0; 64])
    }
}

/// Sends at most [`MOST`] descriptors, with a byte that they come with.
pub(super) fn send(stream: &UnixStream, descriptors: &[OwnedFd]) -> io::Result<()> {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let bytes = u32::try_from(size_of_val(numbers.as_slice())).map_err(|_| io::ErrorKind::InvalidInput)?;
    if numbers.is_empty() || numbers.len() > MOST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (mut room, mut byte) = (Room::new(), [0_u8]);
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut message = message(&mut part, &mut room);
    // SAFETY: takes a number only.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as _;
    // SAFETY: the message has its room, which is large enough for a header.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: takes a number only.
    let length = unsafe { libc::CMSG_LEN(bytes) };
    let told = libc::cmsghdr { cmsg_len: length as _, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
    // SAFETY: it lies at the beginning of the room, which is aligned for it.
    unsafe { header.write(told) };
    // SAFETY: behind the header.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: the room has space for as many, as was checked above; both are arrays of numbers of that size.
    unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), data, size_of_val(numbers.as_slice())) };
    loop {
        // SAFETY: all that the message points to outlives the call.
        let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        match sent {
            1.. => return Ok(()),
            0 => return Err(io::ErrorKind::WriteZero.into()),
            _ => interrupted()?,
        }
    }
}

/// Receives what [`send`] sent. Something else is an error.
pub(super) fn receive(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let (mut room, mut byte) = (Room::new(), [0_u8]);
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut message = message(&mut part, &mut room);
    loop {
        // SAFETY: all that the message points to outlives the call.
        let received = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match received {
            1.. => break,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => interrupted()?,
        }
    }
    let mut descriptors = Vec::new();
    // SAFETY: the message as the system left it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: a header within the room, written by the system.
        let told = unsafe { header.read() };
        if (told.cmsg_level, told.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: takes a number only.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (told.cmsg_len as usize).saturating_sub(empty) / size_of::<RawFd>();
            // SAFETY: behind the header.
            let data = unsafe { libc::CMSG_DATA(header) };
            for number in 0..count {
                let mut descriptor: RawFd = -1;
                // SAFETY: one of those that the header tells of.
                let place = unsafe { data.add(number * size_of::<RawFd>()) };
                // SAFETY: as above; the number has room for its own bytes.
                unsafe { std::ptr::copy_nonoverlapping(place, (&raw mut descriptor).cast(), size_of::<RawFd>()) };
                // SAFETY: the system made it for this process, and nobody else has it.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
        // SAFETY: the message and a header of it.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    // Where the process may open no more files, the system leaves some out.
    let whole = message.msg_flags & libc::MSG_CTRUNC == 0 && !descriptors.is_empty();
    if whole { Ok(descriptors) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn message(part: &mut libc::iovec, room: &mut Room) -> libc::msghdr {
    // SAFETY: a structure of numbers and pointers, all of which may be zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = room.0.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&room.0) as _;
    message
}

/// Whether the last call was only interrupted and may be made again.
fn interrupted() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

/// Writes to a socket without a signal if its other end is gone.
pub(super) struct Quiet<'a>(pub(super) &'a UnixStream);

impl Write for Quiet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (start, flags) = (bytes.as_ptr().cast(), libc::MSG_NOSIGNAL);
        // SAFETY: as many bytes as are told, which outlive the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), start, bytes.len(), flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek};

    use super::*;

    fn file(text: &str) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        file.into()
    }

    #[test]
    fn they_arrive_in_order_and_in_lots() {
        let (one, other) = UnixStream::pair().unwrap();
        let first: Vec<OwnedFd> = (0..MOST).map(|number| file(&number.to_string())).collect();
        Quiet(&one).write_all(b"x").unwrap();
        send(&one, &first).unwrap();
        send(&one, &[file("last")]).unwrap();
        let mut byte = [0];
        (&other).read_exact(&mut byte).unwrap();
        for expected in [MOST, 1] {
            let received = receive(&other).unwrap();
            assert_eq!(received.len(), expected);
            for (number, descriptor) in received.into_iter().enumerate() {
                let text = io::read_to_string(File::from(descriptor)).unwrap();
                assert_eq!(text, if expected == 1 { "last".to_owned() } else { number.to_string() });
            }
        }
    }

    #[test]
    fn without_any_and_from_nobody_is_an_error() {
        let (one, other) = UnixStream::pair().unwrap();
        assert!(send(&one, &[]).is_err());
        assert!(send(&one, &(0..=MOST).map(|_| file("")).collect::<Vec<_>>()).is_err());
        Quiet(&one).write_all(b"x").unwrap();
        assert_eq!(receive(&other).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(other);
        assert!(send(&one, &[file("")]).is_err());
        assert!(Quiet(&one).write_all(b"x").is_err());
        assert_eq!(receive(&one).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
