//! Patterns of sources: which names they match, and with which keys.

use std::str::FromStr;

use chrono::{NaiveDate, NaiveDateTime};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::Address;

/// A pattern that was understood; a text in parameters.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    text: String,
    fixed: String,
    /// The parts below the fixed one; `None` for `**`.
    parts: Vec<Option<Regex>>,
    whole: Regex,
    /// The folder that has all keys in its name, where they are not in the last part.
    folder: Option<Regex>,
    keys: Vec<Key>,
}

/// A key of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// The format of its values where they are times.
    pub format: Option<String>,
}

impl Key {
    /// The time at which a value begins; `None` where it is none.
    pub fn time(&self, value: &str) -> Option<NaiveDateTime> {
        let format = self.format.as_deref()?;
        // What a format leaves out is the beginning: of the day, of the month.
        let (value, format) = match format.contains("%d") || format.contains("%j") || format.contains("%F") {
            true => (value.to_owned(), format.to_owned()),
            false if format.contains("%m") => (format!("{value} 01"), format!("{format} %d")),
            false => (format!("{value} 01-01"), format!("{format} %m-%d")),
        };
        if !format.contains("%H") {
            return NaiveDate::parse_from_str(&value, &format).ok()?.and_hms_opt(0, 0, 0);
        }
        match format.contains("%M") {
            true => NaiveDateTime::parse_from_str(&value, &format).ok(),
            false => NaiveDateTime::parse_from_str(&format!("{value} 00"), &format!("{format} %M")).ok(),
        }
    }

    /// Whether its values are finer than days.
    pub fn is_finer_than_days(&self) -> bool {
        self.format.as_deref().is_some_and(|format| format.contains("%H"))
    }
}

