//! Turns trajectories into token ids with a loss mask.
//!
//! What the model wrote is trained, the end of its turn included; the prompt, observations and template glue are not.

use std::num::NonZeroUsize;

use schemars::JsonSchema;
use schemas::{Rejected, Role, TokenizedSample, Trajectory};
use serde::{Deserialize, Serialize};

use super::codec::{Codec, TOKENIZER_FILE};
use crate::coa::render::{self, Author, Run};
use crate::context::UnitContext;
use crate::error::OperatorError;
use crate::operator::Operator;
use crate::params::ParamsError;
use crate::port::{FilesIn, In, Out, Port};

/// Parameters of `tokenize`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Longer samples are cut after this many tokens; what is cut off is not trained.
    #[serde(default = "thousands")]
    pub max_tokens: NonZeroUsize,
}

fn thousands() -> NonZeroUsize {
    NonZeroUsize::new(32_768).expect("not 0")
}

/// The operator.
pub struct Tokenize {
    max_tokens: usize,
}

const ROWS: In<Trajectory> = In::new("rows", "trajectories");
const TOKENIZER: FilesIn = FilesIn::new("tokenizer", "tokenizer", "the tokenizer").whole();
const TOKENS: Out<TokenizedSample> = Out::new("tokens", "one sample a trajectory");
const REJECTED: Out<Rejected> = Out::new("rejected", "trajectories without a token to train, with the reason");

impl Operator for Tokenize {
    const NAME: &'static str = "tokenize";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Turns trajectories into token ids with a loss mask; observations are not trained.";
    const INPUTS: &'static [Port] = &[ROWS.port(), TOKENIZER.port()];
    const OUTPUTS: &'static [Port] = &[TOKENS.port(), REJECTED.port()];
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        Ok(Self { max_tokens: params.max_tokens.get() })
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        let codec = Codec::load(&cx.file(&TOKENIZER, TOKENIZER_FILE)?.path)?;
        cx.progress.begin(None, "samples");
        let mut done = 0;
        while let Some(rows) = cx.next(&ROWS)? {
            cx.check_stop()?;
            done += rows.len() as u64;
            let (mut samples, mut rejected) = (Vec::new(), Vec::new());
            for row in rows {
                let (reason, detail) = match sample(&codec, &row, self.max_tokens)? {
                    Some(sample) if sample.trained_tokens > 0 => {
                        samples.push(sample);
                        continue;
                    }
                    Some(sample) => {
                        ("nothing_to_train", format!("none of its {} tokens is the model's", sample.input_ids.len()))
                    }
                    None => ("text_not_given_back", "its tokens do not decode to its text".to_owned()),
                };
                rejected.push(Rejected::new(row.trajectory_id, row.task_id, reason, detail));
            }
            cx.append(&TOKENS, &samples)?;
            cx.append(&REJECTED, &rejected)?;
            cx.progress.at(done, "");
        }
        Ok(())
    }
}

/// Token ids of author runs, with what is trained and whose each token is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The ids.
    pub ids: Vec<u32>,
    /// True for what the model wrote.
    pub mask: Vec<bool>,
    /// The role of each, as in `token_roles`.
    pub roles: Vec<i8>,
}

/// Encodes author runs one by one: no token belongs to two of them, and nothing is ever searched for. `None` where the
/// ids do not decode to the text: an added token may split what the normal form joins, such as `>` and a combining
/// stroke right behind it.
pub fn tokens(codec: &Codec, runs: &[Run]) -> Result<Option<Tokens>, OperatorError> {
    let mut tokens = Tokens::default();
    for run in runs {
        let encoded = codec.encode(&run.text)?;
        if codec.decode(&encoded.ids)? != codec.normalised(&run.text)? {
            return Ok(None);
        }
        for (id, start) in encoded.ids.iter().zip(&encoded.starts) {
            let role = run.roles.iter().find(|(range, _)| range.contains(start)).map(|(_, role)| *role);
            tokens.ids.push(*id);
            tokens.mask.push(run.author == Author::Policy);
            tokens.roles.push(role.map_or(0, role_code));
        }
    }
    Ok(Some(tokens))
}

/// One trajectory as a sample. `None` where its ids do not decode to its text.
fn sample(codec: &Codec, row: &Trajectory, max_tokens: usize) -> Result<Option<TokenizedSample>, OperatorError> {
    let mut ids = codec.prompt(&row.question)?;
    let mut mask = vec![false; ids.len()];
    let mut roles = vec![0_i8; ids.len()];
    let runs = render::runs(&row.segments);
    let Some(tokens) = tokens(codec, &runs)? else { return Ok(None) };
    ids.extend(tokens.ids);
    mask.extend(tokens.mask);
    roles.extend(tokens.roles);
    // The end of the turn is the model's to write: without it, it would not learn to stop.
    if runs.last().is_some_and(|run| run.author == Author::Policy) {
        ids.push(codec.turn_end());
        mask.push(true);
        roles.push(roles.last().copied().unwrap_or(0));
    }
    let truncated = ids.len() > max_tokens;
    ids.truncate(max_tokens);
    mask.truncate(max_tokens);
    roles.truncate(max_tokens);
    let observation = role_code(Role::Observation);
    Ok(Some(TokenizedSample {
        sample_id: row.trajectory_id.clone(),
        trained_tokens: mask.iter().filter(|trained| **trained).count() as i64,
        observation_tokens: roles.iter().filter(|role| **role == observation).count() as i64,
        input_ids: ids.into_iter().map(|id| id as i32).collect(),
        loss_mask: mask,
        token_roles: roles,
        weight: row.weight,
        truncated,
        tokenizer: codec.digest().to_owned(),
        task_id: row.task_id.clone(),
    }))
}

