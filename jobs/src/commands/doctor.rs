//! `coa doctor`: whether this machine, a store and a queue can do what pipelines need, and how to mend what cannot.

use std::path::Path;

use clap::Args;
use store::doctor::{Finding, Level, examine};

use super::print;
use crate::error::CommandError;
use crate::queue::{Queue, QueueAddress};

/// See the module documentation.
#[derive(Args)]
pub(super) struct Doctor {
    /// A store to examine: a folder, file:///… or s3://….
    #[arg(long, env = "COA_STORE", value_name = "URL")]
    store: Option<String>,
    /// A job queue to examine.
    #[arg(long, env = "COA_QUEUE", value_name = "URL")]
    queue: Option<String>,
    /// Mend what can be mended safely: create the bucket or folder, have unfinished uploads cleared away.
    #[arg(long, requires = "store")]
    mend: bool,
}

/// Less free disk than this is worth a word.
const LITTLE: u64 = 5 << 30;

impl Doctor {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let mut found = Vec::new();
        found.push(disk("temporary files", &std::env::temp_dir()));
        found.push(sandbox().await);
        found.push(libtorch());
        if let Some(store) = &self.store {
            found.extend(examine(store, self.mend).await?);
            if let Ok(path) = std::path::absolute(store)
                && !store.contains("://")
                && path.exists()
            {
                found.push(disk("store", &path));
            }
        }
        if let Some(queue) = &self.queue {
            found.push(job_queue(queue).await);
        }
        print(&found.iter().map(line).collect::<Vec<_>>().join("\n"));
        match found.iter().filter(|finding| finding.level == Level::Broken).count() {
            0 => Ok(()),
            1 => Err(CommandError::Failed("1 thing is broken".to_owned())),
            broken => Err(CommandError::Failed(format!("{broken} things are broken"))),
        }
    }
}

fn line(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Good => "ok",
        Level::Warning => "warning",
        Level::Broken => "BROKEN",
    };
    let mut text = format!("{level:<8} {:<18} {}", finding.about, finding.text);
    if let Some(mend) = &finding.mend {
        text.push_str(&format!("\n{:<27} hint: {mend}", ""));
    }
    text
}

fn disk(about: &'static str, path: &Path) -> Finding {
    let shown = path.display();
    let free = match rustix::fs::statvfs(path) {
        Ok(facts) => facts.f_bavail * facts.f_frsize,
        Err(error) => {
            return Finding::broken(about, format!("`{shown}`: {error}"), "let TMPDIR name a folder there is");
        }
    };
    let text = format!("{:.1} GiB free at `{shown}`", free as f64 / (1_u64 << 30) as f64);
    match free < LITTLE {
        true => Finding::warning(about, text, "free some, or use another place; temporary files go where TMPDIR says"),
        false => Finding::good(about, text),
    }
}

async fn sandbox() -> Finding {
    let proved = tokio::task::spawn_blocking(operators::toolbox::prove_sandbox).await;
    match proved {
        Ok(Ok(version)) => Finding::good("sandbox", format!("holds; Python {version}")),
        Ok(Err(error)) => Finding::broken("sandbox", error.chain(), error.hint.clone().unwrap_or_default()),
        Err(error) => Finding::broken("sandbox", error.to_string(), "try again"),
    }
}

#[cfg(feature = "train")]
fn libtorch() -> Finding {
    match operators_train::prove_libtorch() {
        Ok(place) => Finding::good("libtorch", format!("works, {place}")),
        Err(error) => Finding::broken("libtorch", error.chain(), "`make tools` fetches the libtorch that fits"),
    }
}

#[cfg(not(feature = "train"))]
fn libtorch() -> Finding {
    Finding::warning("libtorch", "this build has no training operators", "`make coa` builds them")
}

async fn job_queue(address: &str) -> Finding {
    let address = QueueAddress::parse(address);
    match Queue::open(&address).await {
        Ok(queue) => {
            queue.close().await;
            Finding::good("queue", format!("`{address}` answers"))
        }
        Err(error) => {
            Finding::broken("queue", error.to_string(), "start the server, or check the address and PGPASSWORD")
        }
    }
}
