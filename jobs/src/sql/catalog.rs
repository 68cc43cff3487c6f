//! What a query may name: the tables of each store, its system tables and views, and what each name stands for.
//!
//! Tables of the main store are `stage.port`. Those of a store attached as `other` are `other.stage.port`. In both, the
//! system tables, the views, and the ports that only one stage has, have short names: `units`, `other.units`.

use std::collections::{BTreeMap, HashMap};

use datafusion::common::TableReference;
use store::{Store, StoredTable, tables};

use super::ports::PORTS;
use super::system::SYSTEM_TABLES;
use super::text::Names;
use super::views::{VIEWS, View};
use crate::error::CommandError;

/// The main store's catalog, and the schema of short names in every catalog.
pub(super) const MAIN: &str = "coa";
pub(super) const SHORT: &str = "public";
/// The schema of the views, where a stage with such a name would not hide it.
const VIEW_SCHEMA: &str = "views";
const INFORMATION: &str = "information_schema";

/// A store and the name it has in queries.
#[derive(Clone)]
pub(super) struct Attached {
    /// None for the main store.
    pub(super) name: Option<String>,
    pub(super) store: Store,
}

/// What a name stands for.
#[derive(Clone)]
pub(super) enum Meaning {
    /// A table of a stage.
    Stored(StoredTable),
    /// A system table.
    System(&'static str),
    /// A view of the product.
    View(&'static View),
    /// More than one table: these.
    Several(Vec<String>),
}

/// A name's meaning, and the number of the store it belongs to.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) store: usize,
    pub(super) meaning: Meaning,
}

/// Catalog, schema and table.
pub(super) type Key = (String, String, String);

/// All names.
pub(super) struct Catalog {
    pub(super) stores: Vec<Attached>,
    /// The newest version of every table, by store.
    pub(super) stored: Vec<Vec<StoredTable>>,
    entries: BTreeMap<Key, Entry>,
}

impl Catalog {
    /// Looks which tables there are.
    pub(super) async fn list(stores: &[Attached]) -> Result<Self, CommandError> {
        let mut catalog = Self { stores: stores.to_vec(), stored: Vec::new(), entries: BTreeMap::new() };
        for (number, attached) in stores.iter().enumerate() {
            let stored = newest(tables(&attached.store).await?);
            let own = attached.name.as_deref().unwrap_or(MAIN);
            catalog.add_store(number, own, SHORT, &stored);
            if let Some(name) = &attached.name {
                if catalog.stored[0].iter().any(|table| table.stage == *name) {
                    return Err(CommandError::usage(format!(
                        "a store cannot be attached as `{name}`: a stage has this name"
                    )));
                }
                catalog.add_short(number, MAIN, name, &stored);
            }
            catalog.stored.push(stored);
        }
        Ok(catalog)
    }

    fn add(&mut self, key: (&str, &str, &str), store: usize, meaning: Meaning) {
        let key = (key.0.to_owned(), key.1.to_owned(), key.2.to_owned());
        self.entries.insert(key, Entry { store, meaning });
    }

    fn add_store(&mut self, store: usize, catalog: &str, short: &str, stored: &[StoredTable]) {
        for view in VIEWS {
            self.add((catalog, VIEW_SCHEMA, view.name), store, Meaning::View(view));
        }
        for table in stored {
            self.add((catalog, &table.stage, &table.port), store, Meaning::Stored(table.clone()));
        }
        self.add_short(store, catalog, short, stored);
    }

    /// Short names. Where a port has the name of a system table or a view, it has no short one.
    fn add_short(&mut self, store: usize, catalog: &str, schema: &str, stored: &[StoredTable]) {
        let mut by_port: HashMap<&str, Vec<&StoredTable>> = HashMap::new();
        for table in stored {
            by_port.entry(&table.port).or_default().push(table);
        }
        for (port, tables) in by_port {
            let meaning = match tables[..] {
                [only] => Meaning::Stored(only.clone()),
                _ => Meaning::Several(tables.iter().map(|table| format!("{}.{port}", table.stage)).collect()),
            };
            self.add((catalog, schema, port), store, meaning);
        }
        for view in VIEWS {
            self.add((catalog, schema, view.name), store, Meaning::View(view));
        }
        for name in SYSTEM_TABLES.iter().chain([&PORTS]) {
            self.add((catalog, schema, name), store, Meaning::System(name));
        }
    }

