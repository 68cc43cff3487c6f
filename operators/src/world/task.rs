//! What a question asks for: the same reading for those who ask and for those who answer.

use super::facts::{Attribute, Country, countries};

/// What is to be done with the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// The difference of two figures.
    Difference,
    /// Their sum.
    Sum,
    /// Which country has the larger one.
    Larger,
    /// The figure of the neighbour with the longest border.
    Neighbour,
}

/// How a question names a country.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Country(String),
    /// The country with this capital.
    CountryOf(String),
}

impl Place {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Country(name) | Self::CountryOf(name) => name,
        }
    }
}

/// A question, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) goal: Goal,
    pub(super) attribute: Attribute,
    pub(super) places: Vec<Place>,
}

impl Task {
    /// The question as asked.
    pub(super) fn question(&self) -> String {
        let attribute = self.attribute.name();
        let names: Vec<&str> = self.places.iter().map(Place::name).collect();
        let by_capital = matches!(self.places[0], Place::CountryOf(_));
        match (self.goal, by_capital, &names[..]) {
            (Goal::Difference, false, [a, b]) => format!("Difference in {attribute} between {a} and {b}?"),
            (Goal::Difference, true, [a, b]) => {
                format!("Difference in {attribute} between the countries of {a} and {b}?")
            }
            (Goal::Sum, false, [a, b]) => format!("Sum of {attribute} of {a} and {b}?"),
            (Goal::Sum, true, [a, b]) => format!("Sum of {attribute} of the countries of {a} and {b}?"),
            (Goal::Larger, false, [a, b]) => format!("Larger in {attribute}: {a} or {b}?"),
            (Goal::Larger, true, [a, b]) => format!("Larger in {attribute}: the country of {a} or {b}?"),
            (Goal::Neighbour, _, names) => {
                format!("What is the {attribute} of the longest neighbour of {}?", names[0])
            }
            _ => unreachable!("a task has two places, or one and its neighbour"),
        }
    }

    /// Reads a question.
    pub(super) fn read(question: &str) -> Option<Self> {
        let words: Vec<&str> = question.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        let attribute = Attribute::ALL.into_iter().find(|attribute| words.contains(&attribute.name()))?;
        let goal = match words[0] {
            "Difference" => Goal::Difference,
            "Sum" => Goal::Sum,
            "Larger" => Goal::Larger,
            "What" => Goal::Neighbour,
            _ => return None,
        };
        let by_capital = words.contains(&"country") || words.contains(&"countries");
        let names = words[1..].iter().filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()));
        let places: Vec<Place> = names
            .map(|name| {
                let name = (*name).to_owned();
                if by_capital { Place::CountryOf(name) } else { Place::Country(name) }
            })
            .collect();
        let wanted = if goal == Goal::Neighbour { 1 } else { 2 };
        (places.len() == wanted).then_some(Self { goal, attribute, places })
    }

    /// The countries the answer is computed from.
    pub(super) fn countries(&self) -> Option<Vec<&'static Country>> {
        let find = |place: &Place| {
            countries().iter().find(|country| match place {
                Place::Country(name) => country.name == name,
                Place::CountryOf(capital) => country.capital == capital,
            })
        };
        let mut found: Vec<&Country> = self.places.iter().map(find).collect::<Option<_>>()?;
        if self.goal == Goal::Neighbour {
            let (neighbour, _) = found[0].borders.first()?;
            found.push(countries().iter().find(|country| country.name == *neighbour)?);
        }
        Some(found)
    }

    /// The right answer; `None` where there is none, as for equal figures.
    pub(super) fn answer(&self) -> Option<String> {
        let countries = self.countries()?;
        let figures: Vec<i64> = countries.iter().map(|country| self.attribute.of(country)).collect();
        Some(match self.goal {
            Goal::Difference if figures[0] == figures[1] => return None,
            Goal::Difference => (figures[0] - figures[1]).abs().to_string(),
            Goal::Sum => (figures[0] + figures[1]).to_string(),
            Goal::Larger if figures[0] == figures[1] => return None,
            Goal::Larger => countries[usize::from(figures[1] > figures[0])].name.to_owned(),
            Goal::Neighbour => figures[1].to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_were_meant() {
        let places = |a: &str, b: &str, capital: bool| -> Vec<Place> {
            let place = |name: &str| {
                let name = name.to_owned();
                if capital { Place::CountryOf(name) } else { Place::Country(name) }
            };
            vec![place(a), place(b)]
        };
        for goal in [Goal::Difference, Goal::Sum, Goal::Larger] {
            for attribute in Attribute::ALL {
                for task in [
                    Task { goal, attribute, places: places("Laos", "Cyprus", false) },
                    Task { goal, attribute, places: places("Vientiane", "Nicosia", true) },
                ] {
                    assert_eq!(Task::read(&task.question()), Some(task.clone()), "{}", task.question());
                }
            }
        }
        let neighbour =
            Task { goal: Goal::Neighbour, attribute: Attribute::Area, places: vec![Place::Country("Laos".into())] };
        assert_eq!(Task::read(&neighbour.question()), Some(neighbour));
        assert_eq!(Task::read("How deep is Lake Vall?"), None);
    }

    #[test]
    fn answers_are_computed_from_the_facts() {
        let answer = |question: &str| Task::read(question).unwrap().answer();
        assert_eq!(answer("Difference in area between Laos and Cyprus?").as_deref(), Some("228"));
        assert_eq!(answer("Sum of population of the countries of Vientiane and Nicosia?").as_deref(), Some("81"));
        assert_eq!(answer("Larger in area: the country of Vientiane or Nicosia?").as_deref(), Some("Laos"));
        assert_eq!(answer("What is the area of the longest neighbour of Portugal?").as_deref(), Some("505"));
        assert_eq!(answer("Larger in area: Laos or Laos?"), None);
    }
}
