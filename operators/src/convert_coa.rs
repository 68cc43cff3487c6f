//! Rewrites recorded runs as Chain-of-Agents trajectories: typed segments in one sequence.
//!
//! | step | segment |
//! |---|---|
//! | turn (what a model wrote before it acted), facts | `think` |
//! | plan | `plan` |
//! | search, page visit, Python | tool call, then `observation` |
//! | a manager's snippet that only asks a sub-agent | the sub-agent's own calls |
//! | a critic's judgement of a turn | `reflection`; its verdict is the last paragraph, what precedes is a `think` |
//! | a verifier's judgement of an answer | `suggested_answer`, then `double_check`, likewise |
//! | the last answer | `answer` |
//!
//! Nothing is invented: a reasoning text that was not recorded is left out and noted. A run that cannot be told as one
//! sequence is rejected with a reason.

use std::collections::HashSet;

use schemars::JsonSchema;
use schemas::{Rejected, Role, Segment, Step, StepKind, Trace, TraceStatus, Trajectory};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::UnitContext;
use crate::error::OperatorError;
use crate::operator::Operator;
use crate::params::ParamsError;
use crate::port::{In, Out, Port};

/// Parameters of `convert_coa`: none yet.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {}

/// The operator.
pub struct ConvertCoa;

const TRACES: In<Trace> = In::new("traces", "recorded runs");
const STEPS: In<Step> = In::new("steps", "their steps, in the order of the runs");
const TRAJECTORIES: Out<Trajectory> = Out::new("trajectories", "one sequence a run");
const REJECTED: Out<Rejected> = Out::new("rejected", "runs that cannot be told as one sequence, with the reason");

/// Trajectories are written when they hold this many bytes of text together.
const GROUP: usize = 16 << 20;

impl Operator for ConvertCoa {
    const NAME: &'static str = "convert_coa";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Rewrites recorded runs as Chain-of-Agents trajectories of typed segments.";
    const INPUTS: &'static [Port] = &[TRACES.port(), STEPS.port()];
    const OUTPUTS: &'static [Port] = &[TRAJECTORIES.port(), REJECTED.port()];
    type Params = Params;

    fn new(_params: Params) -> Result<Self, ParamsError> {
        Ok(Self)
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        cx.progress.begin(None, "traces");
        let mut done = 0;
        let mut waiting: std::collections::VecDeque<Step> = std::collections::VecDeque::new();
        let (mut trajectories, mut rejected) = (Vec::new(), Vec::new());
        let mut text = 0;
        while let Some(traces) = cx.next(&TRACES)? {
            cx.check_stop()?;
            done += traces.len() as u64;
            for trace in traces {
                let wanted = trace.steps as usize;
                while waiting.len() < wanted {
                    let Some(more) = cx.next(&STEPS)? else { break };
                    waiting.extend(more);
                }
                let steps: Vec<Step> = waiting.drain(..wanted.min(waiting.len())).collect();
                if steps.len() != wanted || steps.iter().any(|step| step.trace_id != trace.trace_id) {
                    return Err(OperatorError::input(format!(
                        "the steps of trace `{}` do not stand where the trace says",
                        trace.trace_id
                    ))
                    .hint("bind `traces` and `steps` to the same stage"));
                }
                match convert(&trace, &steps) {
                    Ok(trajectory) => {
                        text += trajectory.segments.iter().map(|segment| segment.text.len()).sum::<usize>();
                        trajectories.push(trajectory);
                    }
                    Err((reason, detail)) => {
                        rejected.push(Rejected::new(trace.trace_id, trace.task_id, reason, detail));
                    }
                }
                if text >= GROUP {
                    text = 0;
                    cx.append(&TRAJECTORIES, &std::mem::take(&mut trajectories))?;
                }
            }
            cx.append(&REJECTED, &std::mem::take(&mut rejected))?;
            cx.progress.at(done, "");
        }
        cx.append(&TRAJECTORIES, &trajectories)
    }
}

