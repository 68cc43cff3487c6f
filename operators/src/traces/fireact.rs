//! FireAct rows: `{instruction, input, output}`, the output being lines `Thought:`, `Action: search[…]` or
//! `finish[…]`, `Observation:`.
//!
//! The last observation states the episode's reward. It becomes the trace's verdict and never text: a model trained on
//! it would learn to announce its own success.

use schemas::{Domain, Step, StepKind, Trace, TraceStatus};
use serde_json::json;

use super::borrowed::Value;
use super::{Misfit, Parsed, text};

/// Reads one row.
pub fn parse<'a>(record: impl Into<Value<'a>>, trace_id: &str) -> Result<Parsed, Misfit> {
    let record = &record.into();
    let mut question = text(record, "instruction")?.trim().to_owned();
    let input = record.get("input").and_then(Value::as_str).unwrap_or_default().trim();
    if !input.is_empty() {
        question = format!("{question}\n{input}");
    }
    let output = text(record, "output")?;

    let mut steps: Vec<Step> = Vec::new();
    let mut turn: Option<usize> = None;
    let mut call: Option<usize> = None;
    let mut verdict = None;
    let mut answer = None;
    for field in fields(output) {
        match field {
            Field::Thought(thought) => {
                turn = Some(push(&mut steps, trace_id, StepKind::Turn, None));
                steps[turn.expect("just set")].text = Some(thought.to_owned());
                call = None;
            }
            Field::Action(action) => {
                let (name, argument) = split_action(action);
                let kind = if name == "finish" { StepKind::Answer } else { StepKind::Call };
                let at = push(&mut steps, trace_id, kind, turn);
                if kind == StepKind::Answer {
                    answer = Some(argument.to_owned());
                    steps[at].text = Some(argument.to_owned());
                } else {
                    steps[at].tool = Some(name.to_owned());
                    steps[at].arguments = Some(json!({ "query": argument }).to_string());
                }
                call = (kind == StepKind::Call).then_some(at);
            }
            Field::Observation(observation) => {
                if let Some(reward) = observation.strip_prefix("Episode finished, reward = ") {
                    verdict = match reward.trim() {
                        "True" | "1" => Some(true),
                        "False" | "0" => Some(false),
                        _ => None,
                    };
                } else if let Some(at) = call {
                    steps[at].observation = Some(observation.to_owned());
                }
            }
        }
    }
    if steps.is_empty() {
        return Err(Misfit {
            code: "wrong_type",
            reason: "`output` has no Thought, Action or Observation line".into(),
        });
    }
    let status = if answer.is_some() { TraceStatus::Completed } else { TraceStatus::IterationLimit };
    let trace = Trace {
        trace_id: trace_id.to_owned(),
        source: String::new(),
        line: 0,
        byte_offset: 0,
        format: "fireact".to_owned(),
        task_id: None,
        question,
        golden_answers: Vec::new(),
        prediction: answer.clone(),
        agent_answer: answer,
        source_verdict: verdict,
        domain: Domain::Qa,
        status,
        error: None,
        agent_name: None,
        started_at: None,
        ended_at: None,
        steps: steps.len() as i64,
        repaired: Vec::new(),
        unread: None,
    };
    Ok(Parsed { trace, steps })
}

fn push(steps: &mut Vec<Step>, trace_id: &str, kind: StepKind, parent: Option<usize>) -> usize {
    let at = steps.len();
    let mut step = Step::new(trace_id, at.to_string(), at, kind);
    step.parent_step_id = parent.map(|parent| parent.to_string());
    steps.push(step);
    at
}

enum Field<'a> {
    Thought(&'a str),
    Action(&'a str),
    Observation(&'a str),
}

/// The labelled parts of an output; a part runs to the next line that starts with a label. Text before the first label
/// is a thought that was not labelled.
fn fields(output: &str) -> Vec<Field<'_>> {
    const LABELS: [&str; 3] = ["Thought:", "Action:", "Observation:"];
    let starts = |line: &str| LABELS.iter().any(|label| line.starts_with(label));
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    for line in output.split_inclusive('\n') {
        if starts(line) {
            parts.push((at, at + line.len()));
        } else if let Some(last) = parts.last_mut() {
            last.1 = at + line.len();
        }
        at += line.len();
    }
    let unlabelled = parts.first().map(|(start, _)| output[..*start].trim()).filter(|text| !text.is_empty());
    let labelled = parts.into_iter().map(|(start, end)| {
        let part = &output[start..end];
        if let Some(rest) = part.strip_prefix(LABELS[0]) {
            Field::Thought(rest.trim())
        } else if let Some(rest) = part.strip_prefix(LABELS[1]) {
            Field::Action(rest.trim())
        } else {
            Field::Observation(part[LABELS[2].len()..].trim())
        }
    });
    unlabelled.map(Field::Thought).into_iter().chain(labelled).collect()
}

/// `search[a [b] c]` is the action `search` on `a [b] c`; an action without brackets has no argument.
fn split_action(action: &str) -> (&str, &str) {
    match action.split_once('[') {
        Some((name, rest)) => (name.trim(), rest.strip_suffix(']').unwrap_or(rest).trim()),
        None => (action.trim(), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reward_is_a_verdict_and_no_text() {
        let record = json!({"instruction": "Which lake?", "input": "", "output":
            "Thought: look\nAction: search[Lake [Vall]]\nObservation: deep\nand cold\nThought: so\n\
             Action: finish[Vall]\nObservation: Episode finished, reward = True\n"});
        let Parsed { trace, steps } = parse(&record, "t").unwrap();
        assert_eq!(trace.source_verdict, Some(true));
        assert_eq!(trace.agent_answer.as_deref(), Some("Vall"));
        let kinds: Vec<StepKind> = steps.iter().map(|step| step.kind).collect();
        assert_eq!(kinds, [StepKind::Turn, StepKind::Call, StepKind::Turn, StepKind::Answer]);
        assert_eq!(steps[1].arguments.as_deref(), Some(r#"{"query":"Lake [Vall]"}"#));
        assert_eq!(steps[1].observation.as_deref(), Some("deep\nand cold"));
        assert!(steps.iter().all(|step| !format!("{step:?}").contains("reward")));
    }

    #[test]
    fn text_before_the_first_label_is_a_thought() {
        let record = json!({"instruction": "q", "output": "I know it.\nAction: finish[Vall]\n"});
        let steps = parse(&record, "t").unwrap().steps;
        assert_eq!((steps[0].kind, steps[0].text.as_deref()), (StepKind::Turn, Some("I know it.")));
        assert_eq!(steps[1].kind, StepKind::Answer);
    }

    #[test]
    fn a_row_of_another_layout_is_a_misfit() {
        assert_eq!(parse(&json!({"question": "x"}), "t").err().unwrap().code, "missing_field");
        assert_eq!(parse(&json!({"instruction": 3, "output": ""}), "t").err().unwrap().code, "wrong_type");
        assert_eq!(parse(&json!({"instruction": "x", "output": "hello"}), "t").err().unwrap().code, "wrong_type");
    }
}
