//! A pipeline file as it was written: strings and values with their places, the shape checked and nothing else.

use std::borrow::Cow;
use std::ops::Range;

use operators::Mistake;
use operators::params::unknown_keys;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A pipeline file.
pub(crate) struct PipelineFile<'a> {
    pub(crate) name: Option<Spanned<String>>,
    pub(crate) store: Option<Spanned<String>>,
    pub(crate) queue: Option<Spanned<String>>,
    pub(crate) seed: Option<u64>,
    pub(crate) stages: Vec<StageFile<'a>>,
}

/// A `[stages.…]` table.
pub(crate) struct StageFile<'a> {
    pub(crate) name: Spanned<String>,
    pub(crate) operator: Option<Spanned<String>>,
    pub(crate) inputs: Vec<(Spanned<String>, Spanned<String>)>,
    pub(crate) max_parallel: Option<usize>,
    pub(crate) max_bad_ratio: Option<Spanned<f64>>,
    pub(crate) params: Spanned<DeValue<'a>>,
}

const FILE_KEYS: [&str; 5] = ["name", "store", "queue", "seed", "stages"];
const STAGE_KEYS: [&str; 5] = ["operator", "inputs", "params", "max_parallel", "max_bad_ratio"];

/// Reads the text. What can be read is returned along with the mistakes, so that later checks find theirs too.
pub(crate) fn read(text: &str) -> (PipelineFile<'_>, Vec<Mistake>) {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<Mistake> = errors
        .into_iter()
        .map(|error| Mistake {
            span: error.span().unwrap_or(0..0),
            message: format!("not TOML: {}", error.message()),
            hint: None,
        })
        .collect();
    let mut file = PipelineFile { name: None, store: None, queue: None, seed: None, stages: Vec::new() };
    let root = root.into_inner();
    if mistakes.is_empty() {
        mistakes.extend(unknown_keys(&root, &FILE_KEYS));
    }
    for (key, value) in root {
        match key.get_ref().as_ref() {
            "name" => file.name = filled("name", &value, &mut mistakes),
            "store" => file.store = filled("store", &value, &mut mistakes),
            "queue" => file.queue = queue(&value, &mut mistakes),
            "seed" => file.seed = seed(&value, &mut mistakes),
            "stages" => {
                let span = value.span();
                let DeValue::Table(stages) = value.into_inner() else {
                    mistakes.push(wrong(span, "`stages` must be a table of stages"));
                    continue;
                };
                for (name, value) in stages {
                    if let Some(stage) = stage(name, value, &mut mistakes) {
                        file.stages.push(stage);
                    }
                }
            }
            _ => {}
        }
    }
    // TOML tables come sorted by key; people think in the order they wrote.
    file.stages.sort_by_key(|stage| stage.name.span().start);
    (file, mistakes)
}

fn stage<'a>(
    name: Spanned<Cow<'a, str>>,
    value: Spanned<DeValue<'a>>,
    mistakes: &mut Vec<Mistake>,
) -> Option<StageFile<'a>> {
    let name = Spanned::new(name.span(), name.into_inner().into_owned());
    let span = value.span();
    let DeValue::Table(table) = value.into_inner() else {
        mistakes.push(wrong(span, &format!("stage `{}` must be a table", name.get_ref())));
        return None;
    };
    for mut mistake in unknown_keys(&table, &STAGE_KEYS) {
        let is_param = mistake.hint.as_ref().is_some_and(|hint| hint.starts_with("expected one of"));
        if is_param {
            mistake.hint = Some(format!("parameters of the operator go into [stages.{}.params]", name.get_ref()));
        }
        mistakes.push(mistake);
    }
    let mut stage = StageFile {
        params: Spanned::new(name.span(), DeValue::Table(DeTable::new())),
        name,
        operator: None,
        inputs: Vec::new(),
        max_parallel: None,
        max_bad_ratio: None,
    };
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "operator" => stage.operator = string("operator", &value, mistakes),
            "params" => stage.params = value,
            "max_parallel" => stage.max_parallel = count("max_parallel", &value, mistakes),
            "max_bad_ratio" => stage.max_bad_ratio = ratio("max_bad_ratio", &value, mistakes),
            "inputs" => {
                let span = value.span();
                let DeValue::Table(inputs) = value.into_inner() else {
                    mistakes.push(wrong(span, "`inputs` must be a table: port = \"stage.port\""));
                    continue;
                };
                for (port, value) in inputs {
                    let port = Spanned::new(port.span(), port.into_inner().into_owned());
                    if let Some(from) = string(port.get_ref(), &value, mistakes) {
                        stage.inputs.push((port, from));
                    }
                }
            }
            _ => {}
        }
    }
    Some(stage)
}

