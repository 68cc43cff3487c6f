//! OAgents run records: one JSON object a run.
//!
//! What the layout hides, and what is made of it:
//! - `prediction` was rewritten by a separate model after the run; the agent's own answer is the last action's output,
//!   whether `final_answer` was called as a tool or from Python source.
//! - `intermediate_steps` is empty after an exception although the run had steps; the status says so.
//! - The search sub-agent's calls stand apart, in `search_agent_actions`, keyed by the full task text, without order or
//!   time. They are joined to the call in whose source the task's text occurs. Where one task of a source fits no record
//!   or several, none of that source is joined, and conversion rejects the run: half a delegation tells a wrong story.
//! - Facts and plan stand in an English lead-in and a fence of backticks; both wrappers are stripped.
//! - A judge's `score` and `evaluate_thought` belong to the action they stand in.

use chrono_tz::Tz;
use schemas::{Domain, Step, StepKind, Trace, TraceStatus};
use serde_json::{Map, Value as Json, json};

use super::borrowed::Value;
use super::values::Values;
use super::{Misfit, Parsed, answers, scalar, text};

/// The sub-agent's calls by its full task text.
type SubAgents<'a> = Vec<(&'a str, &'a [Value<'a>])>;

/// Reads one record. Times without an offset are those of `zone`.
pub fn parse<'a>(record: impl Into<Value<'a>>, trace_id: &str, zone: Option<Tz>) -> Result<Parsed, Misfit> {
    let record = &record.into();
    let question = text(record, "question")?.to_owned();
    let recorded = record.get("intermediate_steps").unwrap_or(&Value::Null);
    let recorded = match recorded {
        Value::Array(steps) => steps.as_slice(),
        Value::Null => &[],
        other => return Err(Misfit::wrong_type("intermediate_steps", "a list", other)),
    };
    let flag = |field: &str| record.get(field).and_then(Value::as_bool).unwrap_or(false);
    let error = record.get("agent_error").and_then(scalar);
    let status = if error.is_some() {
        TraceStatus::AgentError
    } else if flag("iteration_limit_exceeded") {
        TraceStatus::IterationLimit
    } else if flag("parsing_error") && recorded.is_empty() {
        TraceStatus::ParsingError
    } else {
        TraceStatus::Completed
    };

    let sub_agents: SubAgents<'_> = record
        .get("search_agent_actions")
        .and_then(Value::as_object)
        .map(|actions| {
            let calls = actions.iter().map(|(task, action)| (*task, action.get("tool_calls")));
            calls.filter_map(|(task, calls)| Some((task, calls?.as_array()?))).collect()
        })
        .unwrap_or_default();

    let last = recorded.iter().rposition(|step| step_type(step) == "action");
    let mut values = Values::new(zone);
    let started_at = values.time("start_time", record.get("start_time"));
    let ended_at = values.time("end_time", record.get("end_time"));
    let mut builder = Builder { trace_id, steps: Vec::new(), answer: None, values };
    for (index, step) in recorded.iter().enumerate() {
        builder.step(index, step, last == Some(index), &sub_agents)?;
    }
    let trace = Trace {
        trace_id: trace_id.to_owned(),
        source: String::new(),
        line: 0,
        byte_offset: 0,
        format: "oagents".to_owned(),
        task_id: record.get("task_id").and_then(scalar),
        question,
        golden_answers: record.get("true_answer").map(answers).unwrap_or_default(),
        prediction: record.get("prediction").and_then(scalar),
        agent_answer: builder.answer,
        source_verdict: None,
        domain: Domain::Qa,
        status,
        error,
        agent_name: record.get("agent_name").and_then(scalar),
        started_at,
        ended_at,
        steps: builder.steps.len() as i64,
        repaired: Vec::new(),
        unread: builder.values.unread(),
    };
    Ok(Parsed { trace, steps: builder.steps })
}

struct Builder<'a> {
    trace_id: &'a str,
    steps: Vec<Step>,
    answer: Option<String>,
    values: Values,
}

