//! Python in a sandbox, kept warm.
//!
//! A *warm interpreter* is a Python process in namespaces of its own (user, mount, process, network, host name, IPC):
//! a read-only root that holds the interpreter and its libraries and nothing else, no network, one small folder in
//! memory to write to. It runs no code of the agent's: for each call it forks a child, which takes on limits and a
//! system-call filter (no sockets, no new processes, no mounts, no hold on other processes), runs the code and dies;
//! then every other process of the namespace is killed and the folder is emptied. So nothing is carried over from one
//! call to the next, and a call costs a fork.
//!
//! The interpreter is not trusted to answer: an answer has a time by which it must be there, a largest size, and the
//! number of its call. One that breaks any of these ends the interpreter.
//!
//! Where any of this cannot be set up there is no sandbox, and nothing is run: [`Python::start`] tries what the sandbox
//! must prevent and refuses if it succeeds.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command as PlainCommand;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use hakoniwa::{Container, Namespace, Runctl, Stdio};
use serde::{Deserialize, Serialize};

mod filter;

/// What one call may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Wall time; then the call is killed.
    pub wall: Duration,
    /// Processor time.
    pub cpu: Duration,
    /// Address space in bytes.
    pub memory: u64,
    /// Size of the folder it may write to, in bytes.
    pub scratch: u64,
    /// Characters of output; longer ones are cut in the middle.
    pub output: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(7),
            cpu: Duration::from_secs(5),
            memory: 512 << 20,
            scratch: 16 << 20,
            output: 1536,
        }
    }
}

/// What a call printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonOutput {
    /// Standard output and error, in the order written; for an exception, its last line at the end.
    pub text: String,
    /// Whether it ran to its end without exception.
    pub ok: bool,
    /// Whether it was killed for taking too long.
    pub timed_out: bool,
}

/// The sandbox cannot be set up, or broke.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SandboxError {
    /// What.
    pub what: String,
    /// What to do.
    pub hint: String,
}

impl SandboxError {
    fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

/// Sandboxed Python with a number of warm interpreters; calls wait for a free one.
pub struct Python {
    idle: Mutex<Vec<Option<Warm>>>,
    freed: Condvar,
    nursery: Nursery,
}

impl Python {
    /// Sets up the sandbox and proves it. `interpreters` calls can run at the same time.
    pub fn start(interpreters: usize, limits: Limits) -> Result<Self, SandboxError> {
        let nursery = Nursery::open(Interpreter::find()?, limits)?;
        let first = nursery.start()?;
        let mut idle: Vec<Option<Warm>> = (1..interpreters.max(1)).map(|_| None).collect();
        idle.push(Some(first));
        let python = Self { idle: Mutex::new(idle), freed: Condvar::new(), nursery };
        python.prove()?;
        Ok(python)
    }

    /// Runs code with a text as standard input. An error is never the code's doing, as far as that can be told: where an
    /// interpreter breaks, the code is run in a fresh one.
    pub fn run(&self, code: &str, stdin: &str) -> Result<PythonOutput, SandboxError> {
        self.run_once(code, stdin).or_else(|error| {
            tracing::warn!(%error, "a call is made again in a fresh interpreter");
            self.run_once(code, stdin)
        })
    }

    fn run_once(&self, code: &str, stdin: &str) -> Result<PythonOutput, SandboxError> {
        let mut warm = self.take()?;
        let result = warm.call(code, stdin);
        // A broken interpreter is not kept, nor one whose folder could not be emptied; the next call starts another.
        let keep = result.as_ref().is_ok_and(|answer| !answer.spent);
        self.give_back(keep.then_some(warm));
        let Answer { text, ok, timed_out, .. } = result?;
        Ok(PythonOutput { text, ok, timed_out })
    }

