//! S3: credentials, region and endpoint the way the AWS tools take them, and what the object-store interface has no door
//! for.
//!
//! Credentials come from the environment, a profile, a web identity or instance metadata, in that order; the region and,
//! for S3-compatible servers, the endpoint (`AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_S3` or a profile's `endpoint_url`)
//! likewise. With an endpoint of its own a bucket is addressed by path unless `AWS_VIRTUAL_HOSTED_STYLE_REQUEST` is set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_config::retry::RetryConfig as SdkRetry;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{RequestChecksumCalculation, ResponseChecksumValidation};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_types::service_config::ServiceConfigKey;
use chrono::{DateTime, Utc};
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsCredential, S3ConditionalPut};
use object_store::{BackoffConfig, ClientOptions, CredentialProvider, RetryConfig};
use tokio::runtime::{Handle, Id};

use crate::error::{StoreError, StoreErrorKind};

/// A way to S3.
#[derive(Clone, Debug)]
pub struct S3 {
    client: Client,
    credentials: SharedCredentialsProvider,
    region: String,
    endpoint: Option<String>,
    path_style: bool,
}

/// One for each runtime: connections end with the runtime they were made on.
static CONNECTED: Mutex<Option<HashMap<Id, S3>>> = Mutex::new(None);

const CREDENTIALS_HINT: &str = "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile by AWS_PROFILE, a web \
                                identity, or run where instance metadata gives them";

impl S3 {
    /// The way that this process's environment describes.
    pub async fn connect() -> Result<Self, StoreError> {
        let runtime = Handle::current().id();
        let known = || CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(s3) = known().as_ref().and_then(|known| known.get(&runtime)) {
            return Ok(s3.clone());
        }
        let s3 = Self::load().await?;
        known().get_or_insert_default().insert(runtime, s3.clone());
        Ok(s3)
    }

    async fn load() -> Result<Self, StoreError> {
        let config = aws_config::defaults(BehaviorVersion::latest()).load().await;
        let endpoint = endpoint(&config);
        endpoint.as_deref().map_or(Ok(()), check_endpoint)?;
        let region = match (config.region(), &endpoint) {
            (Some(region), _) => region.to_string(),
            (None, Some(_)) => "us-east-1".to_owned(),
            (None, None) => {
                return Err(StoreError::new(StoreErrorKind::Address, "no AWS region is set")
                    .hint("give AWS_REGION, or `region` in the profile"));
            }
        };
        let credentials = config.credentials_provider().ok_or_else(|| {
            StoreError::new(StoreErrorKind::Denied, "no AWS credentials were found").hint(CREDENTIALS_HINT)
        })?;
        let virtual_hosted = std::env::var("AWS_VIRTUAL_HOSTED_STYLE_REQUEST").is_ok_and(|value| value == "true");
        let path_style = endpoint.is_some() && !virtual_hosted;
        // Checksums only where they are asked for: not every server knows the trailers that carry them.
        let client = aws_sdk_s3::config::Builder::from(&config)
            .region(aws_sdk_s3::config::Region::new(region.clone()))
            .force_path_style(path_style)
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .retry_config(SdkRetry::standard().with_max_attempts(8))
            .build();
        Ok(Self { client: Client::from_conf(client), credentials, region, endpoint, path_style })
    }

    /// The client, for what the object-store interface has no door for.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The server, where it is not AWS.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// The region.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Looks the credentials up.
    pub async fn check_credentials(&self) -> Result<(), StoreError> {
        match self.credentials.provide_credentials().await {
            Ok(_) => Ok(()),
            Err(error) => Err(StoreError::new(StoreErrorKind::Denied, "no AWS credentials can be used")
                .hint(CREDENTIALS_HINT)
                .because(std::io::Error::other(causes(&error)))),
        }
    }

    /// A bucket as an object store.
    pub(crate) fn bucket(&self, bucket: &str) -> Result<AmazonS3, object_store::Error> {
        let retry = RetryConfig {
            max_retries: 12,
            retry_timeout: Duration::from_secs(300),
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(20),
                base: 2.0,
            },
        };
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_timeout(Duration::from_secs(120))
            .with_connect_timeout(Duration::from_secs(10));
        let credentials = Arc::new(Credentials(self.credentials.clone()));
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(&self.region)
            .with_credentials(credentials)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_virtual_hosted_style_request(!self.path_style)
            .with_retry(retry)
            .with_client_options(options);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        builder.build()
    }
}

/// Refuses what is no address of a server: the clients would panic.
fn check_endpoint(endpoint: &str) -> Result<(), StoreError> {
    match url::Url::parse(endpoint) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(()),
        _ => Err(StoreError::new(StoreErrorKind::Address, format!("the S3 endpoint `{endpoint}` is no address"))
            .hint("write AWS_ENDPOINT_URL with its scheme, such as http://localhost:9000; unset it for AWS itself")),
    }
}

