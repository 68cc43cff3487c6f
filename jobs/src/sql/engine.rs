//! One query: read, checked to change nothing, its tables opened as they stand at that moment, planned and executed.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Fields, SchemaRef};
use arrow::error::ArrowError;
use async_trait::async_trait;
use datafusion::catalog::{MemTable, MemoryCatalogProvider, SchemaProvider, TableProvider};
use datafusion::common::TableReference;
use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::datasource::{TableType, ViewTable};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SQLOptions;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::Statement as Sql;
use datafusion::sql::sqlparser::parser::ParserError;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use store::{OpenTable, Store, StoredTable, damaged_file, open};

use super::catalog::{Attached, Catalog, Key, MAIN, Meaning, SHORT, is_information, key_of, parse_version};
use super::text::{Names, Text};
use super::views::View;
use super::{ports, system};
use crate::error::CommandError;

/// More operators than this in one query are refused: what the engine does with them grows with their square.
const MOST_OPERATORS: usize = 1000;

/// Queries nest at most this deeply.
const DEEPEST: usize = 100;

type Opened = Arc<Mutex<HashMap<(Key, Option<u64>), Arc<dyn TableProvider>>>>;

/// What one query sees.
pub(super) struct Engine {
    context: SessionContext,
    pub(super) catalog: Arc<Catalog>,
    opened: Opened,
    /// The stored tables that were opened, with their stores and versions.
    read: Mutex<Vec<(usize, StoredTable, u64)>>,
}

/// Rows on their way.
pub(super) struct Rows {
    pub(super) schema: SchemaRef,
    stream: SendableRecordBatchStream,
    engine: Engine,
}

impl Rows {
    /// The next batch that has rows.
    pub(super) async fn next(&mut self) -> Result<Option<RecordBatch>, CommandError> {
        loop {
            match caught(self.stream.next()).await.unwrap_or_else(|panic| Some(Err(panic))) {
                Some(Ok(batch)) if batch.num_rows() == 0 => {}
                Some(Ok(batch)) => return Ok(Some(batch)),
                Some(Err(error)) => return Err(self.engine.failed(error).await),
                None => return Ok(None),
            }
        }
    }

    /// All that is left.
    pub(super) async fn rest(&mut self) -> Result<Vec<RecordBatch>, CommandError> {
        let mut batches = Vec::new();
        while let Some(batch) = self.next().await? {
            batches.push(batch);
        }
        Ok(batches)
    }
}

impl Engine {
    /// Sees the stores as they are now; the first is the main one.
    pub(super) async fn new(stores: &[Attached]) -> Result<Self, CommandError> {
        let mut config = SessionConfig::new()
            .with_information_schema(true)
            .with_default_catalog_and_schema(MAIN, SHORT)
            .with_target_partitions(std::thread::available_parallelism().map_or(2, usize::from));
        // Names are respelled before the engine reads them.
        config.options_mut().sql_parser.enable_ident_normalization = false;
        config.options_mut().sql_parser.recursion_limit =
            ConfigNonZeroUsize::try_new(DEEPEST).map_err(|error| CommandError::Query(readable(&error)))?;
        // The least and greatest values that a Parquet file knows of its columns leave NaN out: a reader that skips what
        // they rule out loses rows that a condition holds for.
        config.options_mut().execution.parquet.pruning = false;
        config.options_mut().execution.parquet.enable_page_index = false;
        let context = SessionContext::new_with_config(config);
        let catalog = Arc::new(Catalog::list(stores).await?);
        let opened = Opened::default();
        for (name, schema) in catalog.schemas() {
            if context.catalog(&name).is_none() {
                context.register_catalog(&name, Arc::new(MemoryCatalogProvider::new()));
            }
            let tables = Schema {
                catalog: Arc::clone(&catalog),
                opened: Arc::clone(&opened),
                name: (name.clone(), schema.clone()),
            };
            if let Some(provider) = context.catalog(&name) {
                let registered = provider.register_schema(&schema, Arc::new(tables));
                registered.map_err(|error| CommandError::Query(readable(&error)))?;
            }
        }
        Ok(Self { context, catalog, opened, read: Mutex::default() })
    }