fn string(key: &str, value: &Spanned<DeValue<'_>>, mistakes: &mut Vec<Mistake>) -> Option<Spanned<String>> {
    match value.get_ref().as_str() {
        Some(text) => Some(Spanned::new(value.span(), text.to_owned())),
        None => {
            let found = value.get_ref().type_str();
            mistakes.push(wrong(value.span(), &format!("`{key}` must be a string, found {found}")));
            None
        }
    }
}

/// A string that is not blank.
fn filled(key: &str, value: &Spanned<DeValue<'_>>, mistakes: &mut Vec<Mistake>) -> Option<Spanned<String>> {
    let text = string(key, value, mistakes)?;
    if text.get_ref().trim().is_empty() {
        mistakes.push(wrong(value.span(), &format!("`{key}` is empty")));
    }
    Some(text)
}

fn seed(value: &Spanned<DeValue<'_>>, mistakes: &mut Vec<Mistake>) -> Option<u64> {
    let integer = value.get_ref().as_integer();
    let seed = integer.and_then(|integer| u64::from_str_radix(integer.as_str(), integer.radix()).ok());
    if seed.is_none() {
        mistakes.push(wrong(value.span(), "`seed` must be a whole number from 0"));
    }
    seed
}

/// The address of a job queue. It is kept with every run, so it may not hold a password.
fn queue(value: &Spanned<DeValue<'_>>, mistakes: &mut Vec<Mistake>) -> Option<Spanned<String>> {
    let address = string("queue", value, mistakes)?;
    let authority = address.get_ref().split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(rest));
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    if user.contains(':') || address.get_ref().contains("password=") {
        mistakes.push(Mistake {
            span: address.span(),
            message: "`queue` holds a password, and the text of a pipeline is kept with every run".to_owned(),
            hint: Some("leave it out and give it by PGPASSWORD, ~/.pgpass or COA_QUEUE".to_owned()),
        });
    }
    Some(address)
}

fn count(key: &str, value: &Spanned<DeValue<'_>>, mistakes: &mut Vec<Mistake>) -> Option<usize> {
    let integer = value.get_ref().as_integer();
    let count = integer.and_then(|integer| usize::from_str_radix(integer.as_str(), integer.radix()).ok());
    let count = count.filter(|count| *count > 0);
    if count.is_none() {
        mistakes.push(wrong(value.span(), &format!("`{key}` must be a whole number from 1")));
    }
    count
}

fn ratio(key: &str, value: &Spanned<DeValue<'_>>, mistakes: &mut Vec<Mistake>) -> Option<Spanned<f64>> {
    let number = match value.get_ref() {
        DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
        DeValue::Integer(integer) => integer.as_str().parse::<f64>().ok(),
        _ => None,
    };
    let number = number.filter(|number| (0.0..=1.0).contains(number));
    if number.is_none() {
        mistakes.push(wrong(value.span(), &format!("`{key}` must be a number from 0 to 1")));
    }
    number.map(|number| Spanned::new(value.span(), number))
}

fn wrong(span: Range<usize>, message: &str) -> Mistake {
    Mistake { span, message: message.to_owned(), hint: None }
}