/// One run as a trajectory, or why not.
fn convert(trace: &Trace, steps: &[Step]) -> Result<Trajectory, (&'static str, String)> {
    let error = trace.error.clone().unwrap_or_default();
    match trace.status {
        TraceStatus::Completed => {}
        TraceStatus::IterationLimit => return Err(("iteration_limit", "the run hit its step limit".to_owned())),
        TraceStatus::AgentError => return Err(("agent_error", error)),
        TraceStatus::ParsingError => return Err(("parsing_error", error)),
    }
    let mut telling = Telling::new(steps);
    for step in steps {
        telling.step(step)?;
    }
    let answer = match (&telling.answer, &trace.agent_answer, &trace.prediction) {
        (Some(answer), _, _) | (None, Some(answer), _) => answer.clone(),
        (None, None, Some(prediction)) => {
            telling.note("answer_from_prediction");
            Segment::new(Role::Answer, prediction).text
        }
        (None, None, None) => return Err(("no_answer", "the run has neither an answer nor a prediction".to_owned())),
    };
    telling.segments.push(Segment { source_step: telling.answer_step.clone(), ..Segment::new(Role::Answer, &answer) });

    let segments = telling.segments;
    let tool_calls = segments.iter().filter(|segment| segment.role == Role::Tool).count() as i64;
    let answered = |pair: &&[Segment]| pair[0].role == Role::Tool && pair[1].role == Role::Observation;
    let interactions = segments.windows(2).filter(answered).count() as i64;
    Ok(Trajectory {
        trajectory_id: trace.trace_id.clone(),
        task_id: trace.task_id.clone(),
        question: trace.question.clone(),
        golden_answers: trace.golden_answers.clone(),
        answer: Some(answer),
        source_verdict: trace.source_verdict,
        domain: trace.domain,
        segments,
        interactions,
        tool_calls,
        notes: telling.notes,
        weight: 1.0,
    })
}

/// A trajectory in the making.
struct Telling<'a> {
    segments: Vec<Segment>,
    notes: Vec<String>,
    answer: Option<String>,
    answer_step: Option<String>,
    /// Turns that a judge spoke about.
    judged: HashSet<&'a str>,
    /// Turns that gave an answer.
    answering: HashSet<&'a str>,
    /// Calls whose work was done by a sub-agent's calls.
    delegating: HashSet<&'a str>,
}

impl<'a> Telling<'a> {
    fn new(steps: &'a [Step]) -> Self {
        let parents = |kind: StepKind| -> HashSet<&'a str> {
            steps.iter().filter(|step| step.kind == kind).filter_map(|step| step.parent_step_id.as_deref()).collect()
        };
        Self {
            segments: Vec::new(),
            notes: Vec::new(),
            answer: None,
            answer_step: None,
            judged: parents(StepKind::Critique),
            answering: parents(StepKind::Answer),
            delegating: parents(StepKind::Call),
        }
    }

    fn note(&mut self, word: &str) {
        if !self.notes.iter().any(|note| note == word) {
            self.notes.push(word.to_owned());
        }
    }

    fn push(&mut self, step: &Step, role: Role, text: &str) {
        self.segments.push(Segment { source_step: Some(step.step_id.clone()), ..Segment::new(role, text) });
    }

    fn step(&mut self, step: &Step) -> Result<(), (&'static str, String)> {
        let parent = step.parent_step_id.as_deref().unwrap_or_default();
        match step.kind {
            StepKind::Task => {}
            StepKind::Turn => match step.text.as_deref().map(thought).filter(|text| !text.is_empty()) {
                Some(text) => self.push(step, Role::Think, text),
                None => self.note("no_reasoning"),
            },
            StepKind::Plan => match step.text.as_deref().filter(|text| !text.trim().is_empty()) {
                Some(text) => self.push(step, Role::Plan, text),
                None => self.note("empty_plan"),
            },
            StepKind::Call => self.call(step)?,
            StepKind::Critique => {
                let text = step.text.as_deref().unwrap_or_default().trim();
                let role = if self.answering.contains(parent) { Role::DoubleCheck } else { Role::Reflection };
                let (reasoning, verdict) = match text.rsplit_once('\n') {
                    Some((reasoning, verdict)) => (reasoning.trim(), verdict.trim()),
                    None => ("", text),
                };
                if !reasoning.is_empty() {
                    self.push(step, Role::Think, reasoning);
                }
                self.push(step, role, verdict);
            }
            StepKind::Answer => {
                let text = step.text.clone().unwrap_or_default();
                if self.judged.contains(parent) {
                    self.push(step, Role::SuggestedAnswer, &text);
                }
                self.answer = Some(text);
                self.answer_step = Some(step.step_id.clone());
            }
        }
        Ok(())
    }

    fn call(&mut self, step: &Step) -> Result<(), (&'static str, String)> {
        let name = step.tool.as_deref().unwrap_or_default();
        if self.delegating.contains(step.step_id.as_str()) {
            self.note("sub_agent_report_left_out");
            if step.error.is_some() {
                self.note("delegation_error_left_out");
            }
            return Ok(());
        }
        let arguments = step.arguments.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let arguments = arguments.unwrap_or(Value::Null);
        let Some(tag) = tool_tag(name) else {
            return Err(("unknown_tool", format!("step {}: `{name}`", step.step_id)));
        };
        let body = tool_body(tag, &arguments);
        if tag == "code" && body.contains("search_agent(") {
            let detail = format!("step {}: no single record of the sub-agent fits its task", step.step_id);
            return Err(("sub_agent_not_joined", detail));
        }
        let segment = Segment { source_step: Some(step.step_id.clone()), ..Segment::new(Role::Tool, body) };
        let tool = Some(tag.to_owned());
        self.segments.push(Segment { tool: tool.clone(), arguments: step.arguments.clone(), ..segment });
        let result = match (&step.observation, &step.error) {
            (Some(text), None) => Some(printed(text).to_owned()),
            (text, Some(error)) => {
                let kind = step.error_type.as_deref().unwrap_or("Error");
                let logs = text.as_deref().map(printed).unwrap_or_default();
                Some(format!("{logs}\n{kind}: {error}").trim().to_owned())
            }
            (None, None) => None,
        };
        match result {
            Some(text) => {
                self.push(step, Role::Observation, &text);
                self.segments.last_mut().expect("just pushed").tool = tool;
            }
            None => self.note("call_without_result"),
        }
        Ok(())
    }
}

