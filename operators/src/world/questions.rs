//! The operator `world_questions`: questions with computed answers, in sets that share no pair of countries.

use std::num::NonZeroU32;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use schemas::Question;
use serde::{Deserialize, Serialize};

use super::facts::{Attribute, countries};
use super::task::{Goal, Place, Task};
use crate::context::{UnitContext, share};
use crate::error::OperatorError;
use crate::operator::{Operator, Split};
use crate::params::ParamsError;
use crate::port::{Out, Port};

/// Parameters of `world_questions`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Questions to learn from, over all units.
    #[serde(default = "thousands")]
    pub train: NonZeroU32,
    /// Questions to choose settings by, over all units.
    #[serde(default = "hundreds")]
    pub heldout: NonZeroU32,
    /// Questions to look at once, for the report, over all units.
    #[serde(default = "hundreds")]
    pub last: NonZeroU32,
    /// Units the work is cut into.
    #[serde(default = "eight")]
    pub units: NonZeroU32,
}

fn thousands() -> NonZeroU32 {
    NonZeroU32::new(4000).expect("not 0")
}
fn hundreds() -> NonZeroU32 {
    NonZeroU32::new(256).expect("not 0")
}
fn eight() -> NonZeroU32 {
    NonZeroU32::new(8).expect("not 0")
}

/// The operator.
pub struct WorldQuestions {
    params: Params,
}

const TRAIN: Out<Question> = Out::new("train", "questions to learn from");
const HELDOUT: Out<Question> = Out::new("heldout", "questions to choose settings by");
const LAST: Out<Question> = Out::new("last", "questions to look at once, for the report");

/// The sets, with the share of all pairs of countries that each may ask about.
const SETS: [(&Out<Question>, &str, f64); 3] =
    [(&TRAIN, "train", 0.7), (&HELDOUT, "heldout", 0.15), (&LAST, "last", 0.15)];

/// Kinds of questions with their weight in the mix: the goal, and whether countries are named by their capitals.
const KINDS: [(&str, Goal, bool, u32); 6] = [
    ("difference", Goal::Difference, false, 25),
    ("sum", Goal::Sum, false, 12),
    ("larger", Goal::Larger, false, 18),
    ("capital_larger", Goal::Larger, true, 15),
    ("capital_difference", Goal::Difference, true, 15),
    ("neighbour", Goal::Neighbour, false, 15),
];

impl Operator for WorldQuestions {
    const NAME: &'static str = "world_questions";
    const VERSION: u32 = 1;
    const ABOUT: &'static str =
        "Asks questions of two to four steps about the quickstart's world, in sets that share no pair of countries.";
    const INPUTS: &'static [Port] = &[];
    const OUTPUTS: &'static [Port] = &[TRAIN.port(), HELDOUT.port(), LAST.port()];
    const SEEDED: bool = true;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        Ok(Self { params })
    }

    fn split(&self) -> Split {
        Split::Numbered(self.params.units.get())
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        let counts = [self.params.train, self.params.heldout, self.params.last];
        for ((port, set, _), count) in SETS.into_iter().zip(counts) {
            let mut rng = ChaCha8Rng::seed_from_u64(cx.seed(set));
            let units = self.params.units.get();
            // The first units take one more where the count does not divide.
            let mine = count.get() / units + u32::from(cx.number < count.get() % units);
            let mut questions: Vec<Question> = Vec::new();
            while questions.len() < mine as usize {
                let id = format!("{set}-{}-{}", cx.partition, questions.len());
                questions.extend(ask(&mut rng, set, id));
            }
            cx.append(port, &questions)?;
        }
        Ok(())
    }
}

/// Draws a question; `None` where the draw belongs to another set or has no answer.
fn ask(rng: &mut ChaCha8Rng, set: &str, question_id: String) -> Option<Question> {
    let total: u32 = KINDS.iter().map(|(.., weight)| weight).sum();
    let mut drawn = rng.random_range(0..total);
    let (kind, goal, by_capital, _) = KINDS.into_iter().find(|(.., weight)| {
        let hit = drawn < *weight;
        drawn = drawn.wrapping_sub(*weight);
        hit
    })?;
    let attribute = Attribute::ALL[rng.random_range(0..Attribute::ALL.len())];
    let all = countries();
    let count = if goal == Goal::Neighbour { 1 } else { 2 };
    let places = (0..count)
        .map(|_| {
            let country = &all[rng.random_range(0..all.len())];
            if by_capital { Place::CountryOf(country.capital.into()) } else { Place::Country(country.name.into()) }
        })
        .collect();
    let task = Task { goal, attribute, places };
    let mut entities: Vec<String> = task.countries()?.iter().map(|country| country.name.to_owned()).collect();
    entities.sort();
    if set_of(&entities) != set {
        return None;
    }
    let lookups = if goal == Goal::Neighbour { 2 } else { 2 + 2 * i64::from(by_capital) };
    Some(Question {
        question_id,
        question: task.question(),
        golden_answers: vec![task.answer()?],
        kind: kind.to_owned(),
        hops: lookups.min(4),
        entities,
    })
}

/// The set that may ask about a pair of countries. It depends on the pair alone, not on the pipeline's seed, so what a
/// model was trained on under one seed is not asked of it under another.
fn set_of(pair: &[String]) -> &'static str {
    let mut drawn = share(0, &pair.join("/"));
    for (_, set, part) in SETS {
        if drawn < part {
            return set;
        }
        drawn -= part;
    }
    SETS[SETS.len() - 1].1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryIo;
    use std::collections::HashSet;

    fn questions(seed: u64) -> [Vec<Question>; 3] {
        let params = serde_json::from_value(serde_json::json!({"train": 300, "heldout": 60, "last": 60, "units": 1}));
        let operator = WorldQuestions::new(params.unwrap()).unwrap();
        let io = MemoryIo::new().unwrap();
        io.run(&operator, seed).unwrap();
        ["train", "heldout", "last"].map(|port| io.rows(port).unwrap())
    }

    #[test]
    fn sets_share_no_pair_of_countries_whatever_the_seed() {
        let pairs = |questions: &[Question]| -> HashSet<Vec<String>> {
            questions.iter().map(|question| question.entities.clone()).collect()
        };
        let (first, second) = (questions(1), questions(2));
        for a in 0..3 {
            for b in 0..3 {
                if a != b {
                    assert!(pairs(&first[a]).is_disjoint(&pairs(&first[b])));
                    assert!(pairs(&first[a]).is_disjoint(&pairs(&second[b])));
                }
            }
        }
        assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [300, 60, 60]);
        assert_ne!(first[0], second[0]);
        assert_eq!(first, questions(1));
    }

    #[test]
    fn every_question_has_an_answer_and_two_to_four_steps() {
        for question in questions(3).into_iter().flatten() {
            assert_eq!(question.golden_answers.len(), 1);
            assert!((2..=4).contains(&question.hops));
            assert_eq!(Task::read(&question.question).unwrap().answer().as_ref(), question.golden_answers.first());
        }
    }
}
