//! One rollout on its way: what was written and observed so far, and what comes next.

use std::time::Instant;

use operators::OperatorError;
use operators::coa::render::{self, observation};
use operators::coa::{answer, tags};
use operators::tokens::Codec;
use schemas::{Finish, Question, Role, Rollout, Segment};
use tools::{Observation, ToolError, Toolbox};

/// When a rollout is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens, the prompt and observations included.
    pub tokens: usize,
    /// Tool calls.
    pub calls: usize,
}

/// What a rollout does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It writes on.
    Write,
    /// It waits for a tool.
    Call {
        /// The tool's tag.
        tag: &'static str,
        /// The text between the tags.
        body: String,
    },
    /// It is over.
    End(Finish),
}

/// One rollout on its way.
pub struct Agent {
    question: Question,
    sample: i64,
    ids: Vec<u32>,
    sampled: Vec<bool>,
    log_probs: Vec<f32>,
    prompt: usize,
    /// Where the model's current turn begins.
    turn: usize,
    segments: Vec<Segment>,
    calls: usize,
    failed: usize,
    tool_seconds: f64,
    observed: usize,
    began: Instant,
}

/// The end of a turn that is looked at for a closing tag: tags are shorter than this many tokens.
const TAIL: usize = 24;

impl Agent {
    /// A rollout that has its prompt and nothing else.
    pub fn new(codec: &Codec, question: Question, sample: i64) -> Result<Self, OperatorError> {
        let ids = codec.prompt(&question.question)?;
        let prompt = ids.len();
        Ok(Self {
            question,
            sample,
            sampled: vec![false; prompt],
            log_probs: vec![0.0; prompt],
            ids,
            prompt,
            turn: prompt,
            segments: Vec::new(),
            calls: 0,
            failed: 0,
            tool_seconds: 0.0,
            observed: 0,
            began: Instant::now(),
        })
    }

    /// A name that no other rollout has.
    pub fn id(&self) -> String {
        format!("{}-{}", self.question.question_id, self.sample)
    }

    /// All ids so far.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Takes in a sampled id and says what comes next.
    pub fn wrote(&mut self, codec: &Codec, id: u32, log_prob: f32, limits: Limits) -> Result<Next, OperatorError> {
        self.ids.push(id);
        self.sampled.push(true);
        self.log_probs.push(log_prob);
        if id == codec.turn_end() {
            self.end_turn(codec, true)?;
            return Ok(Next::End(Finish::Stop));
        }
        let tail = self.ids.len().saturating_sub(TAIL).max(self.turn);
        if let Some(tag) = closed(&codec.decode(&self.ids[tail..])?) {
            if tag == tags::name(Role::Answer) {
                self.end_turn(codec, false)?;
                return Ok(Next::End(Finish::Answer));
            }
            if self.calls == limits.calls {
                self.end_turn(codec, false)?;
                return Ok(Next::End(Finish::CallLimit));
            }
            let turn = codec.decode(&self.ids[self.turn..])?;
            self.calls += 1;
            return Ok(Next::Call { tag, body: body_of(&turn, tag).unwrap_or_default() });
        }
        if self.ids.len() >= limits.tokens {
            self.end_turn(codec, false)?;
            return Ok(Next::End(Finish::Length));
        }
        Ok(Next::Write)
    }

    /// Runs the tool of a call. May be called on another thread.
    pub fn use_tool(tools: &Toolbox, tag: &str, body: &str) -> Result<(Observation, f64), ToolError> {
        let began = Instant::now();
        let observation = tools.call(tag, body)?;
        Ok((observation, began.elapsed().as_secs_f64()))
    }