impl Builder<'_> {
    fn push(&mut self, id: String, kind: StepKind, parent: Option<&str>, agent: Option<&str>) -> &mut Step {
        let mut step = Step::new(self.trace_id, id, self.steps.len(), kind);
        step.parent_step_id = parent.map(str::to_owned);
        step.agent = agent.map(str::to_owned);
        self.steps.push(step);
        self.steps.last_mut().expect("just pushed")
    }

    fn step(&mut self, index: usize, step: &Value<'_>, last: bool, sub_agents: &SubAgents<'_>) -> Result<(), Misfit> {
        let agent = step.get("agent").and_then(Value::as_str);
        let written = |field: &str| step.get(field).and_then(scalar).filter(|text| !text.trim().is_empty());
        match step_type(step) {
            "task" => self.push(format!("{index}"), StepKind::Task, None, agent).text = written("task"),
            "planning" => {
                if let Some(facts) = written("facts").map(|facts| unfence(&facts)).filter(|facts| !facts.is_empty()) {
                    self.push(format!("{index}.facts"), StepKind::Turn, None, agent).text = Some(facts);
                }
                let plan = written("plan").map(|plan| unfence(&plan));
                self.push(format!("{index}.plan"), StepKind::Plan, None, agent).text = plan;
            }
            "action" => self.action(index, step, last, sub_agents)?,
            _ => self.push(format!("{index}"), StepKind::Turn, None, agent).text = written("model_output"),
        }
        Ok(())
    }

    fn action(&mut self, index: usize, step: &Value<'_>, last: bool, sub_agents: &SubAgents<'_>) -> Result<(), Misfit> {
        let agent = step.get("agent").and_then(Value::as_str);
        let id = format!("{index}");
        self.values.at_step(index);
        let started_at = self.values.time("start_time", step.get("start_time"));
        let ended_at = self.values.time("end_time", step.get("end_time"));
        let turn = self.push(id.clone(), StepKind::Turn, None, agent);
        turn.text = step.get("model_output").and_then(scalar);
        (turn.started_at, turn.ended_at) = (started_at, ended_at);
        turn.calls = step.get("tool_calls").and_then(Value::as_array).map(|calls| calls.len() as i64);
        if let Some(error) = step.get("error").filter(|error| !error.is_null()) {
            turn.error_type = error.get("type").and_then(scalar);
            turn.error = error.get("message").and_then(scalar).or_else(|| scalar(error));
        }
        let failure = (turn.error_type.clone(), turn.error.clone());
        let observations = step.get("observations").and_then(scalar);
        let calls = match step.get("tool_calls") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(calls)) => calls.as_slice(),
            Some(other) => return Err(Misfit::wrong_type("tool_calls", "a list", other)),
        };
        for (number, call) in calls.iter().enumerate() {
            let function = call.get("function").unwrap_or(call);
            let name = text(function, "name")?;
            let call_id = format!("{id}.{number}");
            if name == "final_answer" {
                let output = || step.get("action_output").and_then(scalar);
                self.answer(
                    call_id,
                    &id,
                    agent,
                    final_answer(function.get("arguments").map(Value::to_json).as_ref()).or_else(output),
                );
                continue;
            }
            let arguments = arguments(function.get("arguments").map(Value::to_json));
            let source = arguments.get("code").and_then(Json::as_str);
            // The last action's output is the answer where its source gives one.
            let output = step.get("action_output").and_then(scalar).filter(|_| last && failure.1.is_none());
            let output = output.filter(|_| source.is_some_and(|source| source.contains("final_answer(")));
            if output.is_some() && source.is_some_and(only_answers) {
                self.answer(call_id, &id, agent, output);
                continue;
            }
            let row = self.push(call_id.clone(), StepKind::Call, Some(&id), agent);
            row.tool = Some(name.to_owned());
            row.call_id = call.get("id").and_then(scalar);
            row.arguments = Some(arguments.to_string());
            // A step's observations are one text for all its calls: it belongs to the last of them.
            if number + 1 == calls.len() {
                row.observation = observations.clone();
                (row.error_type, row.error) = failure.clone();
            }
            self.delegated(&call_id, source, sub_agents)?;
            if output.is_some() {
                self.answer(format!("{call_id}.answer"), &id, agent, output);
            }
        }
        let judged = step.get("evaluate_thought").and_then(Value::as_str).filter(|text| !text.trim().is_empty());
        if let Some(judgement) = judged {
            let critic = self.values.number("score", step.get("score"));
            let row = self.push(format!("{id}.critique"), StepKind::Critique, Some(&id), Some("critic"));
            row.text = Some(judgement.to_owned());
            row.score = critic;
        }
        Ok(())
    }

    fn answer(&mut self, id: String, turn: &str, agent: Option<&str>, answer: Option<String>) {
        self.push(id, StepKind::Answer, Some(turn), agent).text = answer.clone();
        self.answer = answer;
    }

    /// The calls of the sub-agent whose task texts occur in a manager's source.
    fn delegated(&mut self, call: &str, source: Option<&str>, sub_agents: &SubAgents<'_>) -> Result<(), Misfit> {
        let Some(source) = source else { return Ok(()) };
        let mut made: Vec<&Value<'_>> = Vec::new();
        for task in task_texts(source) {
            let Some(task) = task.filter(|task| !task.trim().is_empty()) else { return Ok(()) };
            let mut matching = sub_agents.iter().filter(|(key, _)| key.contains(&task));
            let (Some((_, calls)), None) = (matching.next(), matching.next()) else { return Ok(()) };
            made.extend(calls.iter());
        }
        for (number, made) in made.into_iter().enumerate() {
            let name = text(made, "name")?.to_owned();
            let row = self.push(format!("{call}.{number}"), StepKind::Call, Some(call), Some("search_agent"));
            row.tool = Some(name);
            row.arguments = Some(arguments(made.get("args").map(Value::to_json)).to_string());
            row.observation = made.get("observation").and_then(scalar);
        }
        Ok(())
    }
}