    /// Begins to answer a query.
    pub(super) async fn answer(self, sql: &str) -> Result<Rows, CommandError> {
        let text = Text::of(sql).map_err(CommandError::Query)?;
        let operators = text.operators();
        if operators > MOST_OPERATORS {
            return Err(CommandError::Query(format!(
                "the query has {operators} operators, and at most {MOST_OPERATORS} are taken: put many values into \
                 `column in (…)`, or into a `values` list to join with"
            )));
        }
        // Once to know which tables are named, and with their columns once more.
        let mut names = self.catalog.names();
        let statement = self.parse(&text.respelled(&names))?;
        check_reads_only(&statement)?;
        let references = self.context.state().resolve_table_references(&statement);
        self.open_all(references.map_err(|error| CommandError::Query(readable(&error)))?).await?;
        for provider in lock(&self.opened).values() {
            add_fields(&mut names, provider.schema().fields());
        }
        let statement = self.parse(&text.respelled(&names))?;
        match caught(self.execute(statement)).await.and_then(|result| result) {
            Ok(stream) => Ok(Rows { schema: stream.schema(), stream, engine: self }),
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// Rows that are there already, as if a query gave them.
    pub(super) fn rows_of(self, batch: RecordBatch) -> Result<Rows, CommandError> {
        let schema = batch.schema();
        let stream = MemoryStream::try_new(vec![batch], Arc::clone(&schema), None);
        let stream = Box::pin(stream.map_err(|error| CommandError::Query(readable(&error)))?);
        Ok(Rows { schema, stream, engine: self })
    }

    fn parse(&self, sql: &str) -> Result<Statement, CommandError> {
        let state = self.context.state();
        let dialect = state.config_options().sql_parser.dialect;
        state.sql_to_statement(sql, &dialect).map_err(|error| CommandError::Query(readable(&error)))
    }

    async fn execute(&self, statement: Statement) -> DataFusionResult<SendableRecordBatchStream> {
        let plan = self.context.state().statement_to_plan(statement).await?;
        let read_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        read_only.verify_plan(&plan)?;
        self.context.execute_logical_plan(plan).await?.execute_stream().await
    }

    /// Opens what a query names.
    async fn open_all(&self, references: Vec<TableReference>) -> Result<(), CommandError> {
        for reference in references {
            let (key, version) = key_of(&reference);
            if is_information(&key) {
                self.open_views(&key).await?;
            } else if !self.context.state().table_functions().contains_key(reference.table()) {
                self.open(&key, version.as_deref()).await?;
            }
        }
        Ok(())
    }

    /// The engine's own tables list columns, and a view's are known once it is planned.
    async fn open_views(&self, named: &Key) -> Result<(), CommandError> {
        if named.2 != "columns" {
            return Ok(());
        }
        for (catalog, schema) in self.catalog.schemas().into_iter().filter(|(catalog, _)| *catalog == named.0) {
            for table in self.catalog.tables_of(&catalog, &schema) {
                let key = (catalog.clone(), schema.clone(), table);
                if let Some(Meaning::View(view)) = self.catalog.get(&key).map(|entry| &entry.meaning)
                    && self.defined(&key, view).is_some()
                {
                    self.open(&key, None).await?;
                }
            }
        }
        Ok(())
    }

    /// Opens one table, or answers why it cannot be.
    pub(super) fn open<'a>(
        &'a self,
        key: &'a Key,
        version: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Arc<dyn TableProvider>, CommandError>> {
        Box::pin(async move {
            let written = self.catalog.written(key);
            let Some(entry) = self.catalog.get(key) else { return Err(unknown(&written)) };
            let at = match version {
                None => None,
                Some(version) => Some(parse_version(version).ok_or_else(|| {
                    CommandError::Query(format!("`@{version}` is no version: write it as `{written}@v3`"))
                })?),
            };
            let place = (key.clone(), at);
            if let Some(provider) = lock(&self.opened).get(&place) {
                return Ok(Arc::clone(provider));
            }
            let store = &self.catalog.stores[entry.store].store;
            let provider: Arc<dyn TableProvider> = match &entry.meaning {
                Meaning::Stored(table) => {
                    let opened = open(store, table, at).await?.ok_or_else(|| unknown(&written))?;
                    lock(&self.read).push((entry.store, table.clone(), opened.version));
                    opened.provider
                }
                Meaning::Several(tables) => {
                    return Err(CommandError::Query(format!(
                        "several tables are called `{written}`: say which of {}",
                        tables.join(", ")
                    )));
                }
                Meaning::System(_) | Meaning::View(_) if at.is_some() => {
                    return Err(CommandError::Query(format!(
                        "`{written}` has no versions: only tables of stages have"
                    )));
                }
                Meaning::System(name) => self.system(name, store).await?,
                Meaning::View(view) => self.view(key, view).await?,
            };
            lock(&self.opened).insert(place, Arc::clone(&provider));
            Ok(provider)
        })
    }

    /// A table with what its log says of it.
    pub(super) async fn look(&self, store: usize, table: &StoredTable) -> Result<Option<OpenTable>, CommandError> {
        Ok(open(&self.catalog.stores[store].store, table, None).await?)
    }

    async fn system(&self, name: &str, store: &Store) -> Result<Arc<dyn TableProvider>, CommandError> {
        let batch = match name {
            "runs" => system::runs(store).await?,
            "stages" => system::stages(store).await?,
            "units" => system::units(store).await?,
            "attempts" => system::attempts(store).await?,
            _ => ports::ports(store).await?,
        };
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]);
        Ok(Arc::new(table.map_err(|error| CommandError::Query(readable(&error)))?))
    }

