//! A stand-in for an OpenTelemetry collector: takes spans over HTTP and keeps them. It is no collector, but reads what
//! one reads: OTLP's own Protobuf messages.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prost::Message;

use crate::coa::Place;

/// What was sent to it.
#[derive(Clone, Default)]
pub(super) struct Collector {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// A request as it came.
#[derive(Clone)]
pub(super) struct Request {
    /// Its first line and headers, in small letters.
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

/// A span, with what tests ask for.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) trace: Vec<u8>,
    pub(super) id: Vec<u8>,
    pub(super) parent: Vec<u8>,
    pub(super) name: String,
    pub(super) fields: BTreeMap<String, String>,
    /// 1 is fine, 2 an error.
    pub(super) status: i32,
    pub(super) status_message: String,
    pub(super) events: Vec<(String, BTreeMap<String, String>)>,
    pub(super) resource: BTreeMap<String, String>,
    pub(super) nanoseconds: (u64, u64),
}

impl Span {
    pub(super) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

impl Collector {
    /// Starts one.
    pub(super) fn start() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let found = Self { port: socket.local_addr().expect("an address").port(), requests: Arc::default() };
        let requests = Arc::clone(&found.requests);
        std::thread::spawn(move || {
            for stream in socket.incoming().flatten() {
                if let Some(request) = receive(&stream) {
                    requests.lock().unwrap().push(request);
                    let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                }
            }
        });
        found
    }

    /// The commands of a place send their spans here from now on.
    pub(super) fn is_used_by(&self, place: &mut Place) {
        place.set("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{}", self.port));
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// All spans that have come.
    pub(super) fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for request in self.requests() {
            let message = ExportTraceServiceRequest::decode(request.body.as_slice()).expect("OTLP");
            for from in message.resource_spans {
                let resource = fields(&from.resource.map(|resource| resource.attributes).unwrap_or_default());
                for span in from.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                    let status = span.status.unwrap_or_default();
                    spans.push(Span {
                        trace: span.trace_id,
                        id: span.span_id,
                        parent: span.parent_span_id,
                        name: span.name,
                        fields: fields(&span.attributes),
                        status: status.code,
                        status_message: status.message,
                        events: span.events.into_iter().map(|event| (event.name, fields(&event.attributes))).collect(),
                        resource: resource.clone(),
                        nanoseconds: (span.start_time_unix_nano, span.end_time_unix_nano),
                    });
                }
            }
        }
        spans
    }

    /// Spans of this name.
    pub(super) fn named(&self, name: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.name == name).collect()
    }
}

fn receive(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?.trim().parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { head, body })
}

fn fields(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.clone()) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|field| (field.key.clone(), text(&field.value))).collect()
}
