//! Parameters of operators: reading them from a pipeline file with every mistake, and their canonical form.

use std::ops::Range;

use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// A mistake in a pipeline file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Bytes of the file it stands at.
    pub span: Range<usize>,
    /// What is wrong.
    pub message: String,
    /// How to mend it.
    pub hint: Option<String>,
}

/// Parameters that are each of the right type but do not fit together.
#[derive(Clone, Debug)]
pub struct ParamsError {
    /// The key to point at; one inside a table with a point between: `model.heads`.
    pub key: Option<&'static str>,
    /// What is wrong.
    pub message: String,
}

impl ParamsError {
    /// `key` is at fault.
    pub fn at(key: &'static str, message: impl Into<String>) -> Self {
        Self { key: Some(key), message: message.into() }
    }

    pub(crate) fn locate(self, params: &Spanned<DeValue<'_>>) -> Mistake {
        let mut found = params;
        for part in self.key.into_iter().flat_map(|key| key.split('.')) {
            let Some(value) = found.get_ref().as_table().and_then(|table| table.get(part)) else { break };
            found = value;
        }
        let span = found.span();
        Mistake { span, message: self.message, hint: None }
    }
}

/// A number from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Fraction(#[schemars(range(min = 0.0, max = 1.0))] f64);

impl Fraction {
    /// The number; out of 0..=1 is a programming error.
    pub const fn new(value: f64) -> Self {
        assert!(value >= 0.0 && value <= 1.0, "a fraction lies between 0 and 1");
        Self(value)
    }
    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        if (0.0..=1.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(D::Error::custom(format!("out of range: {value}, expected a number from 0 to 1")))
        }
    }
}

/// A finite number above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Positive(#[schemars(extend("exclusiveMinimum" = 0.0))] f64);

impl Positive {
    /// The number; not above 0 is a programming error.
    pub const fn new(value: f64) -> Self {
        assert!(value > 0.0 && value < f64::INFINITY, "a positive number is finite and above 0");
        Self(value)
    }
    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Positive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        if value > 0.0 && value.is_finite() {
            Ok(Self(value))
        } else {
            Err(D::Error::custom(format!("out of range: {value}, expected a number above 0")))
        }
    }
}

/// Reads a `params` table. All unknown keys, all missing keys and every key with an unusable value are reported.
pub fn read<P: DeserializeOwned + JsonSchema>(params: &Spanned<DeValue<'_>>) -> Result<P, Vec<Mistake>> {
    let Some(table) = params.get_ref().as_table() else {
        return Err(vec![Mistake {
            span: params.span(),
            message: format!("expected a table of parameters, found {}", article(params.get_ref().type_str())),
            hint: None,
        }]);
    };
    let schema = schemars::schema_for!(P);
    let known: Vec<String> = schema
        .get("properties")
        .and_then(Value::as_object)
        .map(|properties| properties.keys().cloned().collect())
        .unwrap_or_default();
    let mut mistakes = unknown_keys(table, &known);
    let mut misspelt: Vec<&str> = Vec::new();
    for (key, _) in table.iter() {
        if let Some(meant) = closest(key.get_ref(), &known).filter(|_| !known.iter().any(|k| k == key.get_ref())) {
            misspelt.push(meant);
        }
    }
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    for key in required {
        // A key that seems to be there under a wrong spelling is one mistake, not two.
        if table.get(key).is_none() && !misspelt.contains(&key) {
            mistakes.push(Mistake { span: params.span(), message: format!("missing key `{key}`"), hint: None });
        }
    }

    // serde stops at the first bad value; take it out and look again until nothing new is found.
    let mut rest = table.clone();
    for (key, _) in table.iter().filter(|(key, _)| !known.iter().any(|k| k == key.get_ref())) {
        rest.remove(key.get_ref().as_ref());
    }
    loop {
        let value = Spanned::new(params.span(), DeValue::Table(rest.clone()));
        let error = match P::deserialize(ValueDeserializer::from(value)) {
            Ok(params) if mistakes.is_empty() => return Ok(params),
            Ok(_) => return Err(mistakes),
            Err(error) => error,
        };
        let at = error.span();
        let bad = rest.iter().find_map(|(key, value)| {
            let inside = at
                .as_ref()
                .is_some_and(|at| (key.span().start <= at.start && at.end <= value.span().end) || value.span() == *at);
            inside.then(|| key.get_ref().to_string())
        });
        match bad {
            Some(key) => {
                let value = rest.get(key.as_str()).expect("found above");
                let span = at.filter(|at| value.span().start <= at.start).unwrap_or_else(|| value.span());
                let mistake =
                    |span, message: &str| Mistake { span, message: format!("`{key}`: {}", plain(message)), hint: None };
                // An item that its own type refuses is told as if the list were at fault.
                let items = if span == value.span() { bad_items::<P>(params.span(), &rest, &key) } else { Vec::new() };
                if items.is_empty() {
                    mistakes.push(mistake(span.clone(), error.message()));
                }
                mistakes.extend(items.into_iter().map(|(span, message)| mistake(span, &message)));
                take_out(&mut rest, &key, &span);
            }
            None => {
                // A missing key: one reported above, or one that was just taken out.
                if mistakes.is_empty() {
                    let span = at.unwrap_or_else(|| params.span());
                    mistakes.push(Mistake { span, message: error.message().to_owned(), hint: None });
                }
                return Err(mistakes);
            }
        }
    }
}

