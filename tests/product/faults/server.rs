//! The servers that tests use: S3 (started by infra/s3-up.sh) and PostgreSQL (started here).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::coa::{Place, skipped};

/// An S3 server.
#[derive(Clone)]
pub(super) struct S3 {
    pub(super) endpoint: String,
    pub(super) key: String,
    pub(super) secret: String,
}

impl S3 {
    /// The one that a variable names; `None`, with a message, where there is none.
    pub(super) fn named(variable: &str) -> Option<Self> {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let found = (|| {
            Some(Self {
                endpoint: get(variable)?,
                key: get("AWS_ACCESS_KEY_ID")?,
                secret: get("AWS_SECRET_ACCESS_KEY")?,
            })
        })();
        if found.is_none() {
            skipped(&format!("{variable} names no S3 server: eval \"$(bash infra/s3-up.sh)\" starts one"));
        }
        found
    }

    /// The commands of a place work with this server from now on.
    pub(super) fn is_used_by(&self, place: &mut Place) {
        place.set("AWS_ENDPOINT_URL", &self.endpoint);
        place.set("AWS_ACCESS_KEY_ID", &self.key);
        place.set("AWS_SECRET_ACCESS_KEY", &self.secret);
        place.set("AWS_REGION", "us-east-1");
    }
}

/// A bucket name nobody else uses.
pub(super) fn fresh_bucket() -> String {
    let folder = tempfile::Builder::new().prefix("").rand_bytes(12).tempdir().expect("a temporary folder");
    let name = folder.path().file_name().expect("a name").to_string_lossy().to_lowercase();
    format!("coa-{name}")
}

/// A PostgreSQL server with a cluster of its own.
pub(crate) struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    port: u16,
    /// Whether it runs as another user, because it refuses to run as root.
    as_nobody: bool,
}

impl Postgres {
    /// Starts one; `None`, with a message, where the programs are absent.
    pub(crate) fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            skipped("there is no PostgreSQL server on this machine");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("coa-pg-").tempdir_in("/tmp").expect("a temporary folder");
        // SAFETY: it only reads.
        let as_nobody = unsafe { libc::geteuid() } == 0;
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = socket.local_addr().expect("an address").port();
        drop(socket);
        let server = Self { folder, programs, port, as_nobody };
        if as_nobody {
            assert!(Command::new("chown").args(["nobody", server.place()]).status().expect("chown runs").success());
        }
        let data = server.data();
        server.does("initdb", &["-D", &data, "-A", "trust", "-U", "coa", "--no-sync"]);
        server.up();
        Some(server)
    }

    fn place(&self) -> &str {
        self.folder.path().to_str().expect("a plain path")
    }

    fn data(&self) -> String {
        format!("{}/data", self.place())
    }

    fn up(&self) {
        let options = format!(
            "-c listen_addresses=127.0.0.1 -p {} -k {} -c fsync=off -c shared_buffers=16MB",
            self.port,
            self.place()
        );
        let log = format!("{}/log", self.place());
        self.does("pg_ctl", &["-D", &self.data(), "-w", "-l", &log, "-o", &options, "start"]);
    }

    /// Stops it like a power cut, and starts it again.
    pub(super) fn crash_and_restart(&self) {
        self.does("pg_ctl", &["-D", &self.data(), "-m", "immediate", "-w", "stop"]);
        self.up();
    }

    /// The address of its database.
    pub(crate) fn url(&self) -> String {
        format!("postgres://coa@127.0.0.1:{}/postgres", self.port)
    }

    fn does(&self, program: &str, arguments: &[&str]) {
        let path = self.programs.join(program);
        let mut command = match self.as_nobody {
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=nobody", "--clear-groups"]).arg(path);
                command
            }
            false => Command::new(path),
        };
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        let said = command.output().expect("it runs");
        assert!(said.status.success(), "{program}: {}", String::from_utf8_lossy(&said.stderr));
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.does("pg_ctl", &["-D", &self.data(), "-m", "immediate", "-w", "stop"]);
            return;
        }
        let id = std::fs::read_to_string(format!("{}/postmaster.pid", self.data())).unwrap_or_default();
        if let Some(Ok(id)) = id.lines().next().map(str::parse::<i32>) {
            // SAFETY: the server of this test.
            unsafe { libc::kill(id, libc::SIGQUIT) };
        }
    }
}

/// The folder of the server's programs: the newest of Debian's, or what the search path has.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|folder| folder.join("initdb").exists())
        .collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).find(|folder: &PathBuf| has(folder));
    found.pop().or(on_path)
}

fn has(folder: &Path) -> bool {
    folder.join("initdb").exists() && folder.join("pg_ctl").exists()
}

/// Whether a program is on this machine; if not, says so.
pub(super) fn program(name: &str) -> bool {
    let there = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !there {
        skipped(&format!("there is no `{name}` on this machine"));
    }
    there
}
