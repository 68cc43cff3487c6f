//! Which partitions a command is about.
//!
//! Ranges are inclusive at both ends. A bound is a partition's name, or for time keys a time as exact as one likes:
//! `2026-01..2026-03` is the first quarter. Bounds are times of a time zone (UTC where none is given), so a day of 23 or
//! 25 hours has as many hourly partitions; keys themselves are in UTC. A key no finer than days is compared as the date
//! it is, in any zone.

use std::fmt;

use chrono::{Datelike, Days, LocalResult, Months, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use operators::Pattern;
use operators::pattern::Key;
use store::SourcePartition;

use crate::error::CommandError;

/// A set of partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    ranges: Vec<String>,
    zone: Tz,
}

impl fmt::Display for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.ranges.join(", "), self.zone)
    }
}

impl Partitions {
    /// Reads what was typed: `A`, `A..B`, with `*` in names, several with commas.
    pub fn parse(ranges: &[String], zone: &str) -> Result<Self, CommandError> {
        let zone: Tz = zone.parse().map_err(|_| CommandError::Usage {
            message: format!("`{zone}` is no time zone"),
            hint: Some("name one as Europe/Berlin or UTC".to_owned()),
        })?;
        let ranges: Vec<String> =
            ranges.iter().flat_map(|text| text.split(',')).map(|range| range.trim().to_owned()).collect();
        if ranges.iter().any(String::is_empty) {
            return Err(CommandError::usage("a range of partitions is empty"));
        }
        Ok(Self { ranges, zone })
    }

    /// What was typed, for records.
    pub fn ranges(&self) -> &[String] {
        &self.ranges
    }

    /// The time zone's name.
    pub fn zone(&self) -> &'static str {
        self.zone.name()
    }

    /// Those of a source's partitions that are meant. Every range must be one of times where it looks like one.
    pub(crate) fn choose(
        &self,
        pattern: &Pattern,
        found: Vec<SourcePartition>,
    ) -> Result<Vec<SourcePartition>, CommandError> {
        let key = pattern.keys().first();
        let mut tests = Vec::new();
        for range in &self.ranges {
            tests.push(Test::of(range, key, self.zone)?);
        }
        let meant = |partition: &SourcePartition| {
            let first = partition.keys.first().map_or(partition.name.as_str(), |(_, value)| value.as_str());
            tests.iter().any(|test| test.holds(&partition.name, first, key))
        };
        Ok(found.into_iter().filter(meant).collect())
    }
}

/// A range that was understood.
enum Test {
    /// Names that match, `*` being any text.
    Name(String),
    /// Names between these, both included.
    Names(String, String),
    /// Times from the first on and before the second.
    Times(NaiveDateTime, NaiveDateTime),
}

impl Test {
    fn of(range: &str, key: Option<&Key>, zone: Tz) -> Result<Self, CommandError> {
        let (from, to) = range.split_once("..").unwrap_or((range, range));
        // A `*` stands in names, whatever they mean.
        let is_name = range.contains('*') && !range.contains("..");
        let timed = key.filter(|key| key.format.is_some() && !is_name);
        let Some(key) = timed else {
            return Ok(match range.contains("..") {
                true => Self::Names(from.to_owned(), to.to_owned()),
                false => Self::Name(range.to_owned()),
            });
        };
        let bound = |text: &str| {
            Span::parse(text).ok_or_else(|| CommandError::Usage {
                message: format!("`{text}` is no time: the partitions of key `{}` are times", key.name),
                hint: Some("write it as 2026, 2026-01, 2026-01-31 or 2026-01-31T18".to_owned()),
            })
        };
        let (from, to) = (bound(from)?, bound(to)?);
        if to.end <= from.begin {
            return Err(CommandError::usage(format!("`{range}` ends before it begins")));
        }
        if !key.is_finer_than_days() {
            return Ok(Self::Times(from.begin, to.end));
        }
        Ok(Self::Times(utc(from.begin, zone), utc(to.end, zone)))
    }

    fn holds(&self, name: &str, first: &str, key: Option<&Key>) -> bool {
        match self {
            Self::Name(pattern) => {
                like(pattern.as_bytes(), name.as_bytes()) || like(pattern.as_bytes(), first.as_bytes())
            }
            Self::Names(from, to) => from.as_str() <= first && (first <= to.as_str() || first.starts_with(to.as_str())),
            Self::Times(from, to) => {
                key.and_then(|key| key.time(first)).is_some_and(|time| *from <= time && time < *to)
            }
        }
    }
}

/// The instant of a zone's civil time, in UTC. A time that a change of the clock leaves out is the moment of the change; of
/// one that comes twice the first is meant.
fn utc(civil: NaiveDateTime, zone: Tz) -> NaiveDateTime {
    match zone.from_local_datetime(&civil) {
        LocalResult::Single(time) | LocalResult::Ambiguous(time, _) => time.with_timezone(&Utc).naive_utc(),
        LocalResult::None => {
            let later = (1..=24).map(|quarters| civil + TimeDelta::minutes(15 * quarters));
            let first = later.filter_map(|time| zone.from_local_datetime(&time).earliest()).next();
            first.map_or(civil, |time| time.with_timezone(&Utc).naive_utc())
        }
    }
}

/// The civil time that a bound covers.
struct Span {
    begin: NaiveDateTime,
    end: NaiveDateTime,
}