fn step_type<'a>(step: &Value<'a>) -> &'a str {
    step.get("step_type").and_then(Value::as_str).unwrap_or_else(|| guess(step))
}

/// The kind of a step that does not say: smolagents' records tell by their keys.
fn guess(step: &Value<'_>) -> &'static str {
    if step.get("step").is_some() || step.get("step_number").is_some() {
        "action"
    } else if step.get("plan").is_some() {
        "planning"
    } else if step.get("task").is_some() {
        "task"
    } else {
        "unknown"
    }
}

/// Text inside a fence of three backticks, without the lead-in; the whole text where there is none.
fn unfence(text: &str) -> String {
    let inner = text.split_once("```").and_then(|(_, rest)| rest.rsplit_once("```")).map(|(inner, _)| inner);
    inner.unwrap_or(text).trim().to_owned()
}

/// The task texts a manager's Python source hands to its sub-agent: for each call `search_agent(…)` the first string
/// literal between its parentheses; `None` for a call without one.
fn task_texts(source: &str) -> Vec<Option<String>> {
    source.match_indices("search_agent(").map(|(at, name)| arguments_of(&source[at + name.len()..]).0).collect()
}

/// Whether a source does nothing but give the answer.
fn only_answers(source: &str) -> bool {
    let statements = source.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    let source = statements.collect::<Vec<_>>().join("\n");
    source.trim().strip_prefix("final_answer(").is_some_and(|rest| arguments_of(rest).1.trim().is_empty())
}

/// Reads Python source from behind an opening parenthesis to the one that closes it: the first string literal in
/// between, and what follows.
fn arguments_of(source: &str) -> (Option<String>, &str) {
    let mut first = None;
    let mut depth = 1;
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        rest = match next {
            '\'' | '"' => {
                let (literal, after) = string_literal(rest);
                first = first.or(literal);
                after
            }
            '#' => rest.find('\n').map_or("", |end| &rest[end..]),
            '(' | '[' | '{' => {
                depth += 1;
                &rest[1..]
            }
            ')' | ']' | '}' => {
                depth -= 1;
                &rest[1..]
            }
            other => &rest[other.len_utf8()..],
        };
        if depth == 0 {
            break;
        }
    }
    (first, rest)
}

/// The string literal at the start of a source, and what follows; none where it does not end.
fn string_literal(source: &str) -> (Option<String>, &str) {
    let quote = &source[..1];
    let triple = quote.repeat(3);
    let end = if source.starts_with(&triple) { triple.as_str() } else { quote };
    let mut text = String::new();
    let mut rest = &source[end.len()..];
    while let Some(next) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix(end) {
            return (Some(text), after);
        }
        rest = &rest[next.len_utf8()..];
        if next != '\\' {
            text.push(next);
            continue;
        }
        let Some(escaped) = rest.chars().next() else { break };
        rest = &rest[escaped.len_utf8()..];
        match escaped {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            '\'' | '"' | '\\' => text.push(escaped),
            '\n' => {}
            other => text.extend(['\\', other]),
        }
    }
    (None, "")
}

