//! `gpuheap tui`, on a terminal of its own and without one.

use crate::context::TestContext;

const RECORDING: &[u8] = include_bytes!("../../../../examples/loss_accumulate.pickle.gz");

#[test]
fn without_a_terminal_nothing_is_read() {
    for file in ["missing.pickle", "-"] {
        insta::allow_duplicates! {
            insta::assert_snapshot!(TestContext::new().run(["tui", file]), @r"
            exit_code: 2
            ----- stdout -----

            ----- stderr -----
            error: Standard output is not a terminal

            hint: `gpuheap explain` shows the same as text
            ");
        }
    }
}

#[test]
fn wrong_use_is_told_from_a_missing_terminal() {
    insta::assert_snapshot!(TestContext::new().run(["tui", "a.pickle", "--limit", "0"]), @r"
    exit_code: 2
    ----- stdout -----

    ----- stderr -----
    error: invalid value '0' for '--limit <SIZE>': nothing fits into no memory at all

    For more information, try '--help'.
    ");
}

#[cfg(target_os = "linux")]
mod on_a_terminal {
    use std::fs::{File, OpenOptions};
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::process::{Child, ExitStatus, Stdio};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

    use super::RECORDING;
    use crate::context::TestContext;

    const PATIENCE: Duration = Duration::from_secs(60);
    const ENTERED: &str = "\u{1b}[?1049h";
    const LEFT: &str = "\u{1b}[?1049l";
    const CURSOR: &str = "\u{1b}[?25h";

    /// A terminal with the command on it.
    struct Screen {
        user: File,
        program: File,
        child: Child,
        painted: Arc<Mutex<Vec<u8>>>,
    }

    impl Screen {
        fn new(context: &TestContext, arguments: &[&str]) -> Self {
            let user: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
            grantpt(&user).unwrap();
            unlockpt(&user).unwrap();
            let path = ptsname(&user, Vec::new()).unwrap();
            let program = OpenOptions::new().read(true).write(true).open(path.to_str().unwrap()).unwrap();
            tcsetwinsize(&program, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
            let end = || Stdio::from(program.try_clone().unwrap());
            let child = context.command().args(arguments).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
            let user = File::from(user);
            let painted = Arc::new(Mutex::new(Vec::new()));
            let (mut reader, writer) = (user.try_clone().unwrap(), Arc::clone(&painted));
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = reader.read(&mut buffer) {
                    writer.lock().unwrap().extend_from_slice(&buffer[..count]);
                }
            });
            Self { user, program, child, painted }
        }

        fn text(&self) -> String {
            String::from_utf8_lossy(&self.painted.lock().unwrap()).into_owned()
        }

        /// Waits until something was painted.
        fn expect(&self, what: &str) {
            let start = Instant::now();
            while !self.text().contains(what) {
                assert!(start.elapsed() < PATIENCE, "no {what:?} in {:?}", self.text());
                std::thread::sleep(Duration::from_millis(5));
            }
        }

        fn press(&mut self, keys: &str) {
            self.user.write_all(keys.as_bytes()).unwrap();
        }

        fn settings(&self) -> Termios {
            tcgetattr(&self.program).unwrap()
        }

        fn end(&mut self) -> ExitStatus {
            let start = Instant::now();
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                if start.elapsed() > PATIENCE {
                    self.child.kill().unwrap();
                    panic!("it does not end: {:?}", self.text());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn the_terminal_is_as_it_was_before() {
        for (keys, how) in [("q", "by its key"), ("\u{3}", "by Ctrl-C"), ("3?\u{3}", "from the help")] {
            let context = TestContext::new().with_file("run.pickle.gz", RECORDING);
            let mut screen = Screen::new(&context, &["tui", "run.pickle.gz"]);
            let before = screen.settings();
            assert!(before.local_modes.contains(LocalModes::ECHO | LocalModes::ICANON));
            screen.expect(ENTERED);
            screen.expect("Findings");
            assert!(!screen.settings().local_modes.intersects(LocalModes::ECHO | LocalModes::ICANON));
            screen.press("3");
            screen.expect("Last event");
            screen.press(keys);
            assert!(screen.end().success(), "{how}");
            let after = screen.settings();
            assert_eq!(after.local_modes, before.local_modes, "{how}");
            assert_eq!(after.input_modes, before.input_modes, "{how}");
            assert_eq!(after.output_modes, before.output_modes, "{how}");
            screen.expect(LEFT);
            let text = screen.text();
            let rest = &text[text.rfind(LEFT).unwrap()..];
            assert!(rest.contains(CURSOR), "{how}: {rest:?}");
        }
    }

    #[test]
    fn colours_are_as_asked_for() {
        let colored = |arguments: &[&str]| {
            let context = TestContext::new().with_file("run.pickle.gz", RECORDING);
            let mut screen = Screen::new(&context, &[&["tui", "run.pickle.gz"], arguments].concat());
            screen.expect("Leak");
            screen.press("4q");
            screen.end();
            screen.expect(LEFT);
            screen.text().contains("\u{1b}[38;5;")
        };
        assert!(colored(&[]));
        assert!(!colored(&["--color", "never"]));
    }

    #[test]
    fn a_bad_file_never_takes_the_screen() {
        let context = TestContext::new().with_file("bad.pickle", b"no recording");
        let mut screen = Screen::new(&context, &["tui", "bad.pickle"]);
        assert_eq!(screen.end().code(), Some(2));
        screen.expect("error");
        assert!(!screen.text().contains(ENTERED));
    }
}
