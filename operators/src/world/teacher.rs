//! The operator `world_teacher`: the team answers questions with real tools and leaves OAgents run records.

use std::num::NonZeroUsize;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use schemas::{Page, Question};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::team::{Habits, NAN, Solved, Team};
use crate::context::{UnitContext, seed};
use crate::error::OperatorError;
use crate::operator::Operator;
use crate::params::ParamsError;
use crate::port::{FilesOut, In, Port};
use crate::toolbox::{corpus_tools, two_results};

/// Parameters of `world_teacher`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Results a search shows.
    #[serde(default = "two_results")]
    pub search_results: NonZeroUsize,
}

/// The operator.
pub struct WorldTeacher {
    params: Params,
}

const QUESTIONS: In<Question> = In::new("questions", "what the team is asked");
const PAGES: In<Page> = In::new("pages", "what its tools search and read").whole();
const RECORDS: FilesOut = FilesOut::new("records", "run_records", "one OAgents run record a question, as JSON lines");

impl Operator for WorldTeacher {
    const NAME: &'static str = "world_teacher";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Answers questions about the quickstart's world with a team of planner, searcher, \
                                 reader, coder, critic and verifier on real tools; leaves OAgents run records.";
    const INPUTS: &'static [Port] = &[QUESTIONS.port(), PAGES.port()];
    const OUTPUTS: &'static [Port] = &[RECORDS.port()];
    const SEEDED: bool = true;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        Ok(Self { params })
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        let questions = cx.all(&QUESTIONS)?;
        let tools = corpus_tools(cx.all(&PAGES)?, self.params.search_results.get(), 1)?;
        cx.progress.begin(Some(questions.len() as u64), "questions");
        let unit_seed = cx.seed("habits");
        let mut lines = String::new();
        for (done, question) in questions.iter().enumerate() {
            cx.check_stop()?;
            let mut rng = ChaCha8Rng::seed_from_u64(seed(unit_seed, &[&question.question_id]));
            let habits = Habits::draw(&mut rng);
            let crashes = rand::Rng::random_bool(&mut rng, 0.01);
            let solved = Team::new(&tools, habits, &mut rng).solve(&question.question)?;
            let record = record(question, solved, crashes);
            lines.push_str(&record.to_string().replace(&json!(NAN).to_string(), "NaN"));
            lines.push('\n');
            cx.progress.at(done as u64 + 1, "");
        }
        cx.put_bytes(&RECORDS, &format!("{}.jsonl", cx.partition), lines.as_bytes())
    }
}

/// The run record of one question. No time is written down: a run that is done again must leave the same record.
fn record(question: &Question, solved: Solved, crashes: bool) -> Value {
    let limit = solved.answer.is_none();
    json!({
        "agent_name": "world-team",
        "question": question.question,
        "augmented_question": format!("Answer the question with your tools.\n\n{}", question.question),
        "prediction": if crashes { Value::Null } else { json!(solved.answer.as_deref().map(str::trim)) },
        "true_answer": question.golden_answers[0],
        // As the recorder of the teacher framework does: an exception loses the steps.
        "intermediate_steps": if crashes { json!([]) } else { json!(solved.steps) },
        "parsing_error": false,
        "iteration_limit_exceeded": limit && !crashes,
        "agent_error": if crashes { json!("AgentGenerationError: the connection was reset") } else { Value::Null },
        "start_time": null,
        "end_time": null,
        "task": question.hops,
        "task_id": question.question_id,
        "search_agent_actions": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryIo;
    use crate::world::{pages::WorldPages, questions::WorldQuestions};

    /// Records of the team for some questions, or `None` where there is no sandbox.
    fn records(seed: u64) -> Option<Vec<u8>> {
        let empty = serde_json::json!({});
        let io = MemoryIo::new().unwrap();
        io.run(&WorldPages::new(serde_json::from_value(empty.clone()).unwrap()).unwrap(), seed).unwrap();
        let pages: Vec<Page> = io.rows("pages").unwrap();
        let params = serde_json::json!({"train": 200, "units": 1});
        io.run(&WorldQuestions::new(serde_json::from_value(params).unwrap()).unwrap(), seed).unwrap();
        let questions: Vec<Question> = io.rows("train").unwrap();
        let io =
            MemoryIo::new().unwrap().with_rows("questions", &questions).unwrap().with_rows("pages", &pages).unwrap();
        match io.run(&WorldTeacher::new(serde_json::from_value(empty).unwrap()).unwrap(), seed) {
            Ok(()) => io.written("records", "all.jsonl"),
            Err(error) => {
                eprintln!("skipped: {}", error.chain());
                None
            }
        }
    }

    #[test]
    fn the_team_is_often_right_and_has_every_bad_habit() {
        let Some(bytes) = records(5) else { return };
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert_eq!(records(5).unwrap(), bytes, "a run that is done again leaves the same records");
        assert_ne!(records(6).unwrap(), bytes);
        let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let right = records.iter().filter(|record| record["prediction"] == record["true_answer"]).count();
        assert!((90..=160).contains(&right), "{right} of {} right", records.len());
        for habit in ["score 2", "score 3", "score 4", "poor", "average", "SyntaxError", "from memory", "no page of"] {
            assert!(text.contains(habit), "nobody ever leaves {habit:?}");
        }
    }
}
