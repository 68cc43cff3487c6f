//! Values that sources write in several ways: times and numbers. What cannot be read without guessing is null, and the
//! reason is kept.
//!
//! A time is one of
//! - text with an offset: `2025-08-01T10:00:00+08:00`, `…Z`, `…+0800`, with or without a fraction of a second;
//! - text without one, `2025-08-01 10:00:00`: civil time of the zone that the source is said to be in. Where no zone is
//!   said, or a change of the clock lets the time come twice or never, it is not read;
//! - a number: below 1e11 seconds since 1970, below 1e14 milliseconds, below 1e17 microseconds (1e11 seconds is the year
//!   5138, 1e11 milliseconds is 1973).
//!
//! All else, a number in quotes included, is no time. Fractions are cut to microseconds.

use chrono::{DateTime, LocalResult, NaiveDateTime, TimeZone};
use chrono_tz::Tz;
use schemas::Micros;

use super::borrowed::Value;

/// Reads the values of one record.
pub struct Values {
    zone: Option<Tz>,
    step: Option<usize>,
    unread: Vec<String>,
}

/// The reason that ends with this is mended by naming a zone.
pub const NO_ZONE: &str = "a time without zone; `naive_timezone` says which it is";

impl Values {
    /// Reads civil times as those of `zone`.
    pub fn new(zone: Option<Tz>) -> Self {
        Self { zone, step: None, unread: Vec::new() }
    }

    /// What follows is of this step of the record.
    pub fn at_step(&mut self, step: usize) {
        self.step = Some(step);
    }

    /// The values that could not be read, each with its field and the reason; none if there are none.
    pub fn unread(self) -> Option<Vec<String>> {
        (!self.unread.is_empty()).then_some(self.unread)
    }

    /// A time. Null, missing and empty are unknown, which is no fault.
    pub fn time(&mut self, field: &str, value: Option<&Value<'_>>) -> Option<Micros> {
        let found = match value? {
            Value::Null => return None,
            Value::String(text) if text.trim().is_empty() => return None,
            Value::String(text) => self.time_of_text(text.trim()),
            Value::Number(number) => number.as_f64().and_then(time_of_number).ok_or("out of the range of times".into()),
            _ => Err("no time".to_owned()),
        };
        found.map_err(|why| self.note(field, value, &why)).ok()
    }

    /// A number, also one in quotes. Null, missing and empty are unknown, which is no fault.
    pub fn number(&mut self, field: &str, value: Option<&Value<'_>>) -> Option<f64> {
        let found = match value? {
            Value::Null => return None,
            Value::String(text) if text.trim().is_empty() => return None,
            Value::String(text) => text.trim().parse().ok(),
            other => other.as_f64(),
        };
        let found = found.filter(|number: &f64| number.is_finite());
        if found.is_none() {
            self.note(field, value, "no number");
        }
        found
    }

    fn note(&mut self, field: &str, value: Option<&Value<'_>>, why: &str) {
        let place = self.step.map_or_else(String::new, |step| format!("step {step} "));
        let text = value.map(Value::to_string).unwrap_or_default();
        let shown: String = text.chars().take(60).collect();
        self.unread.push(format!("{place}{field}: {shown} is {why}"));
    }

    fn time_of_text(&self, text: &str) -> Result<Micros, String> {
        for format in ["%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%d %H:%M:%S%.f%#z"] {
            if let Ok(time) = DateTime::parse_from_str(text, format) {
                return Ok(Micros(time.timestamp_micros()));
            }
        }
        let formats = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"];
        let civil = formats.iter().find_map(|format| NaiveDateTime::parse_from_str(text, format).ok());
        let Some(civil) = civil else { return Err("no time in a form that is read".to_owned()) };
        let Some(zone) = self.zone else { return Err(NO_ZONE.to_owned()) };
        match zone.from_local_datetime(&civil) {
            LocalResult::Single(time) => Ok(Micros(time.timestamp_micros())),
            LocalResult::Ambiguous(..) => Err(format!("a time that came twice in {zone}")),
            LocalResult::None => Err(format!("a time that never was in {zone}")),
        }
    }
}

fn time_of_number(number: f64) -> Option<Micros> {
    let micros = match number.abs() {
        size if size < 1e11 => number * 1e6,
        size if size < 1e14 => number * 1e3,
        size if size < 1e17 => number,
        _ => return None,
    };
    Some(Micros(micros.round() as i64))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    const TWO: i64 = 1_754_013_600_000_000;

    fn time(zone: Option<Tz>, value: Json) -> Result<i64, String> {
        let mut values = Values::new(zone);
        let found = values.time("t", Some(&Value::from(&value)));
        match (found, values.unread()) {
            (Some(found), None) => Ok(found.0),
            (None, Some(unread)) => Err(unread.concat()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_moment_in_many_forms() {
        let shanghai = Some(chrono_tz::Asia::Shanghai);
        for form in [
            json!("2025-08-01 10:00:00"),
            json!("2025-08-01T10:00:00"),
            json!("2025-08-01T02:00:00Z"),
            json!("2025-08-01 02:00:00+00:00"),
            json!("2025-08-01T04:00:00.000+0200"),
            json!("2025-08-01T02:00:00.000000999Z"),
            json!(1_754_013_600),
            json!(1_754_013_600.0),
            json!(1_754_013_600_000_i64),
            json!(TWO),
        ] {
            assert_eq!(time(shanghai, form.clone()), Ok(TWO), "{form}");
        }
    }

    #[test]
    fn what_would_be_a_guess_is_not_read() {
        let berlin = Some(chrono_tz::Europe::Berlin);
        for (form, word) in [
            (json!("01/08/2025 10:00"), "no time in a form"),
            (json!("2025-08-01"), "no time in a form"),
            (json!("0"), "no time in a form"),
            (json!(true), "no time"),
            (json!(1e18), "out of the range"),
            (json!("2025-10-26 02:30:00"), "came twice in Europe/Berlin"),
            (json!("2025-03-30 02:30:00"), "never was in Europe/Berlin"),
        ] {
            let why = time(berlin, form.clone()).unwrap_err();
            assert!(why.contains(word), "{form}: {why}");
        }
        assert!(time(None, json!("2025-08-01 10:00:00")).unwrap_err().ends_with(NO_ZONE));
        let mut values = Values::new(None);
        for unknown in [None, Some(json!(null)), Some(json!("")), Some(json!("  "))] {
            assert_eq!(values.time("t", unknown.as_ref().map(Value::from).as_ref()), None);
        }
        assert_eq!(values.unread(), None, "unknown is no fault");
    }

    #[test]
    fn numbers_in_quotes_are_numbers_and_other_words_are_not() {
        let mut values = Values::new(None);
        values.at_step(3);
        assert_eq!(values.number("score", Some(&Value::String("0.25"))), Some(0.25));
        assert_eq!(values.number("score", Some(&Value::Number(1.into()))), Some(1.0));
        for word in ["n/a", "NaN", "inf", "1,5"] {
            assert_eq!(values.number("score", Some(&Value::String(word))), None);
        }
        let unread = values.unread().unwrap();
        assert_eq!(unread[0], "step 3 score: \"n/a\" is no number");
        assert_eq!(unread.len(), 4);
    }
}