    /// The SQL of a view over the tables that its store has; none where they are missing.
    pub(super) fn defined(&self, key: &Key, view: &View) -> Option<String> {
        let store = self.catalog.get(key)?.store;
        view.define(self.catalog.stores[store].name.as_deref(), &self.catalog.stored[store])
    }

    async fn view(&self, key: &Key, view: &View) -> Result<Arc<dyn TableProvider>, CommandError> {
        let definition = self.defined(key, view).ok_or_else(|| {
            CommandError::Query(format!("the view `{}` is not there: {}", self.catalog.written(key), view.needs))
        })?;
        let failed = |error: DataFusionError| {
            CommandError::Query(format!("the view `{}` cannot be made: {}", view.name, readable(&error)))
        };
        let statement = self.parse(&definition)?;
        let state = self.context.state();
        self.open_all(state.resolve_table_references(&statement).map_err(failed)?).await?;
        let plan = self.context.state().statement_to_plan(statement).await.map_err(failed)?;
        Ok(Arc::new(ViewTable::new(plan, Some(definition))))
    }

    /// Why a query failed: where its tables could not be read, the file that is to blame.
    async fn failed(&self, error: DataFusionError) -> CommandError {
        let read = lock(&self.read).clone();
        if is_about_files(&error) {
            for (store, table, version) in read {
                match damaged_file(&self.catalog.stores[store].store, &table, version).await {
                    Ok(Some(damage)) | Err(damage) => return damage.into(),
                    Ok(None) => {}
                }
            }
        }
        CommandError::Query(readable(&error))
    }
}

/// Damaged bytes make some readers panic: that is an error of the query like any other.
async fn caught<T>(work: impl Future<Output = T>) -> DataFusionResult<T> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|panic| {
        let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        DataFusionError::External(format!("the query engine failed: {}", said.unwrap_or_default()).into())
    })
}