/// A call's arguments as an object, whatever form they were logged in: an object, JSON text, JSON text twice, or the
/// source code of a Python call, which becomes `{"code": …}`.
fn arguments(value: Option<Json>) -> Json {
    match value {
        Some(Json::Object(map)) => Json::Object(map),
        Some(Json::String(text)) => match serde_json::from_str(&text) {
            Ok(Json::Object(map)) => Json::Object(map),
            Ok(Json::String(inner)) if inner.len() < text.len() => arguments(Some(Json::String(inner))),
            _ => json!({ "code": text }),
        },
        None | Some(Json::Null) => Json::Object(Map::new()),
        Some(other) => json!({ "value": other }),
    }
}

/// The answer in the arguments of `final_answer`: text, or an object with one value.
fn final_answer(arguments: Option<&Json>) -> Option<String> {
    match arguments? {
        Json::Object(map) => map.get("answer").or_else(|| map.values().next()).and_then(|only| scalar(&only.into())),
        Json::String(text) => match serde_json::from_str(text) {
            Ok(Json::Object(map)) => final_answer(Some(&Json::Object(map))),
            _ => Some(text.clone()),
        },
        other => scalar(&other.into()),
    }
}

#[cfg(test)]
mod tests {
    use schemas::Micros;
    use serde_json::Value;

    use super::*;

    fn record() -> Value {
        json!({"agent_name": "teacher-x", "question": "How deep is Lake Vall?", "prediction": "84 metres",
            "true_answer": 84, "task_id": 7, "parsing_error": false, "iteration_limit_exceeded": false,
            "agent_error": null, "start_time": "2025-08-01 10:00:00", "end_time": "not yet",
            "intermediate_steps": [
                {"step_type": "task", "task": "How deep?", "task_images": null},
                {"step_type": "planning", "facts": "Here are the facts:\n```\n- a lake\n```", "plan": "Plan:\n```\n1. look up\n```"},
                {"step_type": "action", "step": 1, "start_time": 1.0, "end_time": 9.5, "error": null,
                 "tool_calls": [{"id": "call_2", "type": "function", "function": {"name": "python_interpreter",
                    "arguments": "r = search_agent(task='depth of Lake Vall')\nprint(r)"}}],
                 "model_output": "Thought: ask the searcher\nCode:\n```py\nr = ...\n```",
                 "observations": "Execution logs:\n84 m\nLast output from code snippet:\nNone",
                 "action_output": null, "score": 8, "evaluate_thought": "on the way"},
                {"step_type": "action", "step": 2, "model_output": "done", "error": {"type": "AgentError", "message": "late"},
                 "tool_calls": [{"id": "c", "type": "function", "function": {"name": "final_answer", "arguments": {"answer": 84.0}}}],
                 "observations": null, "score": 0.0, "evaluate_thought": ""}],
            "search_agent_actions": {"You are search_agent. Task: depth of Lake Vall": {"answer": "84 m", "tool_calls": [
                {"name": "google_search", "args": {"query": "Lake Vall depth"}, "observation": "84 m"},
                {"name": "crawl_pages", "args": {"url": "https://example.org/vall"}, "observation": "page"}]}}})
    }

    #[test]
    fn the_sub_agents_calls_stand_below_the_managers() {
        let Parsed { trace, steps } = parse(&record(), "t", Some(chrono_tz::UTC)).unwrap();
        assert_eq!(trace.task_id.as_deref(), Some("7"));
        assert_eq!(trace.golden_answers, ["84"]);
        assert_eq!(trace.agent_answer.as_deref(), Some("84"));
        assert_eq!(trace.prediction.as_deref(), Some("84 metres"));
        assert_eq!(trace.started_at, Some(Micros(1_754_042_400_000_000)));
        assert_eq!(trace.ended_at, None);
        assert_eq!(trace.unread.unwrap(), ["end_time: \"not yet\" is no time in a form that is read"]);
        let ids: Vec<&str> = steps.iter().map(|step| step.step_id.as_str()).collect();
        assert_eq!(ids, ["0", "1.facts", "1.plan", "2", "2.0", "2.0.0", "2.0.1", "2.critique", "3", "3.0"]);
        assert_eq!(steps[1].text.as_deref(), Some("- a lake"));
        assert_eq!(steps[5].tool.as_deref(), Some("google_search"));
        assert_eq!(steps[5].parent_step_id.as_deref(), Some("2.0"));
        assert_eq!(steps[7].score, Some(8.0));
        assert_eq!(steps[3].ended_at, Some(Micros(9_500_000)));
        assert_eq!((steps[0].calls, steps[3].calls, steps[8].calls), (None, Some(1), Some(1)));
        assert_eq!(steps[8].error_type.as_deref(), Some("AgentError"));
    }