    /// Takes in what a tool returned: ids to be read before the model writes on. `None` where there is no room for them;
    /// then the rollout is over.
    pub fn observe(
        &mut self,
        codec: &Codec,
        tag: &str,
        observed: &Observation,
        seconds: f64,
        limits: Limits,
    ) -> Result<Option<Vec<u32>>, OperatorError> {
        self.tool_seconds += seconds;
        self.failed += usize::from(observed.failed);
        self.end_turn(codec, false)?;
        let ids = codec.encode(&observation(&tags::escape(&observed.text)))?.ids;
        if self.ids.len() + ids.len() >= limits.tokens {
            return Ok(None);
        }
        let mut segment = Segment::new(Role::Observation, &observed.text);
        segment.tool = Some(tag.to_owned());
        self.segments.push(segment);
        self.observed += ids.len();
        self.ids.extend(&ids);
        self.sampled.resize(self.ids.len(), false);
        self.log_probs.resize(self.ids.len(), 0.0);
        self.turn = self.ids.len();
        Ok(Some(ids))
    }

    /// Turns what the model wrote since the last observation into segments.
    fn end_turn(&mut self, codec: &Codec, with_end: bool) -> Result<(), OperatorError> {
        let end = self.ids.len() - usize::from(with_end);
        if end > self.turn {
            let (segments, _) = render::parse(&codec.decode(&self.ids[self.turn..end])?);
            self.segments.extend(segments);
        }
        self.turn = self.ids.len();
        Ok(())
    }

    /// The rollout as a row.
    pub fn finish(self, finish: Finish, temperature: f64, model: &str) -> Rollout {
        let id = self.id();
        let given = self.segments.iter().rev().find(|segment| segment.role == Role::Answer);
        let given = given.filter(|_| finish == Finish::Answer).map(|segment| segment.text.clone());
        let right = given.as_deref().and_then(|text| answer::exact_match(&self.question.golden_answers, text));
        Rollout {
            rollout_id: id,
            question_id: self.question.question_id,
            sample: self.sample,
            question: self.question.question,
            kind: self.question.kind,
            golden_answers: self.question.golden_answers,
            answer: given,
            correct: right == Some(true),
            finish,
            segments: self.segments,
            sampled_tokens: self.sampled.iter().filter(|sampled| **sampled).count() as i64,
            input_ids: self.ids.into_iter().map(|id| id as i32).collect(),
            sampled: self.sampled,
            log_probs: self.log_probs,
            tool_calls: self.calls as i64,
            failed_calls: self.failed as i64,
            prompt_tokens: self.prompt as i64,
            observation_tokens: self.observed as i64,
            tool_seconds: self.tool_seconds,
            seconds: self.began.elapsed().as_secs_f64(),
            temperature,
            model: model.to_owned(),
        }
    }
}

/// The tag that a text has just closed, where a call or the answer ends with it. Text may follow within the last token.
fn closed(text: &str) -> Option<&'static str> {
    let wanted =
        |name: &str| tags::TOOL_TAGS.iter().copied().chain([tags::name(Role::Answer)]).find(|tag| *tag == name);
    let mut last = None;
    let mut at = 0;
    while let Some(literal) = tags::next(text, at) {
        at = literal.end;
        last = Some(literal);
    }
    let last =
        last.filter(|literal| literal.closing && literal.backslashes == 0 && text[literal.end..].trim().is_empty())?;
    wanted(last.name)
}

/// What stands between the last opening tag of this name and its closing tag.
fn body_of(turn: &str, tag: &str) -> Option<String> {
    let (before, _) = turn.rsplit_once(&format!("</{tag}>"))?;
    let (_, body) = before.rsplit_once(&format!("<{tag}>"))?;
    Some(tags::unescape(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_with_a_closed_call_or_answer() {
        assert_eq!(closed("<think>a</think>\n<web_search> Laos</web_search>"), Some("web_search"));
        assert_eq!(closed(" 42</answer>\n"), Some("answer"));
        for text in ["<think>a</think>", "<web_search> Laos", "</web_search> more", r"say <\/answer>", "<answer>"] {
            assert_eq!(closed(text), None, "{text}");
        }
    }

    #[test]
    fn the_body_of_a_call() {
        let turn = "<think>a</think>\n<code>```py\nprint('<\\/code>')\n```</code>";
        assert_eq!(body_of(turn, "code").unwrap(), "```py\nprint('</code>')\n```");
        assert_eq!(body_of("no opening</code>", "code"), None);
    }
}