impl Pattern {
    fn parse(pattern: &str) -> Result<Self, String> {
        let bad = |why: String| {
            format!(
                "`{pattern}` is no usable pattern: {why}; `*` is any text within a part, `**` any parts, `{{name}}` a key, \
                 `{{name:%Y-%m-%d}}` a time"
            )
        };
        let (fixed, wild) = split(pattern);
        Address::parse(fixed).map_err(|error| error.to_string())?;
        let mut keys: Vec<Key> = Vec::new();
        let mut parts = Vec::new();
        let mut whole = String::from("^");
        let mut folder = String::new();
        let all: Vec<&str> = wild.split('/').collect();
        for (index, part) in all.iter().enumerate() {
            let known = keys.len();
            if *part == "**" {
                parts.push(None);
                whole.push_str(if index + 1 == all.len() { ".*" } else { "(?:.*/)?" });
                continue;
            }
            let regex = part_regex(part, &mut keys).map_err(bad)?;
            // In one part alone, the key groups of the whole name are not needed.
            let alone = Regex::new(&format!("^{regex}$")).map_err(|error| bad(error.to_string()))?;
            parts.push(Some(alone));
            whole.push_str(&regex);
            if keys.len() > known {
                folder = if index + 1 < all.len() { format!("{whole}$") } else { String::new() };
            }
            if index + 1 < all.len() {
                whole.push('/');
            }
        }
        whole.push('$');
        let whole = Regex::new(&whole).map_err(|error| bad(error.to_string()))?;
        let folder = (!folder.is_empty()).then(|| Regex::new(&folder)).transpose();
        let folder = folder.map_err(|error| bad(error.to_string()))?;
        let parts = if wild.is_empty() { Vec::new() } else { parts };
        Ok(Self { text: pattern.to_owned(), fixed: fixed.to_owned(), parts, whole, folder, keys })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The part of the address before anything that varies.
    pub fn fixed(&self) -> &str {
        &self.fixed
    }

    /// Whether nothing varies: the pattern names one object.
    pub fn is_fixed(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether only the last part varies.
    pub fn is_flat(&self) -> bool {
        matches!(&self.parts[..], [Some(_)])
    }

    /// Its keys.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The keys of a name below the fixed part; `None` where it does not match.
    pub fn matches(&self, name: &str) -> Option<Vec<(String, String)>> {
        if self.is_fixed() {
            return Some(Vec::new());
        }
        self.values(&self.whole.captures(name)?)
    }

    /// The keys in the marker of a folder; `None` where the folder's name has not all of them.
    pub fn folder_keys(&self, marker: &str) -> Option<Vec<(String, String)>> {
        let name = marker.trim_end_matches('/').trim_end_matches("_$folder$");
        self.values(&self.folder.as_ref()?.captures(name)?)
    }

    fn values(&self, found: &regex::Captures<'_>) -> Option<Vec<(String, String)>> {
        let mut values: Vec<(String, String)> = Vec::new();
        for (index, key) in self.keys.iter().enumerate() {
            let value = found.get(index + 1)?.as_str();
            match values.iter().find(|(name, _)| *name == key.name) {
                Some((_, before)) if before != value => return None,
                Some(_) => {}
                None if key.format.is_some() && key.time(value).is_none() => return None,
                None => values.push((key.name.clone(), value.to_owned())),
            }
        }
        Some(values)
    }

    /// Whether something below this folder may match.
    pub fn may_hold(&self, folder: &str) -> bool {
        let mut parts = self.parts.iter();
        for name in folder.split('/') {
            match parts.next() {
                Some(None) => return true,
                Some(Some(regex)) if regex.is_match(name) => {}
                _ => return false,
            }
        }
        parts.next().is_some()
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.text
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

/// The part of a pattern before its first part that varies, and the rest.
fn split(pattern: &str) -> (&str, &str) {
    let Some(first) = pattern.find(['*', '{']) else { return (pattern, "") };
    match pattern[..first].rfind('/') {
        Some(slash) => (&pattern[..slash], &pattern[slash + 1..]),
        None => (".", pattern),
    }
}

fn part_regex(part: &str, keys: &mut Vec<Key>) -> Result<String, String> {
    let mut regex = String::new();
    let mut rest = part;
    while let Some(next) = rest.chars().next() {
        match next {
            '*' => {
                regex.push_str("[^/]*");
                rest = &rest[1..];
            }
            '{' => {
                let (key, after) = rest[1..].split_once('}').ok_or("a `{` is not closed")?;
                let (name, format) = match key.split_once(':') {
                    Some((name, format)) => (name, Some(format.to_owned())),
                    None => (key, None),
                };
                if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                    return Err(format!("`{{{key}}}`: a key is named by letters, digits and `_`"));
                }
                match &format {
                    Some(format) => regex.push_str(&format!("({})", time_regex(format)?)),
                    // The first of several in one part takes as much as it can.
                    None => regex.push_str("([^/]+)"),
                }
                keys.push(Key { name: name.to_owned(), format });
                rest = after;
            }
            '}' => return Err("a `}` is not opened".to_owned()),
            other => {
                regex.push_str(&regex::escape(&other.to_string()));
                rest = &rest[other.len_utf8()..];
            }
        }
    }
    Ok(regex)
}

fn time_regex(format: &str) -> Result<String, String> {
    let mut regex = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            regex.push_str(&regex::escape(&letter.to_string()));
            continue;
        }
        regex.push_str(match letters.next() {
            Some('Y') => r"\d{4}",
            Some('m' | 'd' | 'H' | 'M' | 'S') => r"\d{2}",
            Some('j') => r"\d{3}",
            Some('F') => r"\d{4}-\d{2}-\d{2}",
            other => {
                let other = other.map_or_else(String::new, String::from);
                return Err(format!("`%{other}` in `{format}`: a time is made of %Y %m %d %j %F %H %M %S"));
            }
        });
    }
    if !format.contains("%Y") && !format.contains("%F") {
        return Err(format!("`{format}` has no year"));
    }
    Ok(regex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys() {
        let hit = |pattern: &str, name: &str| Pattern::parse(pattern).unwrap().matches(name);
        let keys = |found: &[(&str, &str)]| {
            Some(found.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>())
        };
        assert_eq!(hit("a/*.jsonl", "a.jsonl"), keys(&[]));
        assert_eq!(hit("a/*.jsonl", "x/a.jsonl"), None);
        assert_eq!(hit("a/**/*.jsonl", "x/y/a.jsonl"), keys(&[]));
        assert_eq!(hit("a/**/*.jsonl", "a.jsonl"), keys(&[]));
        assert_eq!(hit("a/**", "x/y"), keys(&[]));
        assert_eq!(hit("a/part-*", "part"), None);
        assert_eq!(hit("a/{date}/*.gz", "2026-01-02/p 1+#%.gz"), keys(&[("date", "2026-01-02")]));
        assert_eq!(hit("a/dt={date:%Y-%m-%d}/x", "dt=2026-02-30/x"), None);
        assert_eq!(hit("a/dt={date:%Y-%m-%d}/x", "dt=2026-02-28/x"), keys(&[("date", "2026-02-28")]));
        assert_eq!(hit("a/{lang}-{n}/{n}", "en-us-7/7"), keys(&[("lang", "en-us"), ("n", "7")]));
        assert_eq!(hit("a/{lang}-{n}/{n}", "en-7/8"), None);
    }

    #[test]
    fn markers_of_folders_that_have_all_keys() {
        let hit = |pattern: &str, name: &str| {
            let keys = Pattern::parse(pattern).unwrap().folder_keys(name)?;
            Some(keys.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join("."))
        };
        assert_eq!(hit("a/{date}/*.gz", "2026-01-02/").as_deref(), Some("2026-01-02"));
        assert_eq!(hit("a/{date}/*.gz", "2026-01-02_$folder$").as_deref(), Some("2026-01-02"));
        assert_eq!(hit("a/{y}/m={m}/x/*", "2026/m=02/").as_deref(), Some("2026.02"));
        assert_eq!(hit("a/{y}/m={m}/x/*", "2026/"), None);
        assert_eq!(hit("a/{y}/m={m}/x/*", "2026/m=02/x/"), None);
        assert_eq!(hit("a/dt={date:%Y-%m-%d}/*", "dt=2026-02-30/"), None);
        assert_eq!(hit("a/{date}.jsonl", "2026-01-02/"), None);
        assert_eq!(hit("a/*", "x/"), None);
    }

    #[test]
    fn what_does_not_vary_is_kept_apart() {
        let fixed = |pattern: &str| Pattern::parse(pattern).unwrap().fixed().to_owned();
        assert_eq!(fixed("s3://raw/oagents/{date}/*.jsonl"), "s3://raw/oagents");
        assert_eq!(fixed("*.jsonl"), ".");
        assert_eq!(fixed("a/b.jsonl"), "a/b.jsonl");
        assert!(Pattern::parse("a/b.jsonl").unwrap().is_fixed());
        let pattern = Pattern::parse("a/{date:%Y}/x-*/p").unwrap();
        assert!(pattern.may_hold("2026") && pattern.may_hold("2026/x-1"));
        assert!(!pattern.may_hold("store") && !pattern.may_hold("2026/y") && !pattern.may_hold("2026/x-1/p"));
    }

    #[test]
    fn mistakes_are_named() {
        for (pattern, word) in [
            ("a/{date", "not closed"),
            ("a/{}", "a key is named"),
            ("a/{d:%q}", "%q"),
            ("a/{d:%H}", "no year"),
            ("a/}*", "not opened"),
            ("", "it is empty"),
            ("s3://{bucket}/x", "two slashes follow `s3:`"),
            ("https://host/*.jsonl", "unknown scheme"),
        ] {
            let error = Pattern::parse(pattern).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_value_of_a_time_key_begins_somewhere() {
        let time = |format: &str, value: &str| {
            let key = Key { name: "t".into(), format: Some(format.into()) };
            key.time(value).map(|time| time.to_string())
        };
        assert_eq!(time("%Y-%m-%d", "2026-03-29").as_deref(), Some("2026-03-29 00:00:00"));
        assert_eq!(time("%Y-%m-%dT%H", "2026-03-29T05").as_deref(), Some("2026-03-29 05:00:00"));
        assert_eq!(time("%Y%m", "202603").as_deref(), Some("2026-03-01 00:00:00"));
        assert_eq!(time("%Y", "2026").as_deref(), Some("2026-01-01 00:00:00"));
        assert_eq!(time("%Y-%j", "2026-032").as_deref(), Some("2026-02-01 00:00:00"));
    }
}