    #[test]
    fn an_answer_given_from_python_source_is_the_answer() {
        let mut run = record();
        let last = |source: &str| {
            json!({"step_type": "action", "step": 2, "model_output": "done", "error": null,
                "tool_calls": [{"id": "c", "function": {"name": "python_interpreter", "arguments": source}}],
                "observations": "Execution logs:\nLast output from code snippet:\n84 m", "action_output": "84 m"})
        };
        run["intermediate_steps"][3] = last("# so\nfinal_answer(f\"{84} (m)\")");
        let Parsed { trace, steps } = parse(&run, "t", None).unwrap();
        assert_eq!(trace.agent_answer.as_deref(), Some("84 m"));
        assert_eq!(steps.last().unwrap().kind, StepKind::Answer);
        assert_eq!(steps.iter().filter(|step| step.kind == StepKind::Call).count(), 3);

        run["intermediate_steps"][3] = last("depth = 80 + 4\nfinal_answer(f'{depth} m')");
        let Parsed { trace, steps } = parse(&run, "t", None).unwrap();
        assert_eq!(trace.agent_answer.as_deref(), Some("84 m"));
        let kinds: Vec<StepKind> = steps[steps.len() - 2..].iter().map(|step| step.kind).collect();
        assert_eq!(kinds, [StepKind::Call, StepKind::Answer]);

        // Before the last action, and without such a call, an output is only an output.
        run["intermediate_steps"][2]["action_output"] = json!("84");
        run["intermediate_steps"][3] = last("print(84)");
        assert_eq!(parse(&run, "t", None).unwrap().trace.agent_answer, None);
    }

    #[test]
    fn a_source_with_several_tasks_is_joined_whole_or_not_at_all() {
        let calls = |source: &str| -> Vec<String> {
            let mut run = record();
            run["search_agent_actions"]["Task: width of Lake Vall"] =
                json!({"tool_calls": [{"name": "google_search", "args": {"query": "width"}, "observation": "9 m"}]});
            run["intermediate_steps"][2]["tool_calls"][0]["function"]["arguments"] = json!(source);
            let steps = parse(&run, "t", None).unwrap().steps;
            steps.into_iter().filter(|step| step.agent.as_deref() == Some("search_agent")).map(|s| s.step_id).collect()
        };
        let both = "a = search_agent(task='depth of Lake Vall')\nb = search_agent(task=\"width of Lake Vall\")";
        assert_eq!(calls(both), ["2.0.0", "2.0.1", "2.0.2"]);
        assert!(calls("search_agent(task='depth of Lake Vall')\nsearch_agent(task='height')").is_empty());
        assert!(calls("search_agent(task=q)\nprint('depth of Lake Vall')").is_empty());
    }

    #[test]
    fn string_literals_are_read_as_python_reads_them() {
        let texts = |source: &str| task_texts(source);
        assert_eq!(texts("search_agent(task='it\\'s (1')"), [Some("it's (1".to_owned())]);
        assert_eq!(texts("search_agent(\"\"\"two\n\"lines\" \"\"\")"), [Some("two\n\"lines\" ".to_owned())]);
        assert_eq!(texts("search_agent(q); print(\"\\n\")"), [None]);
        assert_eq!(texts("search_agent('open"), [None]);
    }

    #[test]
    fn a_crashed_run_is_read_with_its_status() {
        let mut crashed = record();
        crashed["agent_error"] = json!("boom");
        crashed["intermediate_steps"] = json!([]);
        crashed["prediction"] = Value::Null;
        let Parsed { trace, steps } = parse(&crashed, "t", None).unwrap();
        assert_eq!(trace.status, TraceStatus::AgentError);
        assert_eq!(trace.prediction, None);
        assert!(steps.is_empty());
    }

    #[test]
    fn arguments_have_one_form() {
        let object = json!({"query": "tower \"Old Meg\""});
        let text = object.to_string();
        let twice = json!(text).to_string();
        for form in [object.clone(), json!(text), json!(twice)] {
            assert_eq!(arguments(Some(form)), object);
        }
        assert_eq!(arguments(Some(json!("print(1)"))), json!({"code": "print(1)"}));
        assert_eq!(arguments(None), json!({}));
    }
}
