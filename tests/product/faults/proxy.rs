//! A proxy in front of an S3 server that does what busy servers and bad networks do, at moments drawn from a seed:
//! it answers 503 SlowDown without asking the server, resets the connection, or passes a request on and loses the answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How often each fault happened.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) busy: AtomicU64,
    pub(super) reset: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// A running proxy; it ends with the test's process.
pub(super) struct Proxy {
    address: SocketAddr,
    pub(super) faults: Arc<Faults>,
}

struct Shared {
    server: String,
    faults: Arc<Faults>,
    /// xorshift's state.
    state: Mutex<u64>,
    /// One request in so many is harmed.
    every: u64,
}

impl Proxy {
    /// In front of a server, an `http://host:port`.
    pub(super) fn start(server: &str, every: u64, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let faults = Arc::new(Faults::default());
        let server = server.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let shared = Arc::new(Shared { server, faults: Arc::clone(&faults), state: Mutex::new(seed | 1), every });
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.serve(connection));
            }
        });
        Self { address, faults }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Shared {
    fn draw(&self) -> u64 {
        let mut state = self.state.lock().expect("no thread panics with it");
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state >> 20
    }

    fn serve(&self, client: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(client.try_clone().ok()?);
        let mut client = client;
        let upstream = TcpStream::connect(&self.server).ok()?;
        upstream.set_nodelay(true).ok()?;
        client.set_nodelay(true).ok()?;
        let mut answers = BufReader::new(upstream.try_clone().ok()?);
        let mut upstream = upstream;
        loop {
            let request = Message::read(&mut reader, true)?;
            let harmed = self.draw().is_multiple_of(self.every);
            match self.draw() % 3 {
                0 if harmed => {
                    self.faults.busy.fetch_add(1, Ordering::Relaxed);
                    let body = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>";
                    let head = "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\n";
                    write!(client, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).ok()?;
                    continue;
                }
                1 if harmed => {
                    self.faults.reset.fetch_add(1, Ordering::Relaxed);
                    reset(&client);
                    return None;
                }
                kind => {
                    upstream.write_all(&request.bytes).ok()?;
                    let answer = Message::read(&mut answers, request.has_answer_body)?;
                    if harmed && kind == 2 {
                        self.faults.lost.fetch_add(1, Ordering::Relaxed);
                        reset(&client);
                        return None;
                    }
                    client.write_all(&answer.bytes).ok()?;
                }
            }
        }
    }
}

/// Closes a connection so that the other side sees a reset.
fn reset(client: &TcpStream) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the socket is open and the option is of this type.
    unsafe {
        libc::setsockopt(
            client.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            std::ptr::from_ref(&linger).cast(),
            size_of::<libc::linger>() as u32,
        );
    }
}

/// A request or an answer, as its bytes.
struct Message {
    bytes: Vec<u8>,
    /// Whether an answer to it has a body: not to HEAD.
    has_answer_body: bool,
}

impl Message {
    fn read(from: &mut impl BufRead, has_body: bool) -> Option<Self> {
        let mut bytes = Vec::new();
        let (mut length, mut chunked) = (0_u64, false);
        loop {
            let begin = bytes.len();
            if from.read_until(b'\n', &mut bytes).ok()? == 0 {
                return None;
            }
            let line = String::from_utf8_lossy(&bytes[begin..]).trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            chunked |= line.starts_with("transfer-encoding:") && line.ends_with("chunked");
        }
        let has_answer_body = !bytes.starts_with(b"HEAD ");
        let no_body = bytes.starts_with(b"HTTP/1.1 204") || bytes.starts_with(b"HTTP/1.1 304") || !has_body;
        if !no_body && chunked {
            loop {
                let begin = bytes.len();
                from.read_until(b'\n', &mut bytes).ok()?;
                let size = String::from_utf8_lossy(&bytes[begin..]).trim().to_owned();
                let size = u64::from_str_radix(size.split(';').next()?, 16).ok()?;
                from.take(size + 2).read_to_end(&mut bytes).ok()?;
                if size == 0 {
                    break;
                }
            }
        } else if !no_body {
            from.take(length).read_to_end(&mut bytes).ok()?;
        }
        Some(Self { bytes, has_answer_body })
    }
}
