//! The operators of this crate, one line each, alphabetical.

use crate::operator::{Factory, Of};

/// Operators that need no training library. The job system adds those that do.
pub static OPERATORS: &[&dyn Factory] = &[
    &Of::<crate::filters::Filter<crate::filters::complexity::Complexity>>::NEW,
    &Of::<crate::convert_coa::ConvertCoa>::NEW,
    &Of::<crate::filters::Filter<crate::filters::correction::Correction>>::NEW,
    &Of::<crate::ingest_traces::IngestTraces>::NEW,
    &Of::<crate::publish::Publish>::NEW,
    &Of::<crate::filters::Filter<crate::filters::quality::Quality>>::NEW,
    &Of::<crate::filters::Filter<crate::filters::reflection::Reflection>>::NEW,
    &Of::<crate::tokens::tokenize::Tokenize>::NEW,
    &Of::<crate::tokens::train_tokenizer::TrainTokenizer>::NEW,
    &Of::<crate::world::pages::WorldPages>::NEW,
    &Of::<crate::world::questions::WorldQuestions>::NEW,
    &Of::<crate::world::teacher::WorldTeacher>::NEW,
];
