//! The shell of `coa sql`, on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::coa::{Place, filters, record};

/// A process on a terminal of its own, and a person at it.
struct Terminal {
    child: Child,
    screen: File,
    seen: Vec<u8>,
}

/// Longer than this nobody waits.
const PATIENCE: Duration = Duration::from_secs(120);

impl Terminal {
    fn open(place: &Place) -> Self {
        let (mut ours, mut theirs) = (0, 0);
        let null = std::ptr::null_mut();
        let size = libc::winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the pointers are to live values, or null where the call takes null.
        let opened = unsafe { libc::openpty(&mut ours, &mut theirs, null, null as *const _, &size) };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: both were just opened and belong to nobody else.
        let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let mut command = place.command(&["sql", "--store", "store"]);
        let side = || Stdio::from(theirs.try_clone().unwrap());
        command.env("TERM", "xterm").env("XDG_STATE_HOME", place.path("state")).env_remove("NO_COLOR");
        command.stdin(side()).stdout(side()).stderr(side());
        // SAFETY: only calls that are safe between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        Self { child, screen: File::from(ours), seen: Vec::new() }
    }

    fn types(&mut self, text: &str) {
        self.screen.write_all(text.as_bytes()).unwrap();
    }

    /// Waits for a text, and forgets what came before it.
    fn sees(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.seen.windows(text.len()).position(|window| window == text.as_bytes()) {
                self.seen.drain(..at + text.len());
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "no {text:?} in {:?}", String::from_utf8_lossy(&self.seen));
            let mut poll = libc::pollfd { fd: self.screen.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, as said.
            if unsafe { libc::poll(&mut poll, 1, 1000) } > 0 {
                let mut buffer = [0; 4096];
                let read = self.screen.read(&mut buffer);
                let read = read.unwrap_or_else(|error| {
                    panic!("{error}: no {text:?} in {:?}", String::from_utf8_lossy(&self.seen))
                });
                self.seen.extend(&buffer[..read]);
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_shell_on_a_terminal() {
    let place = Place::new();
    place.write("in/a.jsonl", format!("{}\n{}\n", record("a1", 4), record("a2", 6)));
    place.write("p.toml", filters("in/*.jsonl", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();

    let mut shell = Terminal::open(&place);
    shell.sees("\\? for help");
    shell.sees("coa> ");
    shell.types("select 40 +\r");
    shell.sees("...> ");
    shell.types("2 as answer;\r");
    shell.sees("| 42     |");
    shell.sees("coa> ");
    shell.types("select 'dropped");
    shell.sees("dropped");
    shell.types("\u{3}");
    shell.sees("\r\n");
    shell.sees("coa> ");
    shell.types("select nothing from traces;\r");
    shell.sees("error: ");
    shell.sees("nothing");
    shell.sees("coa> ");
    shell.types("\\d complexity.kept\r");
    shell.sees("Agent-tool interactions");
    shell.sees("versions @v0 to @v1");
    shell.types("\\?\r");
    shell.sees("lists tables");
    shell.sees("coa> ");
    shell.types("\u{4}");
    assert!(shell.child.wait().unwrap().success());

    // Another day: what was typed is there, and lines that are typed ahead are not lost.
    let mut shell = Terminal::open(&place);
    shell.sees("coa> ");
    shell.types("\u{1b}[A");
    shell.sees("\\?");
    shell.types("\r");
    shell.sees("lists tables");
    shell.types("select 1\r+ 1 as\rtwo;\r\\q\r");
    shell.sees("| 2   |");
    assert!(shell.child.wait().unwrap().success());
    let history = std::fs::read_to_string(place.path("state/coa/sql_history")).unwrap();
    for line in ["select 40 +", "\\d complexity.kept", "select 1"] {
        assert!(history.contains(&line.replace('\\', "\\\\")) || history.contains(line), "{history}");
    }
    assert!(!history.contains("dropped"), "{history}");
}
