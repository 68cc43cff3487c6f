//! A tokenizer in Hugging Face layout, with the prompt layout on top of it.

use std::path::Path;

use sha2::{Digest, Sha256};
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

use crate::coa::tags;
use crate::error::OperatorError;

/// The tokenizer itself.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Which tokens are special, and the chat template.
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// A tokenizer that knows the prompt layout:
///
/// ```text
/// <|im_start|>user
/// QUESTION<|im_end|>
/// <|im_start|>assistant
/// ```
///
/// The model's turn follows and ends with `<|im_end|>`.
pub struct Codec {
    tokenizer: Tokenizer,
    digest: String,
    turn_start: u32,
    turn_end: u32,
    pad: u32,
    /// `user`, line feed.
    before_question: Vec<u32>,
    /// Line feed, and after another turn start: `assistant`, line feed.
    after_question: Vec<u32>,
}

/// Begins a turn.
pub(crate) const TURN_START: &str = "<|im_start|>";
/// Ends a turn.
pub(crate) const TURN_END: &str = "<|im_end|>";
/// Fills up batches; never part of a sample.
pub(crate) const PAD: &str = "<|endoftext|>";

/// Ids of a text, and for each the byte of the text it begins at.
pub struct Encoded {
    /// The ids.
    pub ids: Vec<u32>,
    /// Where each begins.
    pub starts: Vec<usize>,
}

impl Codec {
    /// Reads `tokenizer.json`.
    pub fn load(path: &Path) -> Result<Self, OperatorError> {
        let bytes = std::fs::read(path)?;
        Self::from_bytes(&bytes)
    }

    /// A tokenizer from the bytes of its `tokenizer.json`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OperatorError> {
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| {
            OperatorError::input("the tokenizer cannot be read")
                .hint("it must be a `tokenizer.json` as Hugging Face tokenizers write it")
                .because(error)
        })?;
        let special = |name: &str| {
            tokenizer.token_to_id(name).ok_or_else(|| {
                OperatorError::input(format!("the tokenizer has no token `{name}`"))
                    .hint("use the tokenizer of a chat model in ChatML layout, such as Qwen2.5's")
            })
        };
        let (turn_start, turn_end, pad) = (special(TURN_START)?, special(TURN_END)?, special(PAD)?);
        let digest = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut codec = Self {
            tokenizer,
            digest,
            turn_start,
            turn_end,
            pad,
            before_question: Vec::new(),
            after_question: Vec::new(),
        };
        codec.before_question = codec.encode("user\n")?.ids;
        codec.after_question = codec.encode("\n")?.ids;
        codec.after_question.push(turn_start);
        codec.after_question.extend(codec.encode("assistant\n")?.ids);
        let text = "\t{\"é\": [\u{4f60}, \u{1f680}]}\n";
        if codec.decode(&codec.encode(text)?.ids)? != codec.normalised(text)? {
            return Err(OperatorError::input("the tokenizer cannot write every text")
                .hint("use a byte-level tokenizer, which can"));
        }
        Ok(codec)
    }

    /// SHA-256 of `tokenizer.json`, hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Number of ids, added tokens included.
    pub fn size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// The id that ends the model's turn.
    pub fn turn_end(&self) -> u32 {
        self.turn_end
    }

    /// The id that fills up batches.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The prompt of a question.
    pub fn prompt(&self, question: &str) -> Result<Vec<u32>, OperatorError> {
        let mut ids = vec![self.turn_start];
        ids.extend(&self.before_question);
        ids.extend(self.encode(&tags::escape(question))?.ids);
        ids.push(self.turn_end);
        ids.extend(&self.after_question);
        Ok(ids)
    }

    /// Ids of a text of one author.
    pub fn encode(&self, text: &str) -> Result<Encoded, OperatorError> {
        let encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|error| OperatorError::input("a text cannot be tokenized").because(error))?;
        let starts = encoding.get_offsets().iter().map(|(start, _)| *start).collect();
        Ok(Encoded { ids: encoding.get_ids().to_vec(), starts })
    }

    /// The text of ids, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> Result<String, OperatorError> {
        self.tokenizer
            .decode(ids, false)
            .map_err(|error| OperatorError::input("ids cannot be turned into text").because(error))
    }

    /// The text as the tokenizer sees it: in its Unicode normal form.
    pub fn normalised(&self, text: &str) -> Result<String, OperatorError> {
        let mut normalised = NormalizedString::from(text);
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            normalizer
                .normalize(&mut normalised)
                .map_err(|error| OperatorError::input("a text cannot be normalised").because(error))?;
        }
        Ok(normalised.get().to_owned())
    }
}