fn unknown(written: &str) -> CommandError {
    CommandError::Query(format!("there is no table `{written}`; `coa sql '\\d'` lists those there are"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names of columns and of what is in them.
fn add_fields(names: &mut Names, fields: &Fields) {
    for field in fields {
        names.add(field.name());
        match field.data_type() {
            DataType::Struct(fields) => add_fields(names, fields),
            DataType::List(item) | DataType::LargeList(item) => {
                if let DataType::Struct(fields) = item.data_type() {
                    add_fields(names, fields);
                }
            }
            _ => {}
        }
    }
}

/// Refuses what would write or set something. What hides inside another statement is found in the plan.
fn check_reads_only(statement: &Statement) -> Result<(), CommandError> {
    let reads = match statement {
        Statement::Explain(_) => true,
        Statement::Statement(sql) => matches!(
            sql.as_ref(),
            Sql::Query(_)
                | Sql::Explain { .. }
                | Sql::ExplainTable { .. }
                | Sql::ShowTables { .. }
                | Sql::ShowColumns { .. }
                | Sql::ShowVariable { .. }
                | Sql::ShowFunctions { .. }
        ),
        _ => false,
    };
    if reads {
        Ok(())
    } else {
        Err(CommandError::Query("nothing can be changed here: only queries are answered".into()))
    }
}

/// Whether an error may come from the bytes of a file.
fn is_about_files(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::ParquetError(_) | DataFusionError::ObjectStore(_) | DataFusionError::IoError(_) => true,
        DataFusionError::External(_) | DataFusionError::ExecutionJoin(_) => true,
        DataFusionError::ArrowError(error, _) => matches!(
            **error,
            ArrowError::ParquetError(_)
                | ArrowError::IoError(..)
                | ArrowError::ExternalError(_)
                | ArrowError::IpcError(_)
        ),
        _ => false,
    }
}

/// An error of the engine as a person reads it.
fn readable(error: &DataFusionError) -> String {
    match error.find_root() {
        DataFusionError::SQL(error, _) => match error.as_ref() {
            ParserError::RecursionLimitExceeded => format!("the query nests more than {DEEPEST} levels deep"),
            ParserError::TokenizerError(message) | ParserError::ParserError(message) => message.clone(),
        },
        root => {
            let text = root.strip_backtrace();
            let known = ["Error during planning: ", "Execution error: ", "Schema error: ", "Arrow error: "];
            let text = known.iter().fold(text.as_str(), |text, prefix| text.trim_start_matches(prefix));
            text.to_owned()
        }
    }
}

/// The names of one schema, as the engine asks for them.
#[derive(Clone)]
struct Schema {
    catalog: Arc<Catalog>,
    opened: Opened,
    name: (String, String),
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.name.0, self.name.1)
    }
}

impl Schema {
    fn key(&self, table: &str) -> (Key, Option<u64>) {
        let (key, version) = key_of(&TableReference::full(&*self.name.0, &*self.name.1, table));
        (key, version.as_deref().and_then(parse_version))
    }
}

#[async_trait]
impl SchemaProvider for Schema {
    fn table_names(&self) -> Vec<String> {
        self.catalog.tables_of(&self.name.0, &self.name.1)
    }

    async fn table(&self, name: &str) -> DataFusionResult<Option<Arc<dyn TableProvider>>> {
        let place = self.key(name);
        if let Some(provider) = lock(&self.opened).get(&place) {
            return Ok(Some(Arc::clone(provider)));
        }
        // Asked for without being named in the query: the engine lists all columns there are.
        let Some(entry) = self.catalog.get(&place.0) else { return Ok(None) };
        let Meaning::Stored(table) = &entry.meaning else { return Ok(None) };
        let opened = open(&self.catalog.stores[entry.store].store, table, place.1).await;
        Ok(opened.map_err(|error| DataFusionError::External(Box::new(error)))?.map(|table| table.provider))
    }

    async fn table_type(&self, name: &str) -> DataFusionResult<Option<TableType>> {
        Ok(self.catalog.get(&self.key(name).0).map(|entry| match entry.meaning {
            Meaning::View(_) => TableType::View,
            _ => TableType::Base,
        }))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.catalog.get(&self.key(name).0).is_some()
    }
}
