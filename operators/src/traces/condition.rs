//! Conditions on the fields of a record, as `where = ["n_calls >= 5", "correct"]` writes them.
//!
//! A condition is a field of the record's outermost object, one of `= != < <= > >=`, and a number, `true`, `false` or a
//! text in double quotes. A field alone must be true. Numbers are compared as numbers and texts by their bytes; two
//! values of different kinds are never compared: a record that has another kind there cannot be judged.

use std::cmp::Ordering;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Misfit;
use super::borrowed::Value;

/// One condition; a text in parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Condition {
    text: String,
    field: String,
    comparison: Comparison,
    wanted: serde_json::Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

/// The longer ones first: `<=` begins with `<`.
const COMPARISONS: [(&str, Comparison); 6] = [
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("!=", Comparison::Unequal),
    ("<", Comparison::Less),
    (">", Comparison::More),
    ("=", Comparison::Equal),
];

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sign = text.find(['<', '>', '!', '=']).unwrap_or(text.len());
        let (field, rest) = (text[..sign].trim(), &text[sign..]);
        if field.is_empty() || field.contains(char::is_whitespace) {
            return Err(format!("`{text}` does not begin with one field: write `field >= 5` or `field`"));
        }
        let condition =
            |comparison, wanted| Self { text: text.to_owned(), field: field.to_owned(), comparison, wanted };
        if rest.is_empty() {
            return Ok(condition(Comparison::Equal, serde_json::Value::Bool(true)));
        }
        let Some((comparison, wanted)) =
            COMPARISONS.into_iter().find_map(|(sign, comparison)| Some((comparison, rest.strip_prefix(sign)?)))
        else {
            return Err(format!("`{text}` compares with none of = != < <= > >="));
        };
        let wanted = serde_json::from_str(wanted.trim()).ok().filter(|wanted: &serde_json::Value| {
            wanted.is_number()
                || wanted.is_string()
                || wanted.is_boolean() && matches!(comparison, Comparison::Equal | Comparison::Unequal)
        });
        let wanted = wanted.ok_or_else(|| {
            format!("`{text}` does not end in a number, a text in double quotes or, for = and !=, true or false")
        })?;
        Ok(condition(comparison, wanted))
    }
}

impl TryFrom<String> for Condition {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Condition> for String {
    fn from(condition: Condition) -> Self {
        condition.text
    }
}

impl Condition {
    /// The field it looks at.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Judges a record by its value of the field: nothing if the condition holds, else why it does not.
    pub fn judge(&self, found: Option<&Value<'_>>) -> Result<Option<String>, Misfit> {
        let found = found.ok_or_else(|| Misfit::missing(&self.field))?;
        let order = match (found, &Value::from(&self.wanted)) {
            (Value::Number(found), Value::Number(wanted)) => found.as_f64().partial_cmp(&wanted.as_f64()),
            (Value::String(found), Value::String(wanted)) => Some(found.cmp(wanted)),
            (Value::Bool(found), Value::Bool(wanted)) => Some(found.cmp(wanted)),
            (_, Value::Number(_)) => return Err(Misfit::wrong_type(&self.field, "a number", found)),
            (_, Value::String(_)) => return Err(Misfit::wrong_type(&self.field, "a string", found)),
            _ => return Err(Misfit::wrong_type(&self.field, "a boolean", found)),
        };
        let holds = match self.comparison {
            Comparison::Equal => order == Some(Ordering::Equal),
            Comparison::Unequal => order != Some(Ordering::Equal),
            Comparison::Less => order == Some(Ordering::Less),
            Comparison::AtMost => order.is_some_and(Ordering::is_le),
            Comparison::More => order == Some(Ordering::Greater),
            Comparison::AtLeast => order.is_some_and(Ordering::is_ge),
        };
        Ok((!holds).then(|| format!("`{}`: {} is {found}", self.text, self.field)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    #[test]
    fn conditions_hold_or_say_why_not() {
        let holds = |condition: &str, found: Json| {
            condition.parse::<Condition>().unwrap().judge(Some(&Value::from(&found))).unwrap().is_none()
        };
        assert!(holds("n >= 5", json!(5)) && holds("n>=5", json!(5.5)) && !holds("n >= 5", json!(4)));
        assert!(holds("n > 5", json!(6)) && !holds("n > 5", json!(5)));
        assert!(holds("n < 5", json!(4)) && !holds("n < 5", json!(5)));
        assert!(holds("n <= 5", json!(5)) && !holds("n <= 5", json!(6)));
        assert!(holds("n = 5", json!(5.0)) && !holds("n != 5", json!(5)));
        assert!(holds("correct", json!(true)) && !holds("correct", json!(false)));
        assert!(holds("correct = false", json!(false)));
        assert!(holds(r#"kind != "a = b""#, json!("c")) && !holds(r#"kind != "a = b""#, json!("a = b")));
        let why = "n >= 5".parse::<Condition>().unwrap().judge(Some(&Value::Number(3.into()))).unwrap();
        assert_eq!(why.as_deref(), Some("`n >= 5`: n is 3"));
    }

    #[test]
    fn a_record_without_such_a_value_cannot_be_judged() {
        let condition: Condition = "n >= 5".parse().unwrap();
        assert_eq!(condition.judge(None).unwrap_err().code, "missing_field");
        assert_eq!(condition.judge(Some(&Value::String("5"))).unwrap_err().code, "wrong_type");
        assert_eq!(condition.judge(Some(&Value::Null)).unwrap_err().code, "wrong_type");
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        for text in ["", "= 5", "n >=", "n => 5", "n ! 5", "n >= x", "n > true", "n = null", "not n", "a = 1 and b"] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
    }
}
