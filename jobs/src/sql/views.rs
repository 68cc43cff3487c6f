//! Views that come with the product. They work on whatever stages a pipeline has: each is made over all tables of a kind,
//! found by what they hold and not by the name of their stage.

use std::fmt::Write as _;

use datafusion::sql::sqlparser::keywords::ALL_KEYWORDS;
use schemas::{Quarantined, Rejected, Rollout, Step, TableDef, TokenizedSample, Trace, Trajectory};
use store::StoredTable;

/// A view.
pub(super) struct View {
    pub(super) name: &'static str,
    /// What it is for.
    pub(super) about: &'static str,
    /// What it needs, said where that is missing.
    pub(super) needs: &'static str,
    /// Its columns, each with what it means.
    pub(super) columns: &'static [(&'static str, &'static str)],
    sql: fn(&Tables<'_>) -> Option<String>,
}

impl View {
    /// The view as SQL over the tables of a store; none where those it needs are missing.
    pub(super) fn define(&self, store: Option<&str>, stored: &[StoredTable]) -> Option<String> {
        (self.sql)(&Tables { store, stored })
    }
}

/// All of them.
pub(super) const VIEWS: &[View] = &[FUNNEL, TOKEN_LENGTHS, TOOL_USE, TRACE_COST];

const FUNNEL: View = View {
    name: "funnel",
    about: "what each stage that may reject rows read, kept and rejected",
    needs: "it needs a stage that rejects or quarantines rows, such as `convert_coa` or a filter, and none has run yet",
    columns: &[
        ("stage", "The stage."),
        ("rows_in", "Rows or records it read; steps are counted with their trace."),
        ("rows_kept", "Rows it passed on."),
        ("rows_rejected", "Rows it rejected or quarantined."),
        ("reasons", "Why, with the number of rows, most frequent first; `unnest(reasons)` gives one row each."),
        ("finished", "When its last unit ended: `order by finished` is the order of the pipeline."),
    ],
    sql: funnel,
};

const TOOL_USE: View = View {
    name: "tool_use",
    about: "how often trajectories and rollouts call each tool",
    needs: "it needs a table of trajectories or rollouts, and no stage has written one yet",
    columns: &[
        ("stage", "The stage."),
        ("port", "Its output port."),
        ("tool", "The tool; null for all tools together, that is hops."),
        ("calls", "Calls of it."),
        ("callers", "Trajectories that call it."),
        ("trajectories", "Trajectories of the table."),
        ("calls_each", "Calls a trajectory, over all of the table."),
        ("most_calls", "Most calls in one trajectory."),
    ],
    sql: tool_use,
};

const TOKEN_LENGTHS: View = View {
    name: "token_lengths",
    about: "how long tokenised samples are, and what share of them is trained",
    needs: "it needs a table of tokens, which the operator `tokenize` writes, and there is none yet",
    columns: &[
        ("stage", "The stage."),
        ("port", "Its output port."),
        ("samples", "Samples."),
        ("tokens", "Tokens of all samples."),
        ("shortest", "Tokens of the shortest sample."),
        ("p50", "Half of the samples are no longer than this; between two samples, interpolated."),
        ("p90", "The same for nine in ten."),
        ("p99", "The same for 99 in a hundred."),
        ("longest", "Tokens of the longest sample."),
        ("trained_share", "Trained tokens over all tokens."),
        ("observation_share", "Tokens of observations over all tokens."),
        ("truncated", "Samples that were cut at the length limit."),
    ],
    sql: token_lengths,
};

const TRACE_COST: View = View {
    name: "trace_cost",
    about: "steps, calls, tokens and seconds of each trace",
    needs: "it needs the tables of traces and steps of one stage, which the operator `ingest_traces` writes, and there are none yet",
    columns: &[
        ("stage", "The stage."),
        ("trace_id", "The trace."),
        ("task_id", "Its task."),
        ("steps", "Its steps."),
        ("calls", "Its tool calls."),
        ("input_tokens", "Tokens read by models; null where not recorded."),
        ("output_tokens", "Tokens written by models; null where not recorded."),
        ("seconds", "From its start to its end, or from its first step's to its last; null where not recorded."),
    ],
    sql: trace_cost,
};

/// The newest tables of a store.
struct Tables<'a> {
    store: Option<&'a str>,
    stored: &'a [StoredTable],
}

