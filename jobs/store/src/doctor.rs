//! Examines a place for a store: what it can do, what is missing, and how to mend it.
//!
//! The *create-once probe* tries the one thing everything rests on: of several writers that create the same object, one
//! and only one must succeed, and its bytes must be what is read.

use std::sync::Arc;

use aws_sdk_s3::Client;
use aws_sdk_s3::types::{
    AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, BucketLocationConstraint, BucketVersioningStatus,
    CreateBucketConfiguration, ExpirationStatus, LifecycleRule, LifecycleRuleFilter,
};
use chrono::{DateTime, TimeDelta, Utc};
use futures::future::join_all;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use ulid::Ulid;

use crate::error::{StoreError, StoreErrorKind};
use crate::location::Location;
use crate::paths::PROBE;
use crate::s3::{S3, abort_upload, sdk_error, uploads};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Good,
    /// Works, and could be better.
    Warning,
    /// Does not work.
    Broken,
}

/// Something that was examined.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was examined.
    pub about: &'static str,
    /// How it is.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// What to do about it.
    pub mend: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn good(about: &'static str, text: impl Into<String>) -> Self {
        Self { about, level: Level::Good, text: text.into(), mend: None }
    }

    /// Works, and could be better.
    pub fn warning(about: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { about, level: Level::Warning, text: text.into(), mend: Some(mend.into()) }
    }

    /// Does not work.
    pub fn broken(about: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { about, level: Level::Broken, text: text.into(), mend: Some(mend.into()) }
    }

    fn error(about: &'static str, error: &StoreError) -> Self {
        Self { about, level: Level::Broken, text: error.chain(), mend: error.hint.clone() }
    }
}

/// What the create-once probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOnce {
    /// One writer and only one succeeds.
    Kept,
    /// A second writer replaces what the first wrote.
    Ignored,
}

/// Writers that race for one object.
const RACERS: usize = 8;
/// Rounds of the race.
const ROUNDS: usize = 3;
/// Clocks further apart than this are worth a word, in seconds.
const CLOCKS_APART: i64 = 60;
/// Days after which an unfinished upload is cleared away.
const UPLOAD_DAYS: i32 = 3;
/// Name of the rule that does it.
const RULE: &str = "coa-abort-unfinished-uploads";

/// Examines a place. With `mend`, what can be mended safely is: a missing bucket is created, a rule that clears away
/// unfinished uploads is added to those there are, and unfinished uploads older than that are aborted.
pub async fn examine(address: &str, mend: bool) -> Result<Vec<Finding>, StoreError> {
    let location = Location::parse(address)?;
    let mut found = Vec::new();
    if let Location::S3 { bucket, prefix } = &location {
        let s3 = match S3::connect().await {
            Ok(s3) => s3,
            Err(error) => return Ok(vec![Finding::error("credentials", &error)]),
        };
        match s3.check_credentials().await {
            Ok(()) => found.push(Finding::good("credentials", format!("found; region {}", s3.region()))),
            Err(error) => {
                found.push(Finding::error("credentials", &error));
                return Ok(found);
            }
        }
        let bucket =
            Bucket { client: s3.client(), region: s3.region(), name: bucket, prefix: prefix.trim_matches('/') };
        match bucket.exists(mend).await {
            Ok(finding) => found.push(finding),
            Err(error) => {
                found.push(Finding::error("bucket", &error));
                return Ok(found);
            }
        }
        if found.iter().any(|finding| finding.level == Level::Broken) {
            return Ok(found);
        }
        found.push(bucket.versioning().await);
        found.push(bucket.object_lock().await);
        found.push(bucket.upload_rule(mend).await);
        found.push(bucket.uploads(mend).await);
    }
    match location.open(mend).await {
        Ok((root, prefix)) => found.extend(probe(&root, &prefix, &location).await),
        Err(error) if error.kind == StoreErrorKind::NotFound => {
            found.push(Finding::good("store", "does not exist yet; `coa run` makes it"));
        }
        Err(error) => found.push(Finding::error("store", &error)),
    }
    Ok(found)
}

async fn probe(root: &Arc<dyn ObjectStore>, prefix: &Path, location: &Location) -> Vec<Finding> {
    let mut found = Vec::new();
    match create_once(root, prefix).await {
        Ok(CreateOnce::Kept) => {
            found.push(Finding::good("create-once", "of several writers of one object, one and only one succeeds"));
        }
        Ok(CreateOnce::Ignored) => found.push(Finding::broken(
            "create-once",
            "a second writer replaces what the first wrote: If-None-Match is ignored",
            "use this store with one process only, or a server that keeps conditional writes",
        )),
        Err(error) => {
            found.push(Finding::error("create-once", &StoreError::object("write", location.url().as_str(), error)));
            return found;
        }
    }
    if matches!(location, Location::S3 { .. }) {
        match clock(root, prefix).await {
            Ok(apart) if apart.abs() <= CLOCKS_APART => {
                found.push(Finding::good("clock", format!("within {} s of the store's", apart.abs() + 1)));
            }
            Ok(apart) => found.push(Finding::warning(
                "clock",
                format!("{} s {} the store's", apart.abs(), if apart > 0 { "ahead of" } else { "behind" }),
                "set this machine's clock; times in tables are for people, no decision reads them",
            )),
            Err(error) => {
                found.push(Finding::error("clock", &StoreError::object("read", location.url().as_str(), error)));
            }
        }
    }
    found
}

