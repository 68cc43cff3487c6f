//! Trains a small byte-level BPE tokenizer on a corpus, in Hugging Face layout.

use std::num::NonZeroUsize;

use schemars::JsonSchema;
use schemas::{Page, Trajectory};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as SplitAt, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, TokenizerBuilder};

use super::codec::{PAD, TOKENIZER_CONFIG, TOKENIZER_FILE, TURN_END, TURN_START};
use crate::coa::{render, tags};
use crate::context::UnitContext;
use crate::error::OperatorError;
use crate::operator::{Operator, Split};
use crate::params::ParamsError;
use crate::port::{FilesOut, In, Port};

/// Parameters of `train_tokenizer`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Size of the vocabulary, the 256 bytes and the added tokens included.
    #[serde(default = "small")]
    pub vocabulary: NonZeroUsize,
    /// Numbers are cut into chunks of at most this many digits, from the left.
    #[serde(default = "two")]
    pub digits: NonZeroUsize,
    /// How often the title of each page counts: enough, and each title is a single token.
    #[serde(default)]
    pub title_weight: usize,
}

fn small() -> NonZeroUsize {
    NonZeroUsize::new(2048).expect("not 0")
}
fn two() -> NonZeroUsize {
    NonZeroUsize::new(2).expect("not 0")
}

/// The operator.
pub struct TrainTokenizer {
    params: Params,
}

const ROWS: In<Trajectory> = In::new("rows", "the trajectories whose text is learnt from");
const PAGES: In<Page> = In::new("pages", "pages whose titles count extra").optional();
const TOKENIZER: FilesOut = FilesOut::new("tokenizer", "tokenizer", "tokenizer.json and tokenizer_config.json");

impl Operator for TrainTokenizer {
    const NAME: &'static str = "train_tokenizer";
    const VERSION: u32 = 1;
    const ABOUT: &'static str =
        "Trains a byte-level BPE tokenizer on the text of trajectories; every tag of the grammar is one token.";
    const INPUTS: &'static [Port] = &[ROWS.port(), PAGES.port()];
    const OUTPUTS: &'static [Port] = &[TOKENIZER.port()];
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        let least = 256 + added_tokens().len();
        if params.vocabulary.get() < least {
            return Err(ParamsError::at("vocabulary", format!("out of range: bytes and tags alone are {least}")));
        }
        Ok(Self { params })
    }

    fn split(&self) -> Split {
        Split::Whole
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        let mut corpus: Vec<String> = Vec::new();
        while let Some(rows) = cx.next(&ROWS)? {
            for row in rows {
                corpus.push(row.question);
                corpus.push(render::text(&row.segments));
            }
        }
        if corpus.is_empty() {
            return Err(OperatorError::input("there are no trajectories to learn a tokenizer from")
                .hint("the filters before this stage kept nothing: `coa report` shows why"));
        }
        for page in cx.all(&PAGES)? {
            // With the blank before it, as a word in running text has.
            corpus.extend(std::iter::repeat_n(format!(" {}", page.title), self.params.title_weight));
        }
        let json = self
            .train(&corpus)
            .map_err(|error| OperatorError::internal("the tokenizer was not trained").because(error))?;
        cx.put_bytes(&TOKENIZER, TOKENIZER_FILE, json.as_bytes())?;
        cx.put_bytes(&TOKENIZER, TOKENIZER_CONFIG, config().as_bytes())
    }
}

impl TrainTokenizer {
    fn train(&self, corpus: &[String]) -> Result<String, tokenizers::Error> {
        // Qwen2.5's pattern, but for the chunks of digits.
        let pattern = format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,{}}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            self.params.digits
        );
        let split = SplitAt::new(SplitPattern::Regex(pattern), SplitDelimiterBehavior::Isolated, false)?;
        let bytes = ByteLevel::new(false, false, false);
        let mut tokenizer = TokenizerBuilder::new()
            .with_model(BPE::default())
            .with_normalizer(Some(NFC))
            .with_pre_tokenizer(Some(Sequence::new(vec![
                PreTokenizerWrapper::Split(split),
                PreTokenizerWrapper::ByteLevel(bytes),
            ])))
            .with_post_processor(Some(bytes))
            .with_decoder(Some(bytes))
            .build()?;
        let added = added_tokens();
        let mut trainer = BpeTrainerBuilder::new()
            .vocab_size(self.params.vocabulary.get() - added.len())
            .min_frequency(2)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        // Tags are taken out first, so that no merge is learnt across one.
        let texts = corpus.iter().flat_map(|text| without_tags(text));
        tokenizer.train(&mut trainer, texts)?;
        tokenizer.add_tokens(added)?;
        tokenizer.to_string(true)
    }
}

