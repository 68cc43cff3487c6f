//! The facts: countries whose short name and capital are one plain word each.

use std::sync::LazyLock;

/// A country.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Country {
    pub(super) name: &'static str,
    pub(super) capital: &'static str,
    pub(super) language: &'static str,
    /// In thousands of square kilometres.
    pub(super) area: i64,
    /// In hundreds of thousands of people.
    pub(super) population: i64,
    /// Up to three neighbours with the length of the border in kilometres, longest first.
    pub(super) borders: Vec<(&'static str, i64)>,
}

/// What can be asked of a country.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    Area,
    Population,
}

impl Attribute {
    pub(super) const ALL: [Self; 2] = [Self::Area, Self::Population];

    /// Its name in questions and on pages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Area => "area",
            Self::Population => "population",
        }
    }

    pub(super) fn of(self, country: &Country) -> i64 {
        match self {
            Self::Area => country.area,
            Self::Population => country.population,
        }
    }
}

/// All countries, in order of name.
pub(super) fn countries() -> &'static [Country] {
    static COUNTRIES: LazyLock<Vec<Country>> = LazyLock::new(|| {
        include_str!("../../data/countries.tsv").lines().filter(|line| !line.starts_with('#')).map(parse).collect()
    });
    &COUNTRIES
}

fn parse(line: &'static str) -> Country {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, capital, language, area, population, borders] = fields[..] else {
        panic!("a line of the facts has {} fields: {line}", fields.len());
    };
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("no number in the facts: {line}"));
    let borders = borders.split_whitespace().map(|border| {
        let (neighbour, length) = border.split_once('=').unwrap_or_else(|| panic!("no border in the facts: {line}"));
        (neighbour, number(length))
    });
    Country { name, capital, language, area: number(area), population: number(population), borders: borders.collect() }
}

/// The number with its first digit only: 237 is 200.
pub(super) fn rounded(number: i64) -> i64 {
    let scale = 10_i64.pow(number.max(1).ilog10());
    (number + scale / 2) / scale * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_are_whole() {
        let all = countries();
        assert!(all.len() > 100);
        let laos = all.iter().find(|country| country.name == "Laos").unwrap();
        assert_eq!((laos.capital, laos.area, laos.population), ("Vientiane", 237, 69));
        for country in all {
            assert!(country.borders.is_sorted_by(|a, b| a.1 >= b.1), "{country:?}");
            for (neighbour, _) in &country.borders {
                assert!(all.iter().any(|other| other.name == *neighbour), "{country:?}");
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_their_first_digit() {
        assert_eq!([237, 69, 9, 13_675, 950, 95].map(rounded), [200, 70, 9, 10_000, 1000, 100]);
    }
}
