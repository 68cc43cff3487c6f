//! Where a queue is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use apalis_postgres::PostgresStorage;
use apalis_sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteStorage};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use store::Store;

use super::Db;
use crate::error::CommandError;

/// A queue's database.
#[derive(Clone, Debug)]
pub(crate) enum QueueAddress {
    /// A file: one machine.
    Sqlite(PathBuf),
    /// A server: many machines. May hold a password: never shown.
    Postgres(String),
}

impl QueueAddress {
    /// `postgres://…`, or the path of an SQLite database.
    pub(crate) fn parse(address: &str) -> Self {
        if address.starts_with("postgres://") || address.starts_with("postgresql://") {
            return Self::Postgres(address.to_owned());
        }
        Self::Sqlite(Path::new(address.strip_prefix("sqlite://").unwrap_or(address)).to_owned())
    }

    /// Where a store's queue is if nobody says otherwise: beside a local store, in the user's state folder for others.
    pub(crate) fn of(store: &Store) -> Self {
        Self::Sqlite(match store.local() {
            Some(folder) => folder.join("queue").join("jobs.sqlite"),
            None => {
                let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(std::env::temp_dir);
                let state = std::env::var_os("XDG_STATE_HOME").map_or_else(|| home.join(".local/state"), Into::into);
                let which = format!("{}{}", store.url(), store.id().unwrap_or_default());
                let name = format!("{:016x}.sqlite", xxhash_rust::xxh3::xxh3_64(which.as_bytes()));
                state.join("coa").join(name)
            }
        })
    }

    /// Whether workers on other machines can take its jobs.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    pub(super) async fn connect(&self) -> Result<Db, CommandError> {
        let broken = |error: &dyn fmt::Display| CommandError::Queue(format!("`{self}`: {error}"));
        match self {
            Self::Sqlite(path) => {
                if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                    std::fs::create_dir_all(folder).map_err(|error| broken(&error))?;
                }
                // Processes that start at the same moment make the tables one after the other.
                let turn = std::fs::File::create(path.with_extension("lock")).map_err(|error| broken(&error))?;
                turn.lock().map_err(|error| broken(&error))?;
                // Set here and not by apalis' set-up, which turns durability off on one connection.
                let options = SqliteConnectOptions::new()
                    .filename(path)
                    .create_if_missing(true)
                    .pragma("journal_mode", "WAL")
                    .pragma("synchronous", "NORMAL")
                    .busy_timeout(Duration::from_secs(30));
                match open_sqlite(options.clone()).await {
                    Err(error) if is_damaged(&error) => {
                        // Nothing is lost with it; kept for whoever wants to know.
                        let aside = path.with_extension(format!("damaged-{}", ulid::Ulid::new()));
                        std::fs::rename(path, &aside).map_err(|error| broken(&error))?;
                        tracing::warn!(aside = %aside.display(), "the job queue's database was damaged and is made anew");
                        open_sqlite(options).await.map_err(|error| broken(&error))
                    }
                    opened => opened.map_err(|error| broken(&error)),
                }
            }
            Self::Postgres(url) => {
                // A password that is not in the address comes from PGPASSWORD or ~/.pgpass.
                let options = PgConnectOptions::from_str(url).map_err(|error| broken(&error))?.application_name("coa");
                // Told at once what is wrong: a pool tries again until its time is up, and tells nothing.
                let first = PgConnection::connect_with(&options).await.map_err(|error| broken(&error))?;
                first.close().await.map_err(|error| broken(&error))?;
                let pool = PgPoolOptions::new()
                    .max_connections(16)
                    .acquire_timeout(Duration::from_secs(30))
                    .connect_with(options)
                    .await
                    .map_err(|error| broken(&error))?;
                PostgresStorage::migrations().run(&pool).await.map_err(|error| broken(&error))?;
                Ok(Db::Postgres(pool))
            }
        }
    }
}

/// One connection: every statement is short, and several writers would only wait for each other, which SQLite does by
/// sleeping.
async fn open_sqlite(options: SqliteConnectOptions) -> Result<Db, sqlx::Error> {
    let pool = SqlitePoolOptions::new().max_connections(1).test_before_acquire(false).connect_with(options).await?;
    SqliteStorage::migrations().run(&pool).await?;
    Ok(Db::Sqlite(pool))
}

/// Whether SQLite finds the file to be no database, or a broken one.
fn is_damaged(error: &sqlx::Error) -> bool {
    let text = error.to_string();
    text.contains("file is not a database") || text.contains("malformed")
}

impl fmt::Display for QueueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_password(url)),
        }
    }
}

/// The address without user and password.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    format!("{scheme}://{host}/{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let shown = |address: &str| QueueAddress::parse(address).to_string();
        assert_eq!(shown("postgres://user:secret@host:5432/coa?password=x"), "postgres://host:5432/coa");
        assert_eq!(shown("postgresql://host"), "postgresql://host/");
        assert_eq!(shown("/tmp/q.sqlite"), "/tmp/q.sqlite");
    }
}
