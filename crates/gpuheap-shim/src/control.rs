//! A thread of the process that listens to `gpuheap yield`, `wake` and `ps` and to processes of the run that open memory of
//! this one, at a socket in the folder of the run that only its user can reach, and that wakes the process up when a
//! thread of the program waits at the gate.

use std::cell::Cell;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use gpuheap_ledger::State as Phase;
use gpuheap_ledger::control::{self, Reply, Request};

use crate::moving::{self, Moving};
use crate::state::{self, State};
use crate::{ipc, placement, sleep, threads};

/// How long somebody may take to say what they want: nobody else is heard meanwhile, and nothing wakes up.
const SAID: Duration = Duration::from_secs(1);
/// How long somebody may take to listen, and how long a process that is woken waits for room.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon a process that waits for room looks again.
const AGAIN: Duration = Duration::from_millis(50);

/// How long memory of a sleep is kept for the next.
const KEPT: Duration = Duration::from_secs(60);

/// The socket that is listened to; −1 if none is.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

/// In the child of a fork: nobody listens there, so that nobody may wait for an answer.
pub(crate) fn after_fork() {
    let socket = SOCKET.swap(-1, Ordering::SeqCst);
    if socket >= 0 {
        // SAFETY: the child's own copy of it, which nothing in it uses.
        unsafe { libc::close(socket) };
    }
}

/// Begins to listen, once a process. What does not work leaves a program that cannot be put to sleep, no more.
pub(crate) fn start() {
    let state = state::get();
    let (Some(folder), Some(moving)) = (moving::run_folder(), moving::get()) else {
        return;
    };
    if state.listens.swap(true, Ordering::SeqCst) {
        return;
    }
    let Some((listener, bell)) = open(&folder) else { return };
    SOCKET.store(listener.as_raw_fd(), Ordering::SeqCst);
    let work = move || Control { moving, state, listener, bell, slept: Cell::new(None) }.listen();
    if threads::begin("gpuheap", work).is_ok() {
        state.gate.set_bell(bell);
    }
}

fn open(folder: &Path) -> Option<(UnixListener, i32)> {
    let path = control::socket(folder, std::process::id());
    // From before an exec, or of another process of that number.
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).ok()?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).ok()?;
    listener.set_nonblocking(true).ok()?;
    // SAFETY: takes numbers only.
    let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    (bell >= 0).then_some((listener, bell))
}

struct Control {
    moving: &'static Moving,
    state: &'static State,
    listener: UnixListener,
    bell: i32,
    /// When it last went to sleep or woke up.
    slept: Cell<Option<Instant>>,
}

/// A stream that is read until a moment and no longer, however slowly the other side writes.
struct Impatient<'a> {
    stream: &'a mut UnixStream,
    end: Instant,
}

impl Read for Impatient<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

impl Control {
    fn listen(&self) {
        loop {
            let phase = sleep::phase(self.state);
            let asleep = phase != Phase::Running;
            let wanted = asleep && phase != Phase::Held && self.state.gate.is_wanted();
            if wanted && sleep::wake_up(self.moving, self.state).is_ok() {
                self.slept.set(Some(Instant::now()));
                continue;
            }
            // Woken by a request, by whoever comes to the gate, and now and then while it waits for room.
            let pause = placement::next_look().unwrap_or(Duration::from_secs(3600));
            let keeps = self.moving.locked.kept() > 0;
            let pause = if keeps { pause.min(KEPT) } else { pause };
            let pause = self.moving.ahead.next_look().map_or(pause, |look| pause.min(look));
            if !self.wait(if wanted { AGAIN } else { pause }) {
                // The program closed what is not its own: what has these numbers now is not for this thread.
                self.state.gate.set_bell(-1);
                return;
            }
            if keeps && !asleep && self.slept.get().is_none_or(|last| last.elapsed() > KEPT) {
                self.moving.locked.trim(0);
            }
            self.moving.ahead.tidy(self.moving);
            placement::overdue(self.state);
            while let Ok((stream, _)) = self.listener.accept() {
                self.answer(stream);
            }
        }
    }

    /// False if there is nothing left to wait for.
    fn wait(&self, most: Duration) -> bool {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [poll(self.listener.as_raw_fd()), poll(self.bell)];
        let timeout = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: two of them, which outlive the call.
        unsafe { libc::poll(both.as_mut_ptr(), 2, timeout) };
        if both.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
            return false;
        }
        let mut count = 0_u64;
        // SAFETY: eight bytes to a number that outlives the call; it does not wait.
        unsafe { libc::read(self.bell, (&raw mut count).cast(), size_of::<u64>()) };
        true
    }

    fn answer(&self, mut stream: UnixStream) {
        let prepared = stream.set_nonblocking(false);
        let prepared = prepared.and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        if prepared.is_err() || !is_of_own_user(&stream) {
            return;
        }
        let reply = match control::receive(&mut Impatient { stream: &mut stream, end: Instant::now() + SAID }) {
            Ok(line) => match line.parse::<Request>() {
                Ok(request) => self.carry_out(request, &stream),
                Err(error) => Some(Reply::Refused(error.to_string())),
            },
            Err(_) => return,
        };
        if let Some(reply) = reply {
            // Whoever asked may be gone.
            let _ = control::send(&mut stream, &reply);
        }
    }

    /// Gives what is left to answer.
    fn carry_out(&self, request: Request, stream: &UnixStream) -> Option<Reply> {
        if matches!(request, Request::Yield { .. } | Request::Wake) {
            self.slept.set(Some(Instant::now()));
        }
        let result = match request {
            Request::Status => Ok(sleep::status(self.state)),
            Request::Export { address, bytes, stamp } => {
                return ipc::pass_on(self.moving, self.state, stream, (address, bytes, stamp))
                    .err()
                    .map(Reply::Refused);
            }
            Request::Yield { keep, hold } => sleep::fall_asleep(self.moving, self.state, (keep, hold)),
            Request::Wake => self.wake(),
        };
        Some(result.map_or_else(|refused| Reply::Refused(refused.to_string()), Reply::Done))
    }

    /// Wakes up, with some patience for room.
    fn wake(&self) -> Result<control::Done, sleep::Refused> {
        let start = Instant::now();
        loop {
            match sleep::wake_up(self.moving, self.state) {
                Err(sleep::Refused::NoRoom(_)) if start.elapsed() < PATIENCE => thread::sleep(AGAIN),
                other => return other,
            }
        }
    }
}

/// Whether the other side is a process of the same user, or of the one who may do everything anyway.
fn is_of_own_user(stream: &UnixStream) -> bool {
    let mut other = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `other` has as many bytes as are told, and outlives the call.
    let code = unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut other).cast(), &raw mut bytes) };
    // SAFETY: takes nothing.
    let own = unsafe { libc::geteuid() };
    code == 0 && (other.uid == own || other.uid == 0)
}
