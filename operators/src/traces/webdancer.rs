//! WebDancer rows: `{messages: [{role, content}], answer: [[…]]}`, calls and thoughts as tags inside assistant text,
//! tool results as user messages wrapped in `<tool_response>`.
//!
//! Only assistant messages are read for tags, and only where the layout puts them: the prompt prints the same tags as
//! examples. `answer` is the accepted answer, not the model's.

use super::borrowed::Value;
use super::{Misfit, Parsed, answers, text};
use schemas::{Domain, Step, StepKind, Trace, TraceStatus};

/// Reads one row.
pub fn parse<'a>(record: impl Into<Value<'a>>, trace_id: &str) -> Result<Parsed, Misfit> {
    let record = &record.into();
    let messages = record.get("messages").ok_or_else(|| Misfit::missing("messages"))?;
    let messages = messages.as_array().ok_or_else(|| Misfit::wrong_type("messages", "a list", messages))?;
    let golden_answers = record.get("answer").map(answers).unwrap_or_default();

    let mut question = None;
    let mut steps: Vec<Step> = Vec::new();
    let mut open_call: Option<usize> = None;
    let mut answer = None;
    for message in messages {
        let content = text(message, "content")?;
        match text(message, "role")? {
            "system" => {}
            "user" if question.is_none() => question = Some(asked(content)),
            "user" => {
                let result = between(content, "<tool_response>", "</tool_response>").unwrap_or(content.trim());
                if let Some(call) = open_call.take() {
                    steps[call].observation = Some(result.to_owned());
                }
            }
            "assistant" => {
                let turn = push(&mut steps, trace_id, StepKind::Turn, None);
                steps[turn].text = between(content, "<think>", "</think>").map(str::to_owned);
                // What is said after the thought acts; a tag that is mentioned inside the thought does not.
                let said = content.rsplit_once("</think>").map_or(content, |(_, rest)| rest);
                let mut rest = said;
                while let Some((before, after)) = rest.split_once("</tool_call>") {
                    // Results of several calls come as one text: it belongs to the last of them.
                    if let Some((_, call)) = before.rsplit_once("<tool_call>") {
                        open_call = Some(push_call(&mut steps, trace_id, turn, call.trim())?);
                    }
                    rest = after;
                }
                if let Some(given) = between(rest, "<answer>", "</answer>") {
                    let at = push(&mut steps, trace_id, StepKind::Answer, Some(turn));
                    steps[at].text = Some(given.to_owned());
                    answer = Some(given.to_owned());
                }
            }
            other => {
                return Err(Misfit { code: "wrong_type", reason: format!("unknown message role `{other}`") });
            }
        }
    }
    let trace = Trace {
        trace_id: trace_id.to_owned(),
        source: String::new(),
        line: 0,
        byte_offset: 0,
        format: "webdancer".to_owned(),
        task_id: None,
        question: question.ok_or_else(|| Misfit { code: "missing_field", reason: "no user message".into() })?,
        golden_answers,
        prediction: answer.clone(),
        agent_answer: answer.clone(),
        source_verdict: None,
        domain: Domain::Qa,
        status: if answer.is_some() { TraceStatus::Completed } else { TraceStatus::IterationLimit },
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

/// The question within the prompt: what follows its last "User:" label, or the whole message.
fn asked(prompt: &str) -> String {
    let question = prompt.rsplit_once("\nUser:").map_or(prompt, |(_, rest)| rest);
    question.trim().trim_end_matches("Assistant:").trim().to_owned()
}

fn push_call(steps: &mut Vec<Step>, trace_id: &str, turn: usize, call: &str) -> Result<usize, Misfit> {
    let bad = |reason: String| Misfit { code: "wrong_type", reason };
    let call: serde_json::Value =
        serde_json::from_str(call).map_err(|error| bad(format!("a tool_call is not JSON: {error}")))?;
    let call = Value::from(&call);
    let at = push(steps, trace_id, StepKind::Call, Some(turn));
    steps[at].tool = Some(text(&call, "name")?.to_owned());
    steps[at].arguments = call.get("arguments").map(Value::to_string);
    Ok(at)
}

fn push(steps: &mut Vec<Step>, trace_id: &str, kind: StepKind, parent: Option<usize>) -> usize {
    let at = steps.len();
    let mut step = Step::new(trace_id, at.to_string(), at, kind);
    step.parent_step_id = parent.map(|parent| parent.to_string());
    steps.push(step);
    at
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let start = text.find(open)? + open.len();
    let length = text[start..].find(close)?;
    Some(text[start..start + length].trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tags_in_the_prompt_are_no_calls() {
        let record = json!({"answer": [["Derby"]], "messages": [
            {"role": "system", "content": "You search."},
            {"role": "user", "content": "Use <tool_call>{}</tool_call>, end with <answer> x </answer>.\nUser: Which race?"},
            {"role": "assistant", "content": "<think>\nlook\n</think>\n<tool_call>\n{\"name\": \"search\", \
              \"arguments\": {\"query\": [\"a\", \"b\"]}}\n</tool_call>"},
            {"role": "user", "content": "<tool_response>\nthe Derby\n</tool_response>"},
            {"role": "assistant", "content": "<think>\nso\n</think>\n<answer>\nThe **Derby**\n</answer>"}]});
        let Parsed { trace, steps } = parse(&record, "t").unwrap();
        assert_eq!(trace.question, "Which race?");
        assert_eq!(trace.golden_answers, ["Derby"]);
        assert_eq!(trace.agent_answer.as_deref(), Some("The **Derby**"));
        let calls: Vec<&Step> = steps.iter().filter(|step| step.kind == StepKind::Call).collect();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].observation.as_deref(), Some("the Derby"));
    }

    #[test]
    fn every_call_of_a_message_is_read() {
        let call = |query: &str| {
            format!("<tool_call>{{\"name\": \"search\", \"arguments\": {{\"query\": \"{query}\"}}}}</tool_call>")
        };
        let record = json!({"messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": format!("<think>t</think>{}\n{}", call("a"), call("b"))},
            {"role": "user", "content": "<tool_response>both</tool_response>"}]});
        let steps = parse(&record, "t").unwrap().steps;
        let calls: Vec<Option<&str>> = steps[1..].iter().map(|step| step.observation.as_deref()).collect();
        assert_eq!(calls, [None, Some("both")]);
    }
}