/// A key of the probe's own.
fn key(prefix: &Path) -> Path {
    prefix.parts().chain([format!("{PROBE}{}", Ulid::new()).as_str().into()]).collect()
}

/// Runs the create-once probe below a prefix; it leaves nothing behind.
pub(crate) async fn create_once(root: &Arc<dyn ObjectStore>, prefix: &Path) -> Result<CreateOnce, object_store::Error> {
    let create = |path: Path, text: String| async move {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match root.put_opts(&path, PutPayload::from(text.into_bytes()), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    };
    for round in 0..=ROUNDS {
        let path = key(prefix);
        // First one after the other, then all at once.
        let created: Vec<Result<bool, object_store::Error>> = match round {
            0 => {
                let first = create(path.clone(), "0".to_owned()).await;
                vec![first, create(path.clone(), "1".to_owned()).await]
            }
            _ => join_all((0..RACERS).map(|racer| create(path.clone(), racer.to_string()))).await,
        };
        let read = match root.get(&path).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        root.delete(&path).await?;
        let created = created.into_iter().collect::<Result<Vec<bool>, _>>()?;
        let read = read?;
        let winners: Vec<usize> = created.iter().enumerate().filter(|(_, won)| **won).map(|(racer, _)| racer).collect();
        // A winner whose answer was lost and whose retry was told "exists" leaves no winner: that is kept, too.
        let kept = match winners[..] {
            [] => round > 0,
            [winner] => read.as_ref() == winner.to_string().as_bytes(),
            _ => false,
        };
        if !kept {
            return Ok(CreateOnce::Ignored);
        }
    }
    Ok(CreateOnce::Kept)
}

/// How many seconds this machine's clock is ahead of the store's.
async fn clock(root: &Arc<dyn ObjectStore>, prefix: &Path) -> Result<i64, object_store::Error> {
    let before = Utc::now();
    let written = store_time(root, prefix).await?;
    let after = Utc::now();
    Ok((before + (after - before) / 2 - written).num_seconds())
}

/// The time by the store's clock: when an object was last modified that is written now.
pub(crate) async fn store_time(
    root: &Arc<dyn ObjectStore>,
    prefix: &Path,
) -> Result<DateTime<Utc>, object_store::Error> {
    let path = key(prefix);
    root.put(&path, PutPayload::from_static(b"clock")).await?;
    let written = root.head(&path).await?.last_modified;
    root.delete(&path).await?;
    Ok(written)
}

/// A bucket, by the AWS tools' client.
struct Bucket<'a> {
    client: &'a Client,
    region: &'a str,
    name: &'a str,
    prefix: &'a str,
}

