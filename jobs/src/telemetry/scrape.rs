//! `/metrics` over HTTP/1.1: one request a connection, which is what a scraper makes every few seconds.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::Metrics;
use crate::error::CommandError;
use crate::queue::Queue;

/// How long a request may take to arrive, and its answer to be taken.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the queue may take to say how many jobs wait.
const QUEUE_PATIENCE: Duration = Duration::from_secs(2);
/// What a request may hold.
const REQUEST_BYTES: usize = 16 * 1024;
/// Headers a request may have.
const HEADERS: usize = 64;

/// Where metrics are to be read; nobody is answered before [`Listener::serve`].
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Takes the address. Port 0 is any free one.
    pub(crate) async fn bind(address: &str) -> Result<Self, CommandError> {
        let refused = |error: std::io::Error| match error.kind() {
            ErrorKind::AddrInUse | ErrorKind::PermissionDenied => {
                CommandError::Io { what: format!("metrics cannot be served at `{address}`"), source: error }
            }
            _ => CommandError::Usage {
                message: format!("metrics cannot be served at `{address}`: {error}"),
                hint: Some("--metrics takes an address of this machine and a port, such as 127.0.0.1:9464".to_owned()),
            },
        };
        let socket = TcpListener::bind(address).await.map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        Ok(Self { socket, address })
    }

    /// The address metrics are read at.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Answers, until aborted.
    pub(crate) fn serve(self, metrics: Arc<Metrics>, queue: Arc<Queue>) -> AbortHandle {
        let serving = tokio::spawn(async move {
            loop {
                // Out of file handles, for one: there may be some a moment later.
                let Ok((mut stream, _)) = self.socket.accept().await else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (metrics, queue) = (Arc::clone(&metrics), Arc::clone(&queue));
                tokio::spawn(async move {
                    // A client that leaves early is its own business.
                    let _ = tokio::time::timeout(PATIENCE, answer(&mut stream, &metrics, &queue)).await;
                });
            }
        });
        serving.abort_handle()
    }
}

async fn answer(stream: &mut TcpStream, metrics: &Metrics, queue: &Queue) -> std::io::Result<()> {
    let (status, kind, body) = match request(stream).await? {
        Some((method, _)) if method != "GET" => ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()),
        Some((_, path)) if path.split('?').next() == Some("/metrics") => {
            let waiting = tokio::time::timeout(QUEUE_PATIENCE, queue.waiting()).await;
            ("200 OK", CONTENT_TYPE, metrics.text(waiting.ok().and_then(Result::ok)))
        }
        Some(_) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
        None => ("400 Bad Request", "text/plain", "this is no HTTP request\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Reads a request's method and path; none if it is no HTTP, or too long.
async fn request(stream: &mut TcpStream) -> std::io::Result<Option<(String, String)>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut bytes).await? == 0 || bytes.len() > REQUEST_BYTES {
            return Ok(None);
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Partial) => {}
            Ok(httparse::Status::Complete(_)) => {
                return Ok(request.method.zip(request.path).map(|(method, path)| (method.to_owned(), path.to_owned())));
            }
            Err(_) => return Ok(None),
        }
    }
}