/// The items of a list that are bad each by itself, with why.
fn bad_items<P: DeserializeOwned>(all: Range<usize>, table: &DeTable<'_>, key: &str) -> Vec<(Range<usize>, String)> {
    let Some((list, items)) = table.get(key).and_then(|list| Some((list.span(), list.get_ref().as_array()?))) else {
        return Vec::new();
    };
    let alone = |item: &Spanned<DeValue<'_>>| {
        let mut table = table.clone();
        *table.get_mut(key)?.get_mut() = DeValue::Array([item.clone()].into_iter().collect());
        let error = P::deserialize(ValueDeserializer::from(Spanned::new(all.clone(), DeValue::Table(table)))).err()?;
        (error.span() == Some(list.clone())).then(|| (item.span(), error.message().to_owned()))
    };
    items.iter().filter_map(alone).collect()
}

/// Takes a bad value out of a table: an item of a list alone, anything else with its key.
fn take_out(table: &mut DeTable<'_>, key: &str, bad: &Range<usize>) {
    if let Some(DeValue::Array(items)) = table.get_mut(key).map(Spanned::get_mut) {
        let before = items.len();
        // A list has no other way to lose items than to be made anew.
        let kept = items.iter().filter(|item| !(item.span().start <= bad.start && bad.end <= item.span().end));
        let kept: Vec<Spanned<DeValue<'_>>> = kept.cloned().collect();
        if kept.len() < before {
            *items = kept.into_iter().collect();
            return;
        }
    }
    table.remove(key);
}

/// A message without names of Rust's types.
fn plain(message: &str) -> String {
    let Some((what, expected)) = message.split_once("expected ") else { return message.to_owned() };
    let expected = match expected {
        "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => "a whole number from 1",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        other => other,
    };
    format!("{what}expected {expected}")
}

/// The keys of `table` that are not in `known`, each with the known key closest to it.
pub fn unknown_keys(table: &DeTable<'_>, known: &[impl AsRef<str>]) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for (key, _) in table.iter() {
        if known.iter().any(|k| k.as_ref() == key.get_ref()) {
            continue;
        }
        let hint = match closest(key.get_ref(), known) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None if known.is_empty() => "no keys are expected here".to_owned(),
            None => {
                let names: Vec<String> = known.iter().map(|k| format!("`{}`", k.as_ref())).collect();
                format!("expected one of {}", names.join(", "))
            }
        };
        mistakes.push(Mistake {
            span: key.span(),
            message: format!("unknown key `{}`", key.get_ref()),
            hint: Some(hint),
        });
    }
    mistakes
}

/// The candidate that `word` is most likely a misspelling of, if any is close.
pub fn closest<'a>(word: &str, candidates: &'a [impl AsRef<str>]) -> Option<&'a str> {
    candidates
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate.as_ref()), candidate.as_ref()))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().min(word.len()) / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The parameters as JSON with sorted keys and every default filled in.
pub fn canonical(params: &impl Serialize) -> Value {
    sorted(serde_json::to_value(params).expect("parameters are plain data"))
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(String, Value)> = map.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

fn article(kind: &str) -> String {
    let vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Serialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Params {
        keep: Fraction,
        times: std::num::NonZeroU32,
        #[serde(default)]
        labels: Vec<String>,
    }

    fn mistakes(text: &str) -> Vec<(String, String)> {
        let value = DeTable::parse(text).unwrap();
        let value = Spanned::new(0..text.len(), DeValue::Table(value.into_inner()));
        read::<Params>(&value)
            .expect_err("mistakes")
            .into_iter()
            .map(|mistake| (text[mistake.span].to_owned(), mistake.message))
            .collect()
    }

    #[test]
    fn every_mistake_is_reported_where_it_stands() {
        let found = mistakes("keep = 30\ntimes = 0\nlabel = []\nlabels = [\"a\", 7, \"b\", 8]\n");
        let expected = [
            ("label", "unknown key `label`"),
            ("30", "`keep`: out of range: 30, expected a number from 0 to 1"),
            ("0", "`times`: invalid value: integer `0`, expected a whole number from 1"),
            ("7", "`labels`: invalid type: integer `7`, expected a string"),
            ("8", "`labels`: invalid type: integer `8`, expected a string"),
        ];
        for (at, message) in expected {
            let found = found.iter().find(|(place, _)| place == at);
            assert_eq!(found.map(|(_, what)| what.as_str()), Some(message));
        }
        assert_eq!(found.len(), expected.len());
    }

    #[test]
    fn a_missing_key_is_named_once() {
        assert_eq!(mistakes("keep = 0.5\n"), [("keep = 0.5\n".to_owned(), "missing key `times`".to_owned())]);
        let misspelt = mistakes("keep = 0.5\ntime = 3\n");
        assert_eq!(misspelt, [("time".to_owned(), "unknown key `time`".to_owned())]);
    }

    #[test]
    fn canonical_parameters_do_not_depend_on_key_order() {
        #[derive(Serialize)]
        struct Ab {
            b: i64,
            a: i64,
        }
        assert_eq!(canonical(&Ab { b: 2, a: 1 }).to_string(), r#"{"a":1,"b":2}"#);
    }
}