impl<'a> Tables<'a> {
    fn holding(&self, table: TableDef) -> impl Iterator<Item = &'a StoredTable> {
        self.stored.iter().filter(move |stored| stored.table == table.name && stored.version == table.version)
    }

    /// A table as a query names it.
    fn name(&self, table: &StoredTable) -> String {
        let store = self.store.map(|store| format!("{store}.")).unwrap_or_default();
        format!("{store}{}.{}", quoted(&table.stage), quoted(&table.port))
    }

    /// A system table as a query names it.
    fn system(&self, name: &str) -> String {
        self.store.map_or_else(|| name.to_owned(), |store| format!("{store}.public.{name}"))
    }
}

/// A name of a stage or port, in quotes where it is a word of SQL.
fn quoted(name: &str) -> String {
    let upper = name.to_uppercase();
    if ALL_KEYWORDS.binary_search(&upper.as_str()).is_ok() { format!("\"{name}\"") } else { name.to_owned() }
}

/// One part for each table, joined to one query; none for no table.
fn union(parts: impl Iterator<Item = String>) -> Option<String> {
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join("\n  union all\n"))
}

fn funnel(tables: &Tables<'_>) -> Option<String> {
    let (rejected, quarantined) = (TableDef::of::<Rejected>(), TableDef::of::<Quarantined>());
    let of = |table: &StoredTable, reason: &str| {
        let (stage, name) = (&table.stage, tables.name(table));
        format!("  select '{stage}' as stage, {reason} as reason, count(*) as rows from {name} group by {reason}")
    };
    let rejected_rows = tables.holding(rejected).map(|table| of(table, "reason"));
    let quarantined_rows = tables.holding(quarantined).map(|table| of(table, "code"));
    let by_reason = union(rejected_rows.chain(quarantined_rows))?;
    let (ports, lost) = (tables.system("ports"), format!("'{}', '{}'", rejected.name, quarantined.name));
    Some(format!(
        "with flow as (
  select stage,
    sum(rows) filter (where direction = 'in') as rows_in,
    sum(rows) filter (where direction = 'out' and holds not in ({lost})) as rows_kept,
    sum(rows) filter (where direction = 'out' and holds in ({lost})) as rows_rejected,
    max(finished) as finished
  from {ports}
  where current and holds <> '{steps}'
  group by stage
), by_reason as (
{by_reason}
), why as (
  select stage, array_agg(named_struct('reason', reason, 'rows', rows) order by rows desc, reason) as reasons
  from by_reason group by stage
)
select flow.stage, rows_in, rows_kept, rows_rejected, reasons, finished
from flow left join why on flow.stage = why.stage
where rows_rejected is not null",
        steps = TableDef::of::<Step>().name,
    ))
}

fn tool_use(tables: &Tables<'_>) -> Option<String> {
    let trajectories = tables.holding(TableDef::of::<Trajectory>()).map(|table| (table, "trajectory_id"));
    let rollouts = tables.holding(TableDef::of::<Rollout>()).map(|table| (table, "rollout_id"));
    let all: Vec<_> = trajectories.chain(rollouts).collect();
    let segments = union(all.iter().map(|(table, id)| {
        let (StoredTable { stage, port, .. }, name) = (table, tables.name(table));
        format!("  select '{stage}' as stage, '{port}' as port, {id} as id, unnest(segments) as segment from {name}")
    }))?;
    let sizes = union(all.iter().map(|(table, _)| {
        let (StoredTable { stage, port, .. }, name) = (table, tables.name(table));
        format!("  select '{stage}' as stage, '{port}' as port, count(*) as trajectories from {name}")
    }))?;
    Some(format!(
        "with segments as (
{segments}
), sizes as (
{sizes}
), calls as (
  select stage, port, id, segment['tool'] as tool from segments where segment['role'] = 'tool'
), counted as (
  select stage, port, id, tool, count(*) as calls from calls group by stage, port, id, tool
  union all
  select stage, port, id, null as tool, count(*) as calls from calls group by stage, port, id
)
select sizes.stage, sizes.port, counted.tool,
  coalesce(sum(counted.calls), 0) as calls,
  count(counted.id) as callers,
  max(sizes.trajectories) as trajectories,
  coalesce(sum(counted.calls), 0) / cast(max(sizes.trajectories) as double) as calls_each,
  coalesce(max(counted.calls), 0) as most_calls
from sizes left join counted on sizes.stage = counted.stage and sizes.port = counted.port
group by sizes.stage, sizes.port, counted.tool"
    ))
}

