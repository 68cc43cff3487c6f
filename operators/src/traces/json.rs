//! Reading a record's bytes as JSON: strictly, with a reason for what does not pass, or with named repairs.
//!
//! Teacher frameworks write Python's JSON: `NaN` and `Infinity` literals and lone surrogate escapes occur. Neither is
//! JSON, and neither is repaired unless asked for.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

/// A repair that may be made to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// A lone surrogate escape (`\ud83d` without its other half) becomes U+FFFD.
    LoneSurrogates,
    /// `NaN`, `Infinity` and `-Infinity` become null.
    NonFinite,
}

impl Repair {
    /// Its name, as in pipeline files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::LoneSurrogates => "lone_surrogates",
            Self::NonFinite => "non_finite",
        }
    }
}

/// Why bytes are not the JSON value that was wanted.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// One of the codes of the quarantine table.
    pub code: &'static str,
    /// For a person.
    pub reason: String,
}

/// Reads one JSON value. Returns it with the repairs that were made.
pub fn read(bytes: &[u8], at_end: bool, repairs: &[Repair]) -> Result<(Value, Vec<&'static str>), Fault> {
    let text = std::str::from_utf8(bytes).map_err(|error| Fault {
        code: "invalid_utf8",
        reason: format!("byte {} of the record is not UTF-8", error.valid_up_to()),
    })?;
    if text.trim().is_empty() {
        // Lines are never blank; this is a place in a list.
        return Err(match at_end {
            true => Fault { code: "truncated", reason: "the source ends inside a list: `]` is missing".to_owned() },
            false => Fault { code: "not_json", reason: "an item of a list is empty".to_owned() },
        });
    }
    let fault = match parse(text) {
        Ok(value) => return Ok((value, Vec::new())),
        Err(fault) => fault,
    };
    let literals = scan(text);
    let mut fixed = String::with_capacity(text.len());
    let mut made = Vec::new();
    let mut copied = 0;
    for found in literals.iter().filter(|found| repairs.contains(&found.repair)) {
        fixed.push_str(&text[copied..found.start]);
        fixed.push_str(found.instead);
        copied = found.end;
        if !made.contains(&found.repair.name()) {
            made.push(found.repair.name());
        }
    }
    fixed.push_str(&text[copied..]);
    if !made.is_empty()
        && let Ok(value) = parse(&fixed)
    {
        made.sort_unstable();
        return Ok((value, made));
    }
    Err(classify(fault, &literals, at_end))
}

fn parse(text: &str) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

fn classify(error: serde_json::Error, literals: &[Literal], at_end: bool) -> Fault {
    let reason = error.to_string();
    let code = if reason.starts_with(DUPLICATE) {
        "duplicate_key"
    } else if reason.starts_with("number out of range") {
        "number_out_of_range"
    } else if let Some(found) = literals.first() {
        let (code, what) = match found.repair {
            Repair::LoneSurrogates => ("lone_surrogate", "half of a surrogate pair"),
            Repair::NonFinite => ("nan_or_infinity", "`NaN` or `Infinity`"),
        };
        let name = found.repair.name();
        return Fault {
            code,
            reason: format!("{what} at byte {} of the record; repair = [\"{name}\"] mends it", found.start),
        };
    } else if error.is_eof() {
        if at_end {
            return Fault {
                code: "truncated",
                reason: format!("incomplete record at the end of the source: {reason}"),
            };
        }
        "truncated"
    } else {
        "not_json"
    };
    Fault { code, reason }
}

/// Something in a text that a repair would replace.
struct Literal {
    start: usize,
    end: usize,
    repair: Repair,
    instead: &'static str,
}

/// Lone surrogate escapes in strings and non-finite literals outside of them.
fn scan(text: &str) -> Vec<Literal> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut i, mut in_string) = (0, false);
    let unit = |at: usize| -> Option<u16> {
        if bytes.get(at..at + 2)? != b"\\u" {
            return None;
        }
        u16::from_str_radix(text.get(at + 2..at + 6)?, 16).ok()
    };
    while i < bytes.len() {
        if in_string {
            match bytes[i] {
                b'"' => in_string = false,
                b'\\' => {
                    match unit(i) {
                        Some(0xD800..=0xDBFF) if matches!(unit(i + 6), Some(0xDC00..=0xDFFF)) => i += 10,
                        Some(0xD800..=0xDFFF) => {
                            let repair = Repair::LoneSurrogates;
                            found.push(Literal { start: i, end: i + 6, repair, instead: "\\ufffd" });
                            i += 4;
                        }
                        _ => {}
                    }
                    i += 1;
                }
                _ => {}
            }
            i += 1;
            continue;
        }
        if bytes[i] == b'"' {
            in_string = true;
        }
        let literal = ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| text[i..].starts_with(word));
        match literal {
            Some(word) => {
                found.push(Literal { start: i, end: i + word.len(), repair: Repair::NonFinite, instead: "null" });
                i += word.len();
            }
            None => i += text[i..].chars().next().map_or(1, char::len_utf8),
        }
    }
    found
}

const DUPLICATE: &str = "duplicate key";

/// Builds a [`Value`], refusing objects that name a key twice.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Strict)?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("{DUPLICATE} `{key}`")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &[u8]) -> &'static str {
        read(text, false, &[]).expect_err("a fault").code
    }

    #[test]
    fn every_fault_has_its_code() {
        assert_eq!(code(b"{\"a\": \"\xff\"}"), "invalid_utf8");
        assert_eq!(code(br#"{"a": "x\ud83d"}"#), "lone_surrogate");
        assert_eq!(code(br#"{"a": "\ude80x"}"#), "lone_surrogate");
        assert_eq!(code(br#"{"\ud83d": 1}"#), "lone_surrogate");
        assert_eq!(code(br#"{"a": NaN}"#), "nan_or_infinity");
        assert_eq!(code(br#"{"a": [-Infinity]}"#), "nan_or_infinity");
        assert_eq!(code(br#"{"a": 1"#), "truncated");
        assert_eq!(code(br#"{"a": 1, "a": 2}"#), "duplicate_key");
        assert_eq!(code(br#"{"a": 1e999}"#), "number_out_of_range");
        assert_eq!(code(b"{'a': 1}"), "not_json");
        assert_eq!(code(b"{} {}"), "not_json");
    }

    #[test]
    fn good_records_are_left_alone() {
        let (value, made) =
            read(br#"{"a": "\ud83d\ude80 NaN \\ud83d", "n": 18446744073709551615}"#, false, &[]).unwrap();
        assert_eq!(value["a"], "🚀 NaN \\ud83d");
        assert_eq!(value["n"].to_string(), "18446744073709551615");
        assert!(made.is_empty());
    }

    #[test]
    fn repairs_are_made_only_where_asked_and_are_named() {
        let text = br#"{"a": "x\ud83d", "b": NaN, "c": "NaN"}"#;
        assert!(read(text, false, &[Repair::NonFinite]).is_err());
        let (value, made) = read(text, false, &[Repair::NonFinite, Repair::LoneSurrogates]).unwrap();
        assert_eq!(value, serde_json::json!({"a": "x\u{fffd}", "b": null, "c": "NaN"}));
        assert_eq!(made, ["lone_surrogates", "non_finite"]);
    }
}