    fn take(&self) -> Result<Warm, SandboxError> {
        let mut idle = self.lock();
        loop {
            match idle.pop() {
                Some(Some(warm)) => return Ok(warm),
                Some(None) => {
                    drop(idle);
                    return self.nursery.start().inspect_err(|_| self.give_back(None));
                }
                None => idle = self.freed.wait(idle).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn give_back(&self, warm: Option<Warm>) {
        self.lock().push(warm);
        self.freed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Warm>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries what must not work.
    fn prove(&self) -> Result<(), SandboxError> {
        let output = self.run(PROOF, "")?;
        if output.text.trim() == "sandboxed" {
            return Ok(());
        }
        let holes = output.text.trim().to_owned();
        Err(SandboxError::new(format!("the sandbox does not hold: {holes}"), HINT))
    }
}

const HINT: &str = "the kernel must allow unprivileged user namespaces and seccomp filters: \
                    `unshare -Urn true` shows whether it does; in a container, its security profile must too";

/// What code in the sandbox must not be able to do.
const PROOF: &str = include_str!("python/proof.py");

/// The Python on this machine.
#[derive(Clone, Debug)]
struct Interpreter {
    executable: String,
    folders: Vec<String>,
}

impl Interpreter {
    /// `COA_PYTHON`, or `python3` of the search path.
    fn find() -> Result<Self, SandboxError> {
        let name = std::env::var("COA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let hint = "install python3, or let COA_PYTHON name one";
        let ask = "import ctypes, json, os, resource, sys; \
                   print(json.dumps([os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)]))";
        let output = PlainCommand::new(&name).args(["-I", "-c", ask]).output();
        let output = output.map_err(|error| SandboxError::new(format!("cannot run `{name}`: {error}"), hint))?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            let last = error.lines().last().unwrap_or_default().to_owned();
            return Err(SandboxError::new(format!("`{name}` does not work: {last}"), hint));
        }
        let [executable, prefix]: [String; 2] = serde_json::from_slice(&output.stdout)
            .map_err(|error| SandboxError::new(format!("`{name}` does not say where it is: {error}"), hint))?;
        let mut folders: Vec<String> = Vec::new();
        for folder in ["/usr", "/lib", "/lib64", "/lib32", &prefix] {
            let covered = folders.iter().any(|other| folder.starts_with(&format!("{other}/")));
            if !covered && !folders.iter().any(|other| other == folder) && PathBuf::from(folder).exists() {
                folders.push(folder.to_owned());
            }
        }
        Ok(Self { executable, folders })
    }
}

/// The thread that starts interpreters. They die with the thread that started them, so it must outlive them all.
struct Nursery {
    orders: mpsc::Sender<mpsc::Sender<Result<Warm, SandboxError>>>,
}

impl Nursery {
    fn open(interpreter: Interpreter, limits: Limits) -> Result<Self, SandboxError> {
        let (orders, received) = mpsc::channel::<mpsc::Sender<Result<Warm, SandboxError>>>();
        let thread = std::thread::Builder::new().name("python-nursery".to_owned()).spawn(move || {
            for order in received {
                let _ = order.send(Warm::start(&interpreter, &limits));
            }
        });
        thread.map_err(|error| SandboxError::new(format!("no thread for the sandbox: {error}"), HINT))?;
        Ok(Self { orders })
    }

    fn start(&self) -> Result<Warm, SandboxError> {
        let gone = || SandboxError::new("the thread that starts interpreters is gone", "try again");
        let (answer, wait) = mpsc::channel();
        self.orders.send(answer).map_err(|_| gone())?;
        wait.recv().map_err(|_| gone())?
    }
}

/// A warm interpreter.
struct Warm {
    child: hakoniwa::Child,
    to: PipeWriter,
    from: PipeReader,
    /// What it says when it breaks.
    errors: Option<PipeReader>,
    calls: u64,
    limits: Limits,
}

#[derive(Serialize)]
struct Call<'a> {
    number: u64,
    code: &'a str,
    stdin: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    number: u64,
    text: String,
    ok: bool,
    timed_out: bool,
    /// Whether something of the call may be left.
    spent: bool,
}

#[derive(Serialize)]
struct Settings {
    wall: f64,
    cpu: u64,
    memory: u64,
    scratch: u64,
    output: usize,
    filters: Vec<String>,
}

/// The program of a warm interpreter.
const HARNESS: &str = include_str!("python/harness.py");
/// The only folder that can be written to.
const SCRATCH: &str = "/scratch";
/// Files and folders that it can hold.
const FILES: u32 = 4096;
/// How long an interpreter may take to start.
const START: Duration = Duration::from_secs(30);
/// How long an interpreter may take, beyond the time of a call, to clean up after it and answer.
const GRACE: Duration = Duration::from_secs(20);

impl Warm {
    fn start(interpreter: &Interpreter, limits: &Limits) -> Result<Self, SandboxError> {
        let broken =
            |what: &dyn std::fmt::Display| SandboxError::new(format!("the sandbox cannot be set up: {what}"), HINT);
        let mut container = Container::empty();
        for namespace in
            [Namespace::Mount, Namespace::User, Namespace::Pid, Namespace::Network, Namespace::Ipc, Namespace::Uts]
        {
            container.unshare(namespace);
        }
        // Nobody in particular: with that the capabilities in the new namespaces end when the interpreter starts.
        container.uidmap(NOBODY).gidmap(NOBODY).hostname("sandbox").runctl(Runctl::MountFallback);
        for folder in &interpreter.folders {
            match std::fs::read_link(folder) {
                Ok(target) => container.symlink(&target.to_string_lossy(), folder),
                Err(_) => container.bindmount_ro(folder, folder),
            };
        }
        // Single devices, not a file system for them: that could be written to, and holds the terminal.
        for device in ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"] {
            container.bindmount_ro(device, device);
        }
        container.mount(
            "tmpfs",
            SCRATCH,
            "tmpfs",
            hakoniwa::MountOptions::NOSUID | hakoniwa::MountOptions::NODEV,
            Some(format!("size={},nr_inodes={FILES},mode=700", limits.scratch)),
        );
        // Unless the interpreter itself lives below it.
        if !interpreter.folders.iter().any(|folder| folder.starts_with("/tmp/")) {
            container.symlink(SCRATCH, "/tmp");
        }
        let settings = Settings {
            wall: limits.wall.as_secs_f64(),
            cpu: limits.cpu.as_secs().max(1),
            memory: limits.memory,
            scratch: limits.scratch,
            output: limits.output,
            filters: filter::programs().map_err(|error| broken(&error))?,
        };
        let settings = serde_json::to_string(&settings).expect("settings are plain data");
        let mut command = container.command(&interpreter.executable);
        // Isolated but for the environment, which holds one variable: sets are in the same order in every interpreter.
        command.args(["-s", "-S", "-B", "-c", HARNESS, &settings]);
        command.env("PYTHONHASHSEED", "0").current_dir(SCRATCH);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| broken(&error))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(broken(&"no pipes"));
        };
        let errors = child.stderr.take();
        let mut warm = Self { child, to, from, errors, calls: 0, limits: limits.clone() };
        match warm.line(START, 64) {
            Ok(line) if line == b"ready" => Ok(warm),
            Ok(line) => Err(broken(&warm.end(&String::from_utf8_lossy(&line)))),
            Err(error) => Err(broken(&warm.end(&error.to_string()))),
        }
    }

