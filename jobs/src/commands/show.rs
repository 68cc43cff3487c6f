//! `coa show trajectory ID`: one trajectory or rollout as a person wants to read it.

use std::fmt::Write as _;
use std::io::IsTerminal;

use clap::{Args, Subcommand};
use schemas::{Role, Rollout, Segment, Table, Trajectory, decode};
use store::tables;

use super::{StoreArgs, print};
use crate::error::CommandError;
use crate::sql::query;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Show {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Roles, tool calls, observations, what is trained and what is masked.
    Trajectory {
        /// The id of a trajectory or rollout, or its beginning.
        id: String,
        #[command(flatten)]
        store: StoreArgs,
    },
}

impl Show {
    pub(super) async fn execute(self) -> Result<(), CommandError> {
        let What::Trajectory { id, store } = self.what;
        let store = store.open().await?;
        let paint = Paint { on: std::io::stdout().is_terminal() };
        let mut found: Vec<(String, String)> = Vec::new();
        for table in tables(&store).await? {
            let place = format!("\"{}\".\"{}\"", table.stage, table.port);
            if table.table == Trajectory::NAME {
                for row in rows::<Trajectory>(&store, &place, "trajectory_id", &id).await? {
                    found.push((row.trajectory_id.clone(), trajectory(&row, &place, &paint)));
                }
            } else if table.table == Rollout::NAME {
                for row in rows::<Rollout>(&store, &place, "rollout_id", &id).await? {
                    found.push((row.rollout_id.clone(), rollout(&row, &place, &paint)));
                }
            }
        }
        let mut ids: Vec<&String> = found.iter().map(|(id, _)| id).collect();
        ids.sort();
        ids.dedup();
        match (ids.len(), found.first()) {
            (0, _) | (_, None) => Err(CommandError::Usage {
                message: format!("no trajectory or rollout has an id that begins with `{id}`"),
                hint: Some("`coa sql \"select trajectory_id, question from convert.trajectories limit 10\"`".into()),
            }),
            (1, Some((_, text))) => {
                print(text.trim_end());
                Ok(())
            }
            (count, _) => {
                let some: Vec<&str> = ids.iter().take(5).map(|id| id.as_str()).collect();
                let message = format!("{count} ids begin with `{id}`: {} …", some.join(", "));
                Err(CommandError::usage(message))
            }
        }
    }
}

async fn rows<T: Table>(store: &store::Store, place: &str, key: &str, id: &str) -> Result<Vec<T>, CommandError> {
    let id = id.replace('\'', "''");
    let answer = query(store, &format!("select * from {place} where starts_with({key}, '{id}') limit 20")).await?;
    let mut rows = Vec::new();
    for batch in &answer.batches {
        rows.extend(decode(batch).map_err(|error| CommandError::Query(error.to_string()))?);
    }
    Ok(rows)
}

fn trajectory(row: &Trajectory, place: &str, paint: &Paint) -> String {
    let mut text = heading(&row.trajectory_id, place, &row.question, &row.golden_answers, row.answer.as_deref(), paint);
    let _ = writeln!(
        text,
        "{} interactions, {} calls, weight {}{}",
        row.interactions,
        row.tool_calls,
        row.weight,
        if row.notes.is_empty() { String::new() } else { format!(", notes: {}", row.notes.join(", ")) }
    );
    text + &segments(&row.segments, paint)
}

fn rollout(row: &Rollout, place: &str, paint: &Paint) -> String {
    let mut text = heading(&row.rollout_id, place, &row.question, &row.golden_answers, row.answer.as_deref(), paint);
    let verdict = if row.correct { paint.green("right") } else { paint.red("wrong") };
    let _ = writeln!(
        text,
        "{verdict}, finish {:?}, {} calls ({} failed), {} tokens sampled, {} observed",
        row.finish, row.tool_calls, row.failed_calls, row.sampled_tokens, row.observation_tokens
    );
    text + &segments(&row.segments, paint)
}

fn heading(id: &str, place: &str, question: &str, golden: &[String], answer: Option<&str>, paint: &Paint) -> String {
    let mut text = format!("{} in {place}\n{}\n", paint.bold(id), paint.bold(question));
    if !golden.is_empty() {
        let _ = writeln!(text, "accepted: {}", golden.join(" | "));
    }
    let _ = writeln!(text, "answered: {}", answer.unwrap_or("nothing"));
    text
}

/// One block a segment; `|` marks what the model is trained to write, `:` what is masked.
fn segments(segments: &[Segment], paint: &Paint) -> String {
    let mut text = String::from("\n| trained   : masked\n\n");
    for segment in segments {
        let observed = segment.role == Role::Observation;
        let bar = if observed { paint.dim(":") } else { "|".to_owned() };
        let name = match (segment.role, &segment.tool) {
            (Role::Tool, Some(tool)) => paint.cyan(tool),
            (Role::Observation, _) => paint.dim("observation"),
            (Role::Answer | Role::SuggestedAnswer | Role::DoubleCheck, _) => paint.green(role_name(segment.role)),
            (role, _) => paint.yellow(role_name(role)),
        };
        let _ = writeln!(text, "{bar} {name}");
        for line in segment.text.lines() {
            let line = if observed { paint.dim(line) } else { line.to_owned() };
            let _ = writeln!(text, "{bar}   {line}");
        }
    }
    text
}

fn role_name(role: Role) -> &'static str {
    operators::coa::tags::name(role)
}

/// Terminal colours, where there is a terminal.
struct Paint {
    on: bool,
}

impl Paint {
    fn code(&self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
    fn bold(&self, text: &str) -> String {
        self.code("1", text)
    }
    fn dim(&self, text: &str) -> String {
        self.code("2", text)
    }
    fn red(&self, text: &str) -> String {
        self.code("31", text)
    }
    fn green(&self, text: &str) -> String {
        self.code("32", text)
    }
    fn yellow(&self, text: &str) -> String {
        self.code("33", text)
    }
    fn cyan(&self, text: &str) -> String {
        self.code("36", text)
    }
}
