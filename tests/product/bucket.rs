//! A small S3 in this process, for what a real server does not do when asked: listings in pages of any size, objects
//! with given times and tags, requests that fail. One bucket, `b`; signatures are not looked at.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bucket, served as long as the process lives.
pub(crate) struct Bucket {
    state: Arc<Mutex<State>>,
    endpoint: String,
}

#[derive(Clone)]
struct Object {
    bytes: Arc<Vec<u8>>,
    tag: String,
    modified: String,
}

/// An upload in parts that is neither completed nor aborted.
struct Upload {
    key: String,
    parts: BTreeMap<u32, Vec<u8>>,
}

type Fault = Box<dyn FnMut(&str) -> Option<u16> + Send>;

struct State {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
    /// Keys of a page of a listing.
    page: usize,
    /// Whether every other page is empty, and keys come last to first.
    odd: bool,
    /// What was asked for: `GET key`, `LIST page`, `PUT key`, `PART number`, `COMPLETE key`.
    requests: Vec<String>,
    fault: Fault,
    made: u64,
}

impl Bucket {
    /// An empty bucket.
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (objects, uploads, requests) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let fault: Fault = Box::new(|_| None);
        let state = State { objects, uploads, page: 1000, odd: false, requests, fault, made: 0 };
        let state = Arc::new(Mutex::new(state));
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let served = Arc::clone(&served);
                std::thread::spawn(move || serve(&served, connection));
            }
        });
        Self { state, endpoint }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The command, with this as its S3.
    pub(crate) fn of(&self, mut command: Command) -> Command {
        command
            .env("AWS_ENDPOINT_URL", &self.endpoint)
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    /// Puts an object there.
    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        let mut state = self.state();
        let object = state.object(bytes.to_vec());
        state.objects.insert(key.to_owned(), object);
    }

    /// Puts an object there that is listed with this tag and time.
    pub(crate) fn put_as(&self, key: &str, bytes: &[u8], tag: &str, modified: &str) {
        let object =
            Object { bytes: Arc::new(bytes.to_vec()), tag: format!("\"{tag}\""), modified: modified.to_owned() };
        self.state().objects.insert(key.to_owned(), object);
    }

    /// Lists this many keys a page; `odd` lists from last to first with every other page empty.
    pub(crate) fn list_by(&self, page: usize, odd: bool) {
        let mut state = self.state();
        (state.page, state.odd) = (page, odd);
    }

    /// Answers requests with an error where `fault` gives one.
    pub(crate) fn fail(&self, fault: impl FnMut(&str) -> Option<u16> + Send + 'static) {
        self.state().fault = Box::new(fault);
    }

    /// What was asked for since this was last asked.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }

    /// The keys of all objects.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    /// Keys of uploads that were begun and neither completed nor aborted.
    pub(crate) fn open_uploads(&self) -> Vec<String> {
        self.state().uploads.values().map(|upload| upload.key.clone()).collect()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came over a connection.
struct Request {
    method: String,
    key: String,
    query: HashMap<String, String>,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn of(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }
    fn error(status: u16, code: &str) -> Self {
        Self::of(status, format!("<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>"))
    }
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

fn serve(state: &Mutex<State>, connection: TcpStream) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let mut writer = connection;
    while let Some(request) = read(&mut reader, &mut writer) {
        let head = request.method == "HEAD";
        let answer = lock(state).answer(request);
        let mut text = format!("HTTP/1.1 {} X\r\ncontent-length: {}\r\n", answer.status, answer.body.len());
        for (name, value) in &answer.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        if !head {
            bytes.extend(answer.body);
        }
        if writer.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>, writer: &mut TcpStream) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    if headers.contains_key("expect") {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
    // Keys are percent-encoded; a plus stands for itself.
    let key = url::form_urlencoded::parse(key.replace('+', "%2B").as_bytes()).next().map(|(key, _)| key.into_owned());
    Some(Request { method, key: key.unwrap_or_default(), query, headers, body })
}

impl State {
    fn object(&mut self, bytes: Vec<u8>) -> Object {
        self.made += 1;
        let mut hash = DefaultHasher::new();
        bytes.hash(&mut hash);
        let modified = format!("2025-08-01T10:{:02}:{:02}.000Z", self.made / 60 % 60, self.made % 60);
        Object { bytes: Arc::new(bytes), tag: format!("\"{:016x}\"", hash.finish()), modified }
    }

    fn answer(&mut self, request: Request) -> Answer {
        let Request { method, key, query, .. } = &request;
        let asked = match (method.as_str(), query.get("partNumber"), query.contains_key("uploadId")) {
            ("GET", ..) if query.contains_key("list-type") => format!("LIST {}", page_of(query).1 + 1),
            ("PUT", Some(number), _) => format!("PART {number}"),
            ("POST", _, true) => format!("COMPLETE {key}"),
            (method, ..) => format!("{method} {key}"),
        };
        self.requests.push(asked.clone());
        if let Some(status) = (self.fault)(&asked) {
            let code = if status == 403 { "AccessDenied" } else { "InternalError" };
            return Answer::error(status, code);
        }
        match (method.as_str(), key.as_str()) {
            ("GET", "") if query.contains_key("uploads") => {
                let upload = |(id, upload): (&String, &Upload)| {
                    format!("<Upload><Key>{}</Key><UploadId>{id}</UploadId></Upload>", upload.key)
                };
                let uploads: String = self.uploads.iter().map(upload).collect();
                Answer::of(200, format!("<ListMultipartUploadsResult>{uploads}</ListMultipartUploadsResult>"))
            }
            ("GET", "") => self.list(query),
            ("HEAD", "") => Answer::of(200, ""),
            ("POST", "") => {
                for key in between(&String::from_utf8_lossy(&request.body), "<Key>", "</Key>") {
                    self.objects.remove(&key);
                }
                Answer::of(200, "<DeleteResult></DeleteResult>")
            }
            ("GET" | "HEAD", key) => match self.objects.get(key) {
                Some(object) => get(object, &request.headers),
                None => Answer::error(404, "NoSuchKey"),
            },
            ("PUT", key) => match query.get("uploadId") {
                Some(upload) => self.part(upload, &query["partNumber"], request.body.clone()),
                None => self.write(key, request.body.clone(), &request.headers),
            },
            ("POST", key) => match query.get("uploadId").cloned() {
                Some(upload) => self.complete(&upload, &request),
                None => {
                    self.made += 1;
                    let id = format!("u{}", self.made);
                    self.uploads.insert(id.clone(), Upload { key: key.to_owned(), parts: BTreeMap::new() });
                    let body = format!("<UploadId>{id}</UploadId><Key>{key}</Key><Bucket>b</Bucket>");
                    Answer::of(200, format!("<InitiateMultipartUploadResult>{body}</InitiateMultipartUploadResult>"))
                }
            },
            ("DELETE", key) => {
                match query.get("uploadId") {
                    Some(upload) => self.uploads.remove(upload).is_some(),
                    None => self.objects.remove(key).is_some(),
                };
                Answer::of(204, "")
            }
            _ => Answer::error(501, "NotImplemented"),
        }
    }

    fn list(&self, query: &HashMap<String, String>) -> Answer {
        let get = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
        let (prefix, delimiter) = (get("prefix"), get("delimiter"));
        let mut entries: Vec<(String, Option<&Object>)> = Vec::new();
        for (key, object) in &self.objects {
            let Some(rest) = key.strip_prefix(prefix).filter(|_| key.as_str() > get("start-after")) else { continue };
            let folder = if delimiter.is_empty() { None } else { rest.find(delimiter) };
            let entry = match folder {
                Some(end) => (format!("{prefix}{}", &rest[..=end]), None),
                None => (key.clone(), Some(object)),
            };
            if entries.last().is_none_or(|last| last.0 != entry.0) {
                entries.push(entry);
            }
        }
        if self.odd {
            entries.reverse();
        }
        let (from, page) = page_of(query);
        let most = get("max-keys").parse().unwrap_or(1000).min(self.page);
        let to = if self.odd && page % 2 == 1 { from } else { entries.len().min(from + most) };
        let mut body = format!("<KeyCount>{}</KeyCount>", to - from);
        if to < entries.len() {
            let next = format!("{to}.{}", page + 1);
            body.push_str(&format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>"
            ));
        } else {
            body.push_str("<IsTruncated>false</IsTruncated>");
        }
        for (key, object) in &entries[from..to] {
            let key = key.replace('&', "&amp;").replace('<', "&lt;");
            body.push_str(&match object {
                None => format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"),
                Some(object) => format!(
                    "<Contents><Key>{key}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
                    object.modified,
                    object.tag.replace('"', "&quot;"),
                    object.bytes.len()
                ),
            });
        }
        Answer::of(200, format!("<ListBucketResult>{body}</ListBucketResult>"))
    }

    fn write(&mut self, key: &str, bytes: Vec<u8>, headers: &HashMap<String, String>) -> Answer {
        let bytes = match headers.get("x-amz-copy-source") {
            Some(from) => {
                let from = from.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
                match self.objects.get(from) {
                    Some(object) => object.bytes.to_vec(),
                    None => return Answer::error(404, "NoSuchKey"),
                }
            }
            None => bytes,
        };
        let stands = self.objects.get(key);
        let refused = match (headers.get("if-none-match"), headers.get("if-match")) {
            (Some(_), _) => stands.is_some(),
            (None, Some(tag)) => stands.is_none_or(|object| object.tag != *tag),
            (None, None) => false,
        };
        if refused {
            return Answer::error(412, "PreconditionFailed");
        }
        let object = self.object(bytes);
        let tag = object.tag.clone();
        self.objects.insert(key.to_owned(), object);
        Answer::of(200, "<CopyObjectResult></CopyObjectResult>").with("etag", tag)
    }

    fn part(&mut self, upload: &str, number: &str, bytes: Vec<u8>) -> Answer {
        let Some(upload) = self.uploads.get_mut(upload) else { return Answer::error(404, "NoSuchUpload") };
        upload.parts.insert(number.parse().unwrap(), bytes);
        Answer::of(200, "").with("etag", format!("\"part{number}\""))
    }

    fn complete(&mut self, id: &str, request: &Request) -> Answer {
        let Some(upload) = self.uploads.remove(id) else { return Answer::error(404, "NoSuchUpload") };
        let named = between(&String::from_utf8_lossy(&request.body), "<PartNumber>", "</PartNumber>");
        let bytes = named.iter().flat_map(|number| upload.parts[&number.parse::<u32>().unwrap()].clone()).collect();
        let answer = self.write(&upload.key, bytes, &request.headers);
        if answer.status != 200 {
            return answer;
        }
        let tag = self.objects[&upload.key].tag.replace('"', "&quot;");
        let body = format!("<Key>{}</Key><Bucket>b</Bucket><ETag>{tag}</ETag>", upload.key);
        Answer::of(200, format!("<CompleteMultipartUploadResult>{body}</CompleteMultipartUploadResult>"))
    }
}

/// Where a page of a listing begins, and which it is, from 0.
fn page_of(query: &HashMap<String, String>) -> (usize, usize) {
    let token = query.get("continuation-token").and_then(|token| token.split_once('.'));
    token.map_or((0, 0), |(from, page)| (from.parse().unwrap(), page.parse().unwrap()))
}

fn between(text: &str, open: &str, close: &str) -> Vec<String> {
    let parts = text.split(open).skip(1).filter_map(|part| part.split_once(close));
    parts.map(|(inner, _)| inner.replace("&lt;", "<").replace("&amp;", "&")).collect()
}

fn get(object: &Object, headers: &HashMap<String, String>) -> Answer {
    if headers.get("if-match").is_some_and(|tag| *tag != object.tag) {
        return Answer::error(412, "PreconditionFailed");
    }
    let all = object.bytes.len();
    let range = headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let (from, to) = match range {
        None => (0, all),
        Some(("", last)) => (all.saturating_sub(last.parse().unwrap()), all),
        Some((from, "")) => (from.parse().unwrap(), all),
        Some((from, to)) => (from.parse().unwrap(), all.min(to.parse::<usize>().unwrap() + 1)),
    };
    if from > to {
        return Answer::error(416, "InvalidRange");
    }
    let answer = Answer::of(if range.is_some() { 206 } else { 200 }, &object.bytes[from..to]);
    let answer = answer.with("etag", &object.tag).with("last-modified", "Fri, 01 Aug 2025 10:00:00 GMT");
    match range {
        Some(_) => answer.with("content-range", format!("bytes {from}-{}/{all}", to.saturating_sub(1))),
        None => answer,
    }
}