impl Bucket<'_> {
    async fn exists(&self, mend: bool) -> Result<Finding, StoreError> {
        let uri = format!("s3://{}", self.name);
        let error = match self.client.head_bucket().bucket(self.name).send().await {
            Ok(_) => return Ok(Finding::good("bucket", format!("`{uri}` answers"))),
            Err(error) => error,
        };
        let missing = error.as_service_error().is_some_and(|error| error.is_not_found());
        if !missing {
            return Err(sdk_error("look at", &uri, &error));
        }
        if !mend {
            let how = "`coa doctor --mend` creates it, or name another";
            return Ok(Finding::broken("bucket", format!("there is no `{uri}`"), how));
        }
        // The first region of all must not be named.
        let place = (self.region != "us-east-1").then(|| {
            let region = BucketLocationConstraint::from(self.region);
            CreateBucketConfiguration::builder().location_constraint(region).build()
        });
        let made = self.client.create_bucket().bucket(self.name).set_create_bucket_configuration(place).send().await;
        made.map_err(|error| sdk_error("create", &uri, &error))?;
        Ok(Finding::good("bucket", format!("`{uri}` was created")))
    }

    async fn versioning(&self) -> Finding {
        let about = "versioning";
        match self.client.get_bucket_versioning().bucket(self.name).send().await {
            Ok(found) if found.status() == Some(&BucketVersioningStatus::Enabled) => {
                Finding::good(about, "on: deleted and replaced objects are kept by the server, and cost")
            }
            Ok(_) => Finding::good(about, "off"),
            Err(error) => Finding::good(about, format!("not told ({})", sdk_error("ask", self.name, &error).chain())),
        }
    }

    async fn object_lock(&self) -> Finding {
        let about = "object lock";
        match self.client.get_object_lock_configuration().bucket(self.name).send().await {
            Ok(found) if found.object_lock_configuration().is_some_and(|lock| lock.rule().is_some()) => {
                Finding::warning(
                    about,
                    "objects cannot be deleted for a time",
                    "old checkpoints and collected files stay and cost until then",
                )
            }
            _ => Finding::good(about, "off"),
        }
    }

    /// The rule by which the server clears unfinished uploads away.
    async fn upload_rule(&self, mend: bool) -> Finding {
        let about = "unfinished uploads";
        let found = self.client.get_bucket_lifecycle_configuration().bucket(self.name).send().await;
        let rules: Vec<LifecycleRule> = match found {
            Ok(found) => found.rules().to_vec(),
            Err(error) => match sdk_code(&error).as_str() {
                "NoSuchLifecycleConfiguration" | "NoSuchLifecycle" => Vec::new(),
                _ => {
                    return Finding::warning(
                        about,
                        sdk_error("ask for the rules of", self.name, &error).chain(),
                        "let this user read the bucket's lifecycle rules, or ignore this",
                    );
                }
            },
        };
        let clears = |rule: &&LifecycleRule| rule.abort_incomplete_multipart_upload().is_some();
        if let Some(rule) = rules.iter().find(clears) {
            return Finding::good(about, format!("cleared away by the rule `{}`", rule.id().unwrap_or("without name")));
        }
        let what = "nothing clears away what is left of uploads that were cut off; it costs and is in no listing";
        if !mend {
            return Finding::warning(about, what, "`coa doctor --mend` adds a rule to the bucket");
        }
        let prefix = if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) };
        let rule = LifecycleRule::builder()
            .id(RULE)
            .status(ExpirationStatus::Enabled)
            .filter(LifecycleRuleFilter::builder().prefix(prefix).build())
            .abort_incomplete_multipart_upload(
                AbortIncompleteMultipartUpload::builder().days_after_initiation(UPLOAD_DAYS).build(),
            )
            .build();
        let rules = rule.map(|rule| rules.into_iter().chain([rule]).collect::<Vec<_>>());
        let config = rules.and_then(|rules| BucketLifecycleConfiguration::builder().set_rules(Some(rules)).build());
        let Ok(config) = config else { return Finding::warning(about, what, "add the rule by hand") };
        let put = self.client.put_bucket_lifecycle_configuration().bucket(self.name).lifecycle_configuration(config);
        match put.send().await {
            Ok(_) => {
                Finding::good(about, format!("the rule `{RULE}` was added: cleared away after {UPLOAD_DAYS} days"))
            }
            Err(error) => Finding::warning(
                about,
                sdk_error("add a rule to", self.name, &error).chain(),
                "let somebody who may add a lifecycle rule that aborts incomplete multipart uploads",
            ),
        }
    }

    /// Unfinished uploads there are.
    async fn uploads(&self, mend: bool) -> Finding {
        let about = "uploads";
        let failed = |error: StoreError| {
            Finding::warning(about, error.chain(), "let this user list multipart uploads, or ignore this")
        };
        let old = Utc::now() - TimeDelta::days(UPLOAD_DAYS.into());
        let found = match uploads(self.client, self.name, self.prefix).await {
            Ok(found) => found,
            Err(error) => return failed(error),
        };
        let (all, mut aborted) = (found.len(), 0);
        for upload in found.iter().filter(|upload| mend && upload.was_begun_by(old)) {
            if let Err(error) = abort_upload(self.client, self.name, upload).await {
                return failed(error);
            }
            aborted += 1;
        }
        match (all, aborted) {
            (0, _) => Finding::good(about, "none unfinished"),
            (all, 0) => Finding::good(about, format!("{all} unfinished, at work or cut off")),
            (all, aborted) => {
                Finding::good(about, format!("{all} unfinished, of which {aborted} old ones were aborted"))
            }
        }
    }
}

fn sdk_code<E>(error: &aws_sdk_s3::error::SdkError<E>) -> String
where
    E: aws_sdk_s3::error::ProvideErrorMetadata,
{
    aws_sdk_s3::error::ProvideErrorMetadata::code(error).unwrap_or_default().to_owned()
}

impl crate::store::Store {
    /// Refuses a store in which several processes would overwrite each other's records.
    pub async fn require_create_once(&self) -> Result<(), StoreError> {
        let (root, prefix) = self.root();
        let found = create_once(root, prefix).await;
        match found.map_err(|error| StoreError::object("write", self.url().as_str(), error))? {
            CreateOnce::Kept => Ok(()),
            CreateOnce::Ignored => Err(StoreError::new(
                StoreErrorKind::Address,
                format!("`{}` ignores conditional writes: several processes would overwrite each other", self.url()),
            )
            .hint("use it with one process and no shared queue, or a server that keeps If-None-Match")),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn a_store_that_keeps_conditional_writes_passes_and_is_left_empty() {
        let root: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        assert_eq!(create_once(&root, &Path::from("a/b")).await.unwrap(), CreateOnce::Kept);
        assert!(root.list_with_delimiter(None).await.unwrap().common_prefixes.is_empty());
        assert!(clock(&root, &Path::from("a")).await.unwrap().abs() <= 1);
    }
}
