//! JSON values whose texts are borrowed: from the record, or from where its escapes were resolved.
//!
//! The names are those of `serde_json::Value`. What is taken from a record into rows is copied once, from here.

use std::fmt;

use serde_json::Number;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    String(&'a str),
    /// A list.
    Array(Vec<Value<'a>>),
    /// An object; no key comes twice.
    Object(Vec<(&'a str, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// The value of a key, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// A text.
    pub fn as_str(&self) -> Option<&'a str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// `true` or `false`.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(flag) = self { Some(*flag) } else { None }
    }

    /// A number.
    pub fn as_f64(&self) -> Option<f64> {
        if let Self::Number(number) = self { number.as_f64() } else { None }
    }

    /// The items of a list.
    pub fn as_array(&self) -> Option<&[Self]> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }

    /// The keys of an object with their values.
    pub fn as_object(&self) -> Option<&[(&'a str, Self)]> {
        if let Self::Object(fields) = self { Some(fields) } else { None }
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The same value with texts of its own.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(flag) => (*flag).into(),
            Self::Number(number) => serde_json::Value::Number(number.clone()),
            Self::String(text) => (*text).into(),
            Self::Array(items) => items.iter().map(Self::to_json).collect(),
            Self::Object(fields) => fields.iter().map(|(name, value)| (*name, value.to_json())).collect(),
        }
    }
}

impl<'a> From<&'a serde_json::Value> for Value<'a> {
    fn from(value: &'a serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(flag) => Self::Bool(*flag),
            serde_json::Value::Number(number) => Self::Number(number.clone()),
            serde_json::Value::String(text) => Self::String(text),
            serde_json::Value::Array(items) => Self::Array(items.iter().map(Self::from).collect()),
            serde_json::Value::Object(map) => {
                Self::Object(map.iter().map(|(name, value)| (name.as_str(), Self::from(value))).collect())
            }
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_json().fmt(f)
    }
}
