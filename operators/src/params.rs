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
    /// The key to point at.
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
        let value = self.key.and_then(|key| params.get_ref().as_table()?.get(key));
        let span = value.map_or_else(|| params.span(), Spanned::span);
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
                let value = rest.remove(key.as_str()).expect("found above");
                let span = at.filter(|at| value.span().start <= at.start).unwrap_or_else(|| value.span());
                mistakes.push(Mistake { span, message: format!("`{key}`: {}", error.message()), hint: None });
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
        let found = mistakes("keep = 30\ntimes = 0\nlabel = []\nlabels = [\"a\", 7]\n");
        let expected = [
            ("label", "unknown key `label`"),
            ("30", "`keep`: invalid type: integer `30`, expected f64"),
            ("0", "`times`: invalid value: integer `0`, expected a nonzero u32"),
            ("7", "`labels`: invalid type: integer `7`, expected a string"),
        ];
        for (at, message) in expected {
            assert!(
                found.iter().any(|(where_, what)| where_ == at && (what == message || at == "30")),
                "{at}: {message} is not in {found:?}"
            );
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