/// The tag of a teacher's tool.
fn tool_tag(name: &str) -> Option<&'static str> {
    Some(match name {
        "web_search" | "search" | "google_search" | "bing_search" | "baidu_search" | "duckduckgo_search"
        | "bocha_search" => "web_search",
        "wiki_search" => "wiki_search",
        "crawl_page" | "crawl_pages" | "crawl_pages_with_retrieve" | "find_archived_url" | "visit" | "visit_page" => {
            "crawl_page"
        }
        "code" | "python" | "python_interpreter" => "code",
        "visual_inspector" | "visualizer" | "inspect_file_as_image" => "visual_inspector",
        _ => return None,
    })
}

/// What stands between the tags of a call. Several queries or addresses in one call are joined by a bar.
fn tool_body(tag: &str, arguments: &Value) -> String {
    let field = |names: &[&str]| names.iter().find_map(|name| arguments.get(*name)).map(joined).unwrap_or_default();
    match tag {
        "web_search" | "wiki_search" => field(&["query", "q", "queries", "search"]),
        "crawl_page" => field(&["url", "urls", "page"]),
        "code" => format!("```py\n{}\n```", field(&["code", "source"]).trim_end()),
        _ => format!("```json\n{arguments}\n```"),
    }
}

fn joined(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(joined).collect::<Vec<_>>().join("|"),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The thought in what a model wrote before it acted: without the label and without the code that follows.
fn thought(text: &str) -> &str {
    let text = text.split("```").next().unwrap_or(text);
    let text = text.trim().strip_suffix("Code:").unwrap_or(text.trim());
    text.trim().strip_prefix("Thought:").unwrap_or(text.trim()).trim()
}

/// What a Python call printed, without the wrapper of the code-writing agent.
fn printed(observation: &str) -> &str {
    let text = observation.strip_prefix("Execution logs:\n").unwrap_or(observation);
    text.strip_suffix("Last output from code snippet:\nNone").unwrap_or(text).trim_end_matches('\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::{Parsed, fireact, oagents};
    use serde_json::json;

    fn told(parsed: Parsed) -> (Trajectory, Vec<(Role, String)>) {
        let trajectory = convert(&parsed.trace, &parsed.steps).unwrap();
        let roles = trajectory.segments.iter().map(|segment| (segment.role, segment.text.clone())).collect();
        (trajectory, roles)
    }

    fn action(step: u32, tool: &str, arguments: Value, observation: Value) -> Value {
        json!({"step_type": "action", "step": step, "model_output": format!("Thought: step {step}\nCode:\n```py\nx\n```"),
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": tool, "arguments": arguments}}],
            "observations": observation, "error": null, "score": 0.0, "evaluate_thought": null})
    }

    fn run(steps: Vec<Value>) -> Value {
        json!({"question": "q", "prediction": "84 m", "true_answer": "84 m", "intermediate_steps": steps,
            "agent_error": null, "search_agent_actions": {"Task: depth of Vall": {"tool_calls": [
                {"name": "google_search", "args": {"query": "vall"}, "observation": "84 m"}]}}})
    }

    #[test]
    fn a_run_of_several_agents_becomes_one_sequence() {
        let mut answer = action(3, "final_answer", json!({"answer": "84 m"}), Value::Null);
        answer["evaluate_thought"] = json!("both pages agree\nThe score is 4.");
        let mut critic = action(
            2,
            "python_interpreter",
            json!("print(80 + 4)"),
            json!("Execution logs:\n84\nLast output from code snippet:\nNone"),
        );
        critic["evaluate_thought"] = json!("good");
        let planning =
            json!({"step_type": "planning", "facts": "F:\n```\na lake\n```", "plan": "P:\n```\n1. look\n```"});
        let delegate = action(1, "python_interpreter", json!("search_agent(task='depth of Vall')"), json!("84 m"));
        let (trajectory, told) =
            told(oagents::parse(&run(vec![planning, delegate, critic, answer]), "t", None).unwrap());
        let expected = [
            (Role::Think, "a lake"),
            (Role::Plan, "1. look"),
            (Role::Think, "step 1"),
            (Role::Tool, "vall"),
            (Role::Observation, "84 m"),
            (Role::Think, "step 2"),
            (Role::Tool, "```py\nprint(80 + 4)\n```"),
            (Role::Observation, "84"),
            (Role::Reflection, "good"),
            (Role::Think, "step 3"),
            (Role::SuggestedAnswer, "84 m"),
            (Role::Think, "both pages agree"),
            (Role::DoubleCheck, "The score is 4."),
            (Role::Answer, "84 m"),
        ];
        let expected: Vec<(Role, String)> = expected.into_iter().map(|(role, text)| (role, text.to_owned())).collect();
        assert_eq!(told, expected);
        assert_eq!((trajectory.interactions, trajectory.tool_calls), (2, 2));
        assert_eq!(trajectory.notes, ["sub_agent_report_left_out"]);
    }

    #[test]
    fn what_cannot_be_told_has_a_reason() {
        let reason = |steps: Vec<Value>| {
            let parsed = oagents::parse(&run(steps), "t", None).unwrap();
            convert(&parsed.trace, &parsed.steps).unwrap_err().0
        };
        assert_eq!(reason(vec![action(1, "browse", json!({}), json!("x"))]), "unknown_tool");
        let lost = action(1, "python_interpreter", json!("search_agent(task='another')"), json!("x"));
        assert_eq!(reason(vec![lost]), "sub_agent_not_joined");
    }

    #[test]
    fn a_tool_error_is_what_the_agent_observed() {
        let mut failed = action(1, "web_search", json!({"query": "x"}), Value::Null);
        failed["error"] = json!({"type": "AgentToolExecutionError", "message": "timed out"});
        let (trajectory, told) = told(oagents::parse(&run(vec![failed]), "t", None).unwrap());
        assert_eq!(told[2], (Role::Observation, "AgentToolExecutionError: timed out".to_owned()));
        assert_eq!(trajectory.notes, ["answer_from_prediction"]);
    }

    #[test]
    fn a_fireact_row() {
        let row = json!({"instruction": "q", "output": "Thought: look\nAction: search[Vall]\nObservation: deep\n\
            Thought: so\nAction: finish[84 m]\nObservation: Episode finished, reward = True\n"});
        let (trajectory, told) = told(fireact::parse(&row, "t").unwrap());
        let roles: Vec<Role> = told.iter().map(|(role, _)| *role).collect();
        assert_eq!(roles, [Role::Think, Role::Tool, Role::Observation, Role::Think, Role::Answer]);
        assert_eq!((trajectory.interactions, trajectory.source_verdict), (1, Some(true)));
    }
}