    /// What is said by a key.
    pub(super) fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The name as a query writes it.
    pub(super) fn written(&self, key: &Key) -> String {
        let (catalog, schema, table) = key;
        match (catalog == MAIN, schema == SHORT) {
            (true, true) => table.clone(),
            (true, false) => format!("{schema}.{table}"),
            (false, _) => format!("{catalog}.{schema}.{table}"),
        }
    }

    /// The tables of a schema.
    pub(super) fn tables_of(&self, catalog: &str, schema: &str) -> Vec<String> {
        let of = |key: &&Key| key.0 == catalog && key.1 == schema;
        let is_one = |(key, entry): (&Key, &Entry)| match entry.meaning {
            Meaning::Several(_) => None,
            _ => Some(key.2.clone()),
        };
        self.entries.iter().filter(|(key, _)| of(key)).filter_map(is_one).collect()
    }

    /// Catalogs and schemas.
    pub(super) fn schemas(&self) -> Vec<(String, String)> {
        let mut schemas: Vec<_> = self.entries.keys().map(|key| (key.0.clone(), key.1.clone())).collect();
        schemas.dedup();
        schemas
    }

    /// All names, for their spelling.
    pub(super) fn names(&self) -> Names {
        let mut names = Names::default();
        for name in [MAIN, INFORMATION, "tables", "views", "columns", "schemata", "df_settings", "routines"] {
            names.add(name);
        }
        for name in self.entries.keys().flat_map(|(catalog, schema, table)| [catalog, schema, table]) {
            names.add(name);
        }
        names
    }
}

/// The key of a reference, and the version that stands behind its name.
pub(super) fn key_of(reference: &TableReference) -> (Key, Option<String>) {
    let resolved = reference.clone().resolve(MAIN, SHORT);
    let (table, version) = match resolved.table.rsplit_once('@') {
        Some((table, version)) => (table.to_owned(), Some(version.to_owned())),
        None => (resolved.table.to_string(), None),
    };
    ((resolved.catalog.to_string(), resolved.schema.to_string(), table), version)
}

/// The number of a version as it is written behind a name: `v3`.
pub(super) fn parse_version(written: &str) -> Option<u64> {
    written.strip_prefix(['v', 'V'])?.parse().ok()
}

/// Whether a reference is answered by the engine itself.
pub(super) fn is_information(key: &Key) -> bool {
    key.1 == INFORMATION
}

/// An older version of a table may stand beside the newest; the newest has the name.
fn newest(stored: Vec<StoredTable>) -> Vec<StoredTable> {
    let mut by_name: BTreeMap<(String, String), StoredTable> = BTreeMap::new();
    for table in stored {
        let name = (table.stage.clone(), table.port.clone());
        if by_name.get(&name).is_none_or(|other| other.version < table.version) {
            by_name.insert(name, table);
        }
    }
    by_name.into_values().collect()
}

/// Whether a store can be attached under this name.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !plain {
        return Err("use lower-case letters, digits and `_`, a letter first".to_owned());
    }
    if [MAIN, SHORT, VIEW_SCHEMA, INFORMATION].contains(&name) {
        return Err("this name has a meaning already".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_stands_behind_a_name() {
        let key = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        let of = |text: &str| {
            let parts: Vec<&str> = text.split('.').collect();
            key_of(&match parts[..] {
                [table] => TableReference::bare(table),
                [schema, table] => TableReference::partial(schema, table),
                [catalog, schema, table] => TableReference::full(catalog, schema, table),
                _ => unreachable!(),
            })
        };
        assert_eq!(of("units"), (key("coa", "public", "units"), None));
        assert_eq!(of("convert.trajectories@v3"), (key("coa", "convert", "trajectories"), Some("v3".to_owned())));
        assert_eq!(of("other.a.b@v0"), (key("other", "a", "b"), Some("v0".to_owned())));
        assert_eq!(parse_version("v12"), Some(12));
        assert_eq!(parse_version("12"), None);
        assert_eq!(parse_version("v-1"), None);
    }

    #[test]
    fn names_to_attach_as() {
        assert!(check_name("teacher_2").is_ok());
        for bad in ["", "2", "A", "a.b", "coa", "public", "views", "information_schema"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_newest_table_has_the_name() {
        let table = |version| StoredTable { stage: "a".into(), port: "b".into(), table: "traces".into(), version };
        assert_eq!(newest(vec![table(1), table(3), table(2)]), [table(3)]);
    }
}
