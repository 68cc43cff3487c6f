//! Sends spans to an OpenTelemetry collector: OTLP over HTTP, as Protobuf.
//!
//! Everything is set with OpenTelemetry's own variables, above all `OTEL_EXPORTER_OTLP_ENDPOINT`; without it, or
//! `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, nothing is sent. Spans are gathered and sent by a thread of their own, so work
//! never waits for a collector; one that is out of reach is told of once, and costs spans, never a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry::{Key, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;

/// Where spans go, by what stands first.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// How long the spans that are left may take at the end of a process.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(5);

/// Spans on their way to a collector.
pub(super) struct Export {
    pub(super) provider: SdkTracerProvider,
    trouble: Trouble,
}

/// Whether it was said that the collector does not take spans: once is enough.
#[derive(Clone, Debug, Default)]
struct Trouble(Arc<AtomicBool>);

impl Trouble {
    fn tell(&self, collector: &str, error: &str) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(collector, error, "the collector does not take spans; some will be missing");
        }
    }
}

/// Begins to export, with tasks on this runtime; nothing where no collector is named.
pub(super) fn begin(runtime: &Handle) -> Result<Option<Export>, String> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let endpoints: Vec<String> = ENDPOINTS.into_iter().filter_map(set).collect();
    let disabled = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if endpoints.is_empty() || disabled {
        return Ok(None);
    }
    let timeout = set("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT").or_else(|| set("OTEL_EXPORTER_OTLP_TIMEOUT"));
    let timeout = timeout.and_then(|text| text.parse().ok()).map_or(Duration::from_secs(10), Duration::from_millis);
    let client = reqwest::Client::builder().timeout(timeout).build().map_err(|error| chain(&error))?;
    let trouble = Trouble::default();
    let client = Client { client, runtime: runtime.clone(), trouble: trouble.clone() };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(client)
        .build()
        // An address may hold a secret.
        .map_err(|error| endpoints.iter().fold(chain(&error), |text, endpoint| text.replace(endpoint.as_str(), "…")))?;
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
    Ok(Some(Export { provider, trouble }))
}

/// What the environment says of this service; `coa` where it does not name it.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let found = Resource::builder().with_attribute(version.clone()).build();
    let named = found.get(&Key::from_static_str("service.name"));
    match named.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        true => found,
        false => Resource::builder().with_attribute(version).with_service_name("coa").build(),
    }
}

impl Export {
    /// Sends what is left.
    pub(super) fn finish(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_WORDS) {
            self.trouble.tell("", &chain(&error));
        }
    }
}

/// The program's one HTTP client, as the exporter's thread uses it: requests are made on the runtime.
#[derive(Debug)]
struct Client {
    client: reqwest::Client,
    runtime: Handle,
    trouble: Trouble,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // Without what stands before the host or after the path: it may be a secret.
        let port = request.uri().port_u16().map_or_else(String::new, |port| format!(":{port}"));
        let to = format!("{}{port}{}", request.uri().host().unwrap_or_default(), request.uri().path());
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let response = client.execute(request.try_into()?).await?;
            let (status, headers) = (response.status(), response.headers().clone());
            let mut answer = Response::new(response.bytes().await?);
            (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
            Ok::<_, reqwest::Error>(answer)
        });
        match sent.await? {
            Ok(answer) => {
                if !answer.status().is_success() {
                    self.trouble.tell(&to, &answer.status().to_string());
                }
                Ok(answer)
            }
            Err(error) => {
                let error = error.without_url();
                self.trouble.tell(&to, &chain(&error));
                Err(error.into())
            }
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