/// Control tokens, then the tags, opening and closing. Control tokens are special: decoding may leave them out.
fn added_tokens() -> Vec<AddedToken> {
    let control = [PAD, TURN_START, TURN_END].into_iter().map(|name| AddedToken::from(name, true));
    let tags = tags::all().flat_map(|tag| [format!("<{tag}>"), format!("</{tag}>")]);
    let tags = tags.map(|tag| AddedToken::from(tag, false).normalized(false));
    control.map(|token| token.normalized(false)).chain(tags).collect()
}

/// The pieces of a text between its tags.
fn without_tags(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut at = 0;
    let mut from = 0;
    while let Some(literal) = tags::next(text, from) {
        from = literal.end;
        if literal.backslashes == 0 {
            pieces.push(&text[at..literal.start]);
            at = literal.end;
        }
    }
    pieces.push(&text[at..]);
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

fn config() -> String {
    let template = format!(
        "{{% for message in messages %}}{TURN_START}{{{{ message.role }}}}\n{{{{ message.content }}}}{TURN_END}\n{{% endfor %}}\
         {{% if add_generation_prompt %}}{TURN_START}assistant\n{{% endif %}}"
    );
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": null,
        "eos_token": TURN_END,
        "pad_token": PAD,
        "unk_token": null,
        "clean_up_tokenization_spaces": false,
        "add_prefix_space": false,
        "split_special_tokens": false,
        "model_max_length": 32768,
        "chat_template": template,
    });
    serde_json::to_string_pretty(&config).expect("plain data")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryIo;
    use crate::tokens::Codec;
    use schemas::{Domain, Role, Segment};

    fn trajectory(text: &str) -> Trajectory {
        Trajectory {
            trajectory_id: "t".into(),
            task_id: None,
            question: "Which country?".into(),
            golden_answers: vec![],
            answer: None,
            source_verdict: None,
            domain: Domain::Qa,
            segments: vec![Segment::new(Role::Think, text), Segment::new(Role::Answer, " Laos")],
            interactions: 0,
            tool_calls: 0,
            notes: vec![],
            weight: 1.0,
        }
    }

    #[test]
    fn tags_and_titles_are_single_tokens_and_everything_round_trips() {
        let rows: Vec<Trajectory> =
            (0..50).map(|i| trajectory(&format!("area:{} of Laos and Vientiane", i * 37))).collect();
        let pages: Vec<Page> = ["Laos", "Vientiane"]
            .map(|name| Page { page_id: name.into(), title: name.into(), text: name.into(), snippet: None })
            .to_vec();
        let io = MemoryIo::new().unwrap().with_rows("rows", &rows).unwrap().with_rows("pages", &pages).unwrap();
        let params = serde_json::json!({"vocabulary": 420, "title_weight": 100});
        let operator = TrainTokenizer::new(serde_json::from_value(params).unwrap()).unwrap();
        io.run(&operator, 0).unwrap();
        let codec = Codec::from_bytes(&io.written("tokenizer", "tokenizer.json").unwrap()).unwrap();
        for word in ["<think>", "</double_check>", " Laos", " Vientiane"] {
            assert_eq!(codec.encode(word).unwrap().ids.len(), 1, "{word}");
        }
        assert_eq!(
            codec.encode("13675").unwrap().ids,
            [codec.encode("13").unwrap().ids, codec.encode("67").unwrap().ids, codec.encode("5").unwrap().ids].concat()
        );
        for text in
            ["<think>area:12</think>\n<answer> Laos</answer>", "你好 🚀\u{200d}x", "a\tb  c\n\n d", "<\\/think>"]
        {
            assert_eq!(codec.decode(&codec.encode(text).unwrap().ids).unwrap(), text);
        }
        // A prompt's question cannot end the turn.
        let prompt = codec.prompt("hi <|im_end|>").unwrap();
        assert_eq!(prompt.iter().filter(|id| **id == codec.turn_end()).count(), 1);
    }

    #[test]
    fn a_vocabulary_smaller_than_the_bytes_is_refused() {
        let params = serde_json::from_value(serde_json::json!({"vocabulary": 100})).unwrap();
        assert!(TrainTokenizer::new(params).is_err());
    }
}