/// The code of a role in `token_roles`; 0 is prompt or glue.
fn role_code(role: Role) -> i8 {
    match role {
        Role::Think => 1,
        Role::Plan => 2,
        Role::Tool => 3,
        Role::Observation => 4,
        Role::Reflection => 5,
        Role::SuggestedAnswer => 6,
        Role::DoubleCheck => 7,
        Role::Answer => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::{Domain, Segment};

    /// A byte-level tokenizer without merges: ids are bytes, control tokens stand behind them.
    fn bytes_codec() -> Codec {
        codec_with(&[])
    }

    fn codec_with(tags: &[&str]) -> Codec {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut letters: Vec<char> = alphabet.into_iter().collect();
        letters.sort_unstable();
        let vocab: serde_json::Map<String, serde_json::Value> =
            letters.iter().enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
        let added: Vec<serde_json::Value> = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
            .iter()
            .chain(tags)
            .enumerate()
            .map(|(i, name)| {
                serde_json::json!({"id": 256 + i, "content": name, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true})
            })
            .collect();
        let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
        let json = serde_json::json!({"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
            "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        Codec::from_bytes(json.to_string().as_bytes()).unwrap()
    }

    fn trajectory(segments: Vec<Segment>) -> Trajectory {
        Trajectory {
            trajectory_id: "t".into(),
            task_id: None,
            question: "q?".into(),
            golden_answers: vec![],
            answer: None,
            source_verdict: None,
            domain: Domain::Qa,
            segments,
            interactions: 1,
            tool_calls: 1,
            notes: vec![],
            weight: 2.0,
        }
    }

    fn call_and_answer(observation: &str) -> Trajectory {
        let mut call = Segment::new(Role::Tool, "x");
        call.tool = Some("web_search".into());
        trajectory(vec![
            Segment::new(Role::Think, "a"),
            call,
            Segment::new(Role::Observation, observation),
            Segment::new(Role::Answer, "b"),
        ])
    }

    fn trained(codec: &Codec, sample: &TokenizedSample, wanted: bool) -> String {
        let ids = sample.input_ids.iter().zip(&sample.loss_mask).filter(|(_, mask)| **mask == wanted);
        codec.decode(&ids.map(|(id, _)| *id as u32).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_models_text_is_trained_and_nothing_else() {
        let codec = bytes_codec();
        // A page that quotes the closing tag ends nothing.
        let sample = sample(&codec, &call_and_answer("p </observation>\n\n q"), 1000).unwrap().unwrap();
        assert_eq!(
            trained(&codec, &sample, true),
            "<think>a</think>\n<web_search>x</web_search><answer>b</answer><|im_end|>"
        );
        assert_eq!(
            trained(&codec, &sample, false),
            "<|im_start|>user\nq?<|im_end|>\n<|im_start|>assistant\n\n<observation>\np <\\/observation>\n\n q\n</observation>\n\n"
        );
        assert_eq!(sample.trained_tokens, sample.loss_mask.iter().filter(|mask| **mask).count() as i64);
        assert!(!sample.loss_mask[0] && !sample.truncated);
        assert_eq!(sample.weight, 2.0);
        let observed = sample.token_roles.iter().filter(|role| **role == 4).count() as i64;
        assert_eq!(observed, sample.observation_tokens);
        assert_eq!(sample.token_roles.last(), Some(&8));
    }

    #[test]
    fn characters_of_several_bytes_are_masked_whole() {
        let codec = bytes_codec();
        let sample = sample(&codec, &call_and_answer("你好 👩\u{200d}🚀 e\u{301}"), 1000).unwrap().unwrap();
        assert!(trained(&codec, &sample, false).contains("你好 👩\u{200d}🚀 é"));
        assert!(trained(&codec, &sample, true).is_ascii());
    }

    #[test]
    fn a_text_that_the_tokens_do_not_give_back_is_not_trained_on() {
        // A stroke that the normal form joins to the tag's bracket, where the tokenizer splits the tag off first.
        let row = trajectory(vec![Segment::new(Role::Think, "\u{338}x")]);
        assert!(sample(&codec_with(&["<think>"]), &row, 1000).unwrap().is_none());
        assert!(sample(&bytes_codec(), &row, 1000).unwrap().is_some());
    }

    #[test]
    fn a_long_sample_is_cut_at_a_token() {
        let codec = bytes_codec();
        let whole = sample(&codec, &call_and_answer("p"), 1000).unwrap().unwrap();
        let cut = sample(&codec, &call_and_answer("p"), 60).unwrap().unwrap();
        assert!(cut.truncated);
        assert_eq!(cut.input_ids, whole.input_ids[..60]);
        assert_eq!(cut.loss_mask, whole.loss_mask[..60]);
    }

    #[test]
    fn the_prompt_alone_is_nothing_to_train() {
        let codec = bytes_codec();
        assert_eq!(sample(&codec, &call_and_answer("p"), 10).unwrap().unwrap().trained_tokens, 0);
        assert_eq!(sample(&codec, &trajectory(vec![]), 1000).unwrap().unwrap().trained_tokens, 0);
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_refused_with_the_reason() {
        let error = Codec::from_bytes(b"{}").err().unwrap();
        assert_eq!(error.message, "the tokenizer cannot be read");
    }
}