fn token_lengths(tables: &Tables<'_>) -> Option<String> {
    let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)].iter().fold(String::new(), |mut text, (name, at)| {
        let _ = writeln!(text, "    percentile_cont({at}) within group (order by length) as {name},");
        text
    });
    union(tables.holding(TableDef::of::<TokenizedSample>()).map(|table| {
        let (StoredTable { stage, port, .. }, name) = (table, tables.name(table));
        format!(
            "  select '{stage}' as stage, '{port}' as port,
    count(*) as samples,
    sum(length) as tokens,
    min(length) as shortest,
{quantiles}    max(length) as longest,
    sum(trained_tokens) / cast(sum(length) as double) as trained_share,
    sum(observation_tokens) / cast(sum(length) as double) as observation_share,
    count(*) filter (where truncated) as truncated
  from (
    select cast(cardinality(input_ids) as bigint) as length, trained_tokens, observation_tokens, truncated
    from {name}
  )"
        )
    }))
}

fn trace_cost(tables: &Tables<'_>) -> Option<String> {
    let steps: Vec<_> = tables.holding(TableDef::of::<Step>()).collect();
    let pairs = tables.holding(TableDef::of::<Trace>()).filter_map(|traces| {
        let steps = steps.iter().find(|steps| steps.stage == traces.stage)?;
        Some((traces, *steps))
    });
    let seconds = |end: &str, start: &str| format!("(cast({end} as bigint) - cast({start} as bigint)) / 1e6");
    union(pairs.map(|(traces, steps)| {
        let (stage, traces, steps) = (&traces.stage, tables.name(traces), tables.name(steps));
        let (whole, by_step) = (seconds("traces.ended_at", "traces.started_at"), seconds("last", "first"));
        format!(
            "  select '{stage}' as stage, traces.trace_id, traces.task_id,
    coalesce(counted.steps, 0) as steps,
    coalesce(counted.calls, 0) as calls,
    input_tokens,
    output_tokens,
    coalesce({whole}, {by_step}) as seconds
  from {traces} as traces left join (
    select trace_id,
      count(*) as steps,
      count(*) filter (where kind = 'call') as calls,
      sum(input_tokens) as input_tokens,
      sum(output_tokens) as output_tokens,
      min(started_at) as first,
      max(ended_at) as last
    from {steps} group by trace_id
  ) as counted on traces.trace_id = counted.trace_id"
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(stage: &str, port: &str, def: TableDef) -> StoredTable {
        StoredTable { stage: stage.into(), port: port.into(), table: def.name.into(), version: def.version }
    }

    #[test]
    fn a_view_is_made_over_all_tables_of_its_kind() {
        let def = TableDef::of::<TokenizedSample>();
        let stored = [table("sft_data", "samples", def), table("select", "lengthy", def)];
        let sql = TOKEN_LENGTHS.define(None, &stored).unwrap();
        assert!(sql.contains("from sft_data.samples") && sql.contains("union all"), "{sql}");
        assert!(sql.contains("from \"select\".lengthy"), "{sql}");
        assert!(TOKEN_LENGTHS.define(Some("other"), &stored).unwrap().contains("from other.sft_data.samples"));
        assert!(VIEWS.iter().all(|view| view.define(None, &[]).is_none()));
        let old = StoredTable { version: def.version + 1, ..table("a", "samples", def) };
        assert!(TOKEN_LENGTHS.define(None, &[old]).is_none());
    }

    #[test]
    fn traces_go_with_the_steps_of_their_stage() {
        let (traces, steps) = (TableDef::of::<Trace>(), TableDef::of::<Step>());
        assert!(TRACE_COST.define(None, &[table("a", "traces", traces), table("b", "steps", steps)]).is_none());
        assert!(TRACE_COST.define(None, &[table("a", "traces", traces), table("a", "steps", steps)]).is_some());
    }
}
