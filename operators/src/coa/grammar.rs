//! Which segment may follow which.
//!
//! `think` and `observation` are transparent: they are passed over when looking at what comes next. The rules are those
//! of the Chain-of-Agents prompts, in three variants.

use schemars::JsonSchema;
use schemas::{Role, Segment};
use serde::{Deserialize, Serialize};

/// A set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// Web agents: an answer is suggested and double-checked before it is given; a low score means going on.
    Web,
    /// Multi-hop question answering: an answer may follow a tool, a plan or a reflection.
    Mhqa,
    /// Code and mathematics: every call of `code` is observed and reflected upon.
    Code,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Index of the segment.
    pub segment: usize,
    /// Which rule, as a word.
    pub rule: &'static str,
}

/// The rules a trajectory breaks, in order of place.
pub fn check(segments: &[Segment], grammar: Grammar, require_think: bool) -> Vec<Violation> {
    let mut broken = Vec::new();
    let mut report = |segment: usize, rule: &'static str| broken.push(Violation { segment, rule });
    let mut before: Option<&Segment> = None;
    for (index, segment) in segments.iter().enumerate() {
        if segment.text.trim().is_empty() && segment.role != Role::Observation {
            report(index, "empty_segment");
        }
        let previous = index.checked_sub(1).map(|i| &segments[i]);
        match segment.role {
            Role::Think => continue,
            Role::Observation => {
                if previous.is_none_or(|p| p.role != Role::Tool) {
                    report(index, "observation_without_call");
                }
                continue;
            }
            Role::Tool if segments.get(index + 1).is_none_or(|next| next.role != Role::Observation) => {
                report(index, "call_without_observation");
            }
            _ => {}
        }
        let thought = previous.is_some_and(|p| p.role == Role::Think);
        if require_think && !thought && segment.role != Role::Answer {
            report(index, "no_think_before");
        }
        if !may_follow(grammar, before, segment) {
            report(index, "wrong_order");
        }
        before = Some(segment);
    }
    let answers = segments.iter().filter(|segment| segment.role == Role::Answer).count();
    if answers != 1 || segments.last().is_none_or(|segment| segment.role != Role::Answer) {
        report(segments.len().saturating_sub(1), "no_single_answer_at_the_end");
    } else if grammar == Grammar::Web {
        let suggested = segments.iter().rev().find(|segment| segment.role == Role::SuggestedAnswer);
        let answer = &segments[segments.len() - 1];
        if suggested.is_some_and(|suggested| suggested.text.trim() != answer.text.trim()) {
            report(segments.len() - 1, "answer_is_not_the_suggested_one");
        }
    }
    broken
}

fn may_follow(grammar: Grammar, before: Option<&Segment>, segment: &Segment) -> bool {
    use Role::{Answer, DoubleCheck, Plan, Reflection, SuggestedAnswer, Tool};
    let Some(before) = before else {
        return matches!(segment.role, Plan | Tool);
    };
    let next = segment.role;
    match (grammar, before.role) {
        (_, Answer) => false,
        (Grammar::Web, Plan) => matches!(next, Tool | SuggestedAnswer),
        (Grammar::Web, Tool) => matches!(next, Tool | Reflection | SuggestedAnswer),
        (Grammar::Web, Reflection) => matches!(next, Plan | Tool | SuggestedAnswer),
        (Grammar::Web, SuggestedAnswer) => next == DoubleCheck,
        (Grammar::Web, DoubleCheck) => match before.double_check_score() {
            Some(score) if score >= 3 => next == Answer,
            Some(_) => matches!(next, Plan | Tool),
            None => matches!(next, Plan | Tool | Answer),
        },
        (Grammar::Mhqa, Plan) => matches!(next, Tool | Answer),
        (Grammar::Mhqa, Tool) => matches!(next, Tool | Plan | Reflection | Answer),
        (Grammar::Mhqa, Reflection) => matches!(next, Plan | Tool | Answer),
        (Grammar::Code, Plan) => next == Tool,
        (Grammar::Code, Tool) => next == Reflection,
        (Grammar::Code, Reflection) => matches!(next, Tool | Answer),
        (Grammar::Mhqa | Grammar::Code, SuggestedAnswer | DoubleCheck) => false,
        (_, Role::Think | Role::Observation) => unreachable!("transparent roles are passed over"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One letter a segment: t think, p plan, w call, o observation, r reflection, s suggested answer, d double check
    /// with score 4, l with score 1, a answer.
    fn segments(letters: &str) -> Vec<Segment> {
        letters
            .chars()
            .map(|letter| {
                let (role, text) = match letter {
                    't' => (Role::Think, "hm"),
                    'p' => (Role::Plan, "1. look"),
                    'w' => (Role::Tool, "query"),
                    'o' => (Role::Observation, "page"),
                    'r' => (Role::Reflection, "good"),
                    's' => (Role::SuggestedAnswer, "42"),
                    'd' => (Role::DoubleCheck, "The score is 4"),
                    'l' => (Role::DoubleCheck, "The score is 1"),
                    _ => (Role::Answer, "42"),
                };
                let tool = (role == Role::Tool).then(|| "web_search".to_owned());
                Segment { role, text: text.into(), tool, arguments: None, source_step: None }
            })
            .collect()
    }

    fn rules(letters: &str, grammar: Grammar) -> Vec<(usize, &'static str)> {
        check(&segments(letters), grammar, true).into_iter().map(|v| (v.segment, v.rule)).collect()
    }

    #[test]
    fn the_web_grammar() {
        assert_eq!(rules("tptwotrtstda", Grammar::Web), []);
        assert_eq!(rules("tptwotstltwotstda", Grammar::Web), []);
        assert_eq!(rules("tptwotstla", Grammar::Web), [(9, "wrong_order")]);
        assert_eq!(rules("tptwotstdtwoa", Grammar::Web), [(10, "wrong_order"), (12, "wrong_order")]);
        assert_eq!(rules("tptwota", Grammar::Web), [(6, "wrong_order")]);
        assert_eq!(rules("pwotstda", Grammar::Web), [(0, "no_think_before"), (1, "no_think_before")]);
        assert_eq!(rules("tptwtstda", Grammar::Web), [(3, "call_without_observation")]);
        assert_eq!(rules("tpotwotstda", Grammar::Web), [(2, "observation_without_call")]);
        assert_eq!(rules("tptwotstd", Grammar::Web), [(8, "no_single_answer_at_the_end")]);
    }

    #[test]
    fn the_other_grammars() {
        assert_eq!(rules("tptwota", Grammar::Mhqa), []);
        assert_eq!(rules("tptwotra", Grammar::Mhqa), []);
        assert_eq!(rules("tptwota", Grammar::Code), [(6, "wrong_order")]);
        assert_eq!(rules("tptwotrta", Grammar::Code), []);
        assert_eq!(rules("", Grammar::Mhqa), [(0, "no_single_answer_at_the_end")]);
    }
}