fn endpoint(config: &SdkConfig) -> Option<String> {
    let key = ServiceConfigKey::builder().service_id("S3").env("AWS_ENDPOINT_URL").profile("endpoint_url").build();
    let own = config.service_config().zip(key.ok()).and_then(|(services, key)| services.load_config(key));
    own.or_else(|| config.endpoint_url().map(str::to_owned)).map(|endpoint| endpoint.trim_end_matches('/').to_owned())
}

/// The AWS tools' credentials, for the object store.
#[derive(Debug)]
struct Credentials(SharedCredentialsProvider);

#[async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let found = self.0.provide_credentials().await.map_err(|error| object_store::Error::Unauthenticated {
            path: String::new(),
            source: causes(&error).into(),
        })?;
        Ok(Arc::new(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        }))
    }
}

/// An error of the SDK about `uri`.
pub(crate) fn sdk_error<E>(doing: &str, uri: &str, error: &SdkError<E>) -> StoreError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let status = error.raw_response().map(|response| response.status().as_u16());
    // What has no body, as the answer to HEAD, has no code.
    let code = match (error.code(), status) {
        (Some(code), _) => code,
        (None, Some(403)) => "AccessDenied",
        (None, Some(404)) => "NotFound",
        _ => "",
    };
    let (kind, hint) = match code {
        "NoSuchKey" | "NotFound" => (StoreErrorKind::NotFound, None),
        "NoSuchBucket" => (StoreErrorKind::NotFound, Some("create the bucket, or name another")),
        "AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" => {
            (StoreErrorKind::Denied, Some("check the credentials and the rights of this user"))
        }
        "RequestTimeTooSkewed" => (StoreErrorKind::Denied, Some(CLOCK_HINT)),
        _ => (StoreErrorKind::Unreachable, Some("check that the store answers at this address")),
    };
    let why = match (code, error.message()) {
        ("", _) => causes(error),
        (code, None) => code.to_owned(),
        (code, Some(message)) => format!("{code}: {message}"),
    };
    let mut converted = StoreError::new(kind, format!("cannot {doing} `{uri}`")).because(std::io::Error::other(why));
    converted.hint = hint.map(str::to_owned);
    converted
}

/// What to do about a server that finds the time of a request wrong.
pub(crate) const CLOCK_HINT: &str = "set this machine's clock: the server refuses requests of another time";

/// The causes of an error, in words only: its debug form has whole requests and answers.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        let part = error.to_string();
        let part = part.lines().next().unwrap_or_default();
        if !part.is_empty() && !text.contains(part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.extend(part.chars().take(200));
        }
        cause = error.source();
    }
    text
}

/// An upload in parts that was begun and not completed.
#[derive(Clone, Debug)]
pub(crate) struct Upload {
    pub(crate) key: String,
    pub(crate) id: String,
    /// None where the server does not say.
    begun: Option<DateTime<Utc>>,
}

impl Upload {
    /// Whether it is known to have been begun by a time.
    pub(crate) fn was_begun_by(&self, time: DateTime<Utc>) -> bool {
        self.begun.is_some_and(|begun| begun <= time)
    }
}

/// The unfinished uploads whose keys begin with a prefix.
pub(crate) async fn uploads(client: &Client, bucket: &str, prefix: &str) -> Result<Vec<Upload>, StoreError> {
    let mut found = Vec::new();
    let (mut key, mut id): (Option<String>, Option<String>) = (None, None);
    loop {
        let page = client.list_multipart_uploads().bucket(bucket).prefix(prefix);
        let page = page.set_key_marker(key.take()).set_upload_id_marker(id.take()).send().await;
        let page = page.map_err(|error| sdk_error("list the uploads of", bucket, &error))?;
        for upload in page.uploads() {
            let begun = upload.initiated().and_then(|begun| DateTime::from_timestamp(begun.secs(), 0));
            let (Some(key), Some(id)) = (upload.key(), upload.upload_id()) else { continue };
            // Not every server looks at the prefix.
            if key.starts_with(prefix) {
                found.push(Upload { key: key.to_owned(), id: id.to_owned(), begun });
            }
        }
        if page.is_truncated() != Some(true) {
            return Ok(found);
        }
        key = page.next_key_marker().map(str::to_owned);
        id = page.next_upload_id_marker().map(str::to_owned);
    }
}

/// Gives an unfinished upload up; one that is gone already is well.
pub(crate) async fn abort_upload(client: &Client, bucket: &str, upload: &Upload) -> Result<(), StoreError> {
    let abort = client.abort_multipart_upload().bucket(bucket).key(&upload.key).upload_id(&upload.id);
    match abort.send().await {
        Err(error) if error.code() != Some("NoSuchUpload") => Err(sdk_error("abort an upload of", bucket, &error)),
        _ => Ok(()),
    }
}