impl Span {
    fn parse(text: &str) -> Option<Self> {
        let day = |date: NaiveDate| date.and_hms_opt(0, 0, 0);
        if let Ok(time) = NaiveDateTime::parse_from_str(&format!("{text}:00"), "%Y-%m-%dT%H:%M:%S") {
            return Some(Self { begin: time, end: time + TimeDelta::minutes(1) });
        }
        if let Ok(time) = NaiveDateTime::parse_from_str(&format!("{text}:00:00"), "%Y-%m-%dT%H:%M:%S") {
            return Some(Self { begin: time, end: time + TimeDelta::hours(1) });
        }
        if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
            return Some(Self { begin: day(date)?, end: day(date.checked_add_days(Days::new(1))?)? });
        }
        if let Ok(month) = NaiveDate::parse_from_str(&format!("{text}-01"), "%Y-%m-%d") {
            return Some(Self { begin: day(month)?, end: day(month.checked_add_months(Months::new(1))?)? });
        }
        let year = NaiveDate::parse_from_str(&format!("{text}-01-01"), "%Y-%m-%d").ok()?;
        Some(Self { begin: day(year)?, end: day(year.with_year(year.year() + 1)?)? })
    }
}

fn like(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| like(rest, &text[skip..])),
        Some((byte, rest)) => text.split_first().is_some_and(|(first, tail)| first == byte && like(rest, tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(pattern: &str, range: &str, zone: &str, values: &[&str]) -> Vec<String> {
        let pattern: Pattern = pattern.parse().unwrap();
        let key = pattern.keys()[0].name.clone();
        let found = values.iter().map(|value| SourcePartition {
            name: (*value).to_owned(),
            keys: vec![(key.clone(), (*value).to_owned())],
            objects: Vec::new(),
        });
        let partitions = Partitions::parse(&[range.to_owned()], zone).unwrap();
        partitions.choose(&pattern, found.collect()).unwrap().into_iter().map(|partition| partition.name).collect()
    }

    fn hours(day: &str, next: &str) -> Vec<String> {
        let all = [day, next].into_iter().flat_map(|day| (0..24).map(move |hour| format!("{day}T{hour:02}")));
        all.collect()
    }

    #[test]
    fn days_and_months_are_inclusive() {
        let days = ["2025-12-31", "2026-01-01", "2026-03-31", "2026-04-01"];
        let pattern = "a/{date:%Y-%m-%d}/*";
        assert_eq!(chosen(pattern, "2026-01-01..2026-03-31", "UTC", &days), ["2026-01-01", "2026-03-31"]);
        assert_eq!(chosen(pattern, "2026-01..2026-03", "America/New_York", &days), ["2026-01-01", "2026-03-31"]);
        assert_eq!(chosen(pattern, "2025", "UTC", &days), ["2025-12-31"]);
    }

    #[test]
    fn a_day_has_as_many_hours_as_it_has() {
        let pattern = "a/{hour:%Y-%m-%dT%H}.jsonl";
        let names = |all: &[String], range: &str, zone: &str| {
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            chosen(pattern, range, zone, &all)
        };
        // Clocks go forward: from 23:00 UTC of the day before to 22:00 UTC.
        let spring = names(&hours("2026-03-28", "2026-03-29"), "2026-03-29", "Europe/Berlin");
        assert_eq!((spring.len(), spring[0].as_str(), spring[22].as_str()), (23, "2026-03-28T23", "2026-03-29T21"));
        let autumn = names(&hours("2026-10-24", "2026-10-25"), "2026-10-25..2026-10-25", "Europe/Berlin");
        assert_eq!((autumn.len(), autumn[0].as_str(), autumn[24].as_str()), (25, "2026-10-24T22", "2026-10-25T22"));
        let plain = names(&hours("2026-03-29", "2026-03-30"), "2026-03-29", "UTC");
        assert_eq!(plain.len(), 24);
    }

    #[test]
    fn names_of_times_may_have_stars() {
        let days = ["2025-12-31", "2026-01-01", "2026-01-02"];
        assert_eq!(chosen("a/{date:%Y-%m-%d}/*", "*", "UTC", &days), days);
        assert_eq!(chosen("a/{date:%Y-%m-%d}/*", "2026-01-*", "UTC", &days), days[1..]);
    }

    #[test]
    fn keys_that_are_no_times_are_compared_as_text() {
        let pattern = "a/{shard}/*";
        let shards = ["a-1", "a-2", "b-1"];
        assert_eq!(chosen(pattern, "a-*", "UTC", &shards), ["a-1", "a-2"]);
        assert_eq!(chosen(pattern, "a-2..b", "UTC", &shards), ["a-2", "b-1"]);
        assert_eq!(chosen(pattern, "b-1,a-1", "UTC", &shards), ["a-1", "b-1"]);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let choose = |range: &str| {
            Partitions::parse(&[range.to_owned()], "UTC")
                .unwrap()
                .choose(&"a/{date:%Y-%m-%d}/*".parse().unwrap(), Vec::new())
        };
        assert!(choose("last week").unwrap_err().to_string().contains("is no time"));
        assert!(choose("2026-02-01..2026-01-01").unwrap_err().to_string().contains("ends before it begins"));
        assert!(Partitions::parse(&["x".into()], "Europe/Berlim").unwrap_err().to_string().contains("no time zone"));
    }
}