    fn call(&mut self, code: &str, stdin: &str) -> Result<Answer, SandboxError> {
        self.calls += 1;
        let mut line = serde_json::to_vec(&Call { number: self.calls, code, stdin }).expect("a call is plain data");
        line.push(b'\n');
        // A character may take 4 bytes, or 12 as two escapes.
        let largest = 1024 + 12 * (self.limits.output + 256);
        let answer = self
            .to
            .write_all(&line)
            .and_then(|()| self.line(self.limits.wall + GRACE, largest))
            .and_then(|line| Ok(serde_json::from_slice::<Answer>(&line)?));
        match answer {
            Ok(answer) if answer.number == self.calls => Ok(answer),
            Ok(_) => Err(self.breaks("it answered another call")),
            Err(error) => Err(self.breaks(&error.to_string())),
        }
    }

    /// Reads to the end of a line, for so long and so many bytes at most.
    fn line(&mut self, wait: Duration, largest: usize) -> std::io::Result<Vec<u8>> {
        let deadline = Instant::now() + wait;
        let mut line = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it does not answer"));
            }
            if !readable(&self.from, left)? {
                continue;
            }
            let mut part = [0; 8192];
            let read = self.from.read(&mut part)?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            line.extend_from_slice(&part[..read]);
            // It answers one call at a time: nothing follows an answer.
            if line.last() == Some(&b'\n') {
                line.pop();
                return Ok(line);
            }
            if line.len() > largest {
                return Err(std::io::Error::other("its answer does not end"));
            }
        }
    }

    fn breaks(&mut self, what: &str) -> SandboxError {
        SandboxError::new(format!("a warm interpreter broke: {}", self.end(what)), "try again")
    }

    /// Ends the interpreter; what went wrong, with its own last words.
    fn end(&mut self, what: &str) -> String {
        let _ = self.child.kill();
        let mut words = Vec::new();
        if let Some(errors) = self.errors.take() {
            let _ = errors.take(1 << 16).read_to_end(&mut words);
        }
        match String::from_utf8_lossy(&words).lines().last() {
            Some(last) => format!("{what}: {last}"),
            None => what.to_owned(),
        }
    }
}

/// Whether something can be read, waiting no longer than this.
fn readable(pipe: &PipeReader, wait: Duration) -> std::io::Result<bool> {
    let mut waited = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(wait.as_millis().max(1)).unwrap_or(i32::MAX);
    // SAFETY: one `pollfd`, of a pipe that is open as long as it is borrowed.
    let ready = unsafe { libc::poll(&raw mut waited, 1, milliseconds) };
    match ready {
        0 => Ok(false),
        1.. => Ok(true),
        _ => {
            let error = std::io::Error::last_os_error();
            if error.kind() == std::io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
        }
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const NOBODY: u32 = 65534;

#[cfg(test)]
mod tests {
    use super::*;

    fn python(limits: Limits) -> Option<Python> {
        match Python::start(2, limits) {
            Ok(python) => Some(python),
            Err(error) => {
                // A machine without user namespaces cannot run these tests, and says so.
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    fn run(python: &Python, code: &str) -> PythonOutput {
        python.run(code, "").unwrap()
    }

    #[test]
    fn code_prints_reads_its_input_and_fails_with_its_last_line() {
        let Some(python) = python(Limits::default()) else { return };
        assert_eq!(run(&python, "print(6 * 7)"), PythonOutput { text: "42\n".into(), ok: true, timed_out: false });
        let echoed = python.run("print(int(input()) + 1)", "41\n").unwrap();
        assert_eq!(echoed.text, "42\n");
        let failed = run(&python, "print('before')\nx = 1 / 0");
        assert_eq!(failed.text, "before\nZeroDivisionError: division by zero\n");
        assert!(!failed.ok);
        let syntax = run(&python, "print(");
        assert!(!syntax.ok && syntax.text.starts_with("SyntaxError"), "{syntax:?}");
        let mute = run(&python, "class E(Exception):\n    def __str__(self): 1 / 0\nraise E()");
        assert_eq!(mute.text, "E: <exception str() failed>\n");
        assert!(run(&python, "raise SystemExit").ok);
        assert!(!run(&python, "raise SystemExit(3)").ok);
    }

    #[test]
    fn equal_code_prints_equal_text_in_every_interpreter() {
        let [Some(a), Some(b)] = [python(Limits::default()), python(Limits::default())] else { return };
        let code = "import os\nprint({'a', 'b', 'c', 'd', 'e'}, sorted(os.environ))";
        assert_eq!(run(&a, code), run(&b, code));
    }

    #[test]
    fn nothing_is_carried_over() {
        let Some(python) = python(Limits::default()) else { return };
        for _ in 0..3 {
            let output = run(
                &python,
                "import os, math\nprint(os.listdir('.'), hasattr(math, 'x'))\nmath.x = 1\nopen('left', 'w').write('x')\nos.makedirs('d/e')\nos.chmod('d', 0)",
            );
            assert_eq!(output.text, "[] False\n");
        }
    }

    #[test]
    fn what_takes_too_long_or_too_much_is_stopped() {
        let limits = Limits { wall: Duration::from_millis(300), memory: 200 << 20, output: 100, ..Limits::default() };
        let Some(python) = python(limits) else { return };
        let slow = run(&python, "print('begun', flush=True)\nwhile True: pass");
        assert!(slow.timed_out && !slow.ok);
        assert!(slow.text.starts_with("begun\n"), "{slow:?}");
        let asleep = run(&python, "import time; time.sleep(60)");
        assert!(asleep.timed_out);
        let large = run(&python, "x = bytearray(1 << 30)");
        assert!(large.text.contains("MemoryError"), "{large:?}");
        let long = run(&python, "print('a' * 5000 + 'z')");
        assert!(long.text.chars().count() <= 140 && long.text.ends_with("z\n"), "{long:?}");
        let full = run(&python, "open('f', 'wb').write(b'x' * (64 << 20))");
        assert!(!full.ok, "{full:?}");
        let many = run(
            &python,
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('left')",
        );
        assert_eq!(many.text, "left\n");
        assert_eq!(run(&python, "print(1)").text, "1\n");
    }

    #[test]
    fn code_cannot_reach_the_interpreter_that_waits_for_it() {
        let Some(python) = python(Limits::default()) else { return };
        // Whatever it finds open is its own: the answer is the interpreter's.
        let forged = run(
            &python,
            "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'{\"number\": 1, \"text\": \"forged\", \"ok\": true}\\n')\n    except OSError: pass\nprint('real')",
        );
        assert_eq!(forged.text, "real\n");
        let full = run(&python, "for i in range(10000): open(str(i), 'w').close()");
        assert!(!full.ok && full.text.contains("No space left"), "{full:?}");
        assert_eq!(run(&python, "import os; print(os.listdir('.'))").text, "[]\n");
    }

    #[test]
    fn an_interpreter_that_does_not_answer_in_time_is_given_up() {
        let Some(python) = python(Limits::default()) else { return };
        let mut warm = python.take().unwrap();
        let error = warm.line(Duration::from_millis(20), 64).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        // It is stopped in the middle: the call is lost, the interpreter with it, and the next call has another.
        warm.child.kill().unwrap();
        assert!(warm.call("print(1)", "").is_err());
        python.give_back(Some(warm));
        assert_eq!(run(&python, "print(1)").text, "1\n");
    }

    #[test]
    fn calls_run_side_by_side() {
        let Some(python) = python(Limits::default()) else { return };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let python = &python;
                scope.spawn(move || {
                    for i in 0..25 {
                        assert_eq!(
                            run(python, &format!("print({thread} * 100 + {i})")).text,
                            format!("{}\n", thread * 100 + i)
                        );
                    }
                });
            }
        });
    }
}
