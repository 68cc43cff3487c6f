//! The operator `world_pages`: the facts as a corpus of pages.

use schemars::JsonSchema;
use schemas::Page;
use serde::{Deserialize, Serialize};

use super::facts::{Country, countries, rounded};
use crate::context::UnitContext;
use crate::error::OperatorError;
use crate::operator::{Operator, Split};
use crate::params::ParamsError;
use crate::port::{Out, Port};

/// Parameters of `world_pages`: none yet.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {}

/// The operator.
pub struct WorldPages;

const PAGES: Out<Page> = Out::new("pages", "a page for every country and every capital");

impl Operator for WorldPages {
    const NAME: &'static str = "world_pages";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Writes the facts of the quickstart's world as a corpus of pages.";
    const INPUTS: &'static [Port] = &[];
    const OUTPUTS: &'static [Port] = &[PAGES.port()];
    type Params = Params;

    fn new(_params: Params) -> Result<Self, ParamsError> {
        Ok(Self)
    }

    fn split(&self) -> Split {
        Split::Whole
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        let pages: Vec<Page> =
            countries().iter().flat_map(|country| [country_page(country), capital_page(country)]).collect();
        cx.append(&PAGES, &pages)
    }
}

/// A name always follows a blank, here and in search results, so that it is one token wherever it stands.
fn country_page(country: &Country) -> Page {
    let Country { name, capital, language, area, population, .. } = country;
    let borders: Vec<String> =
        country.borders.iter().map(|(neighbour, length)| format!(" {neighbour}={length}")).collect();
    let borders = if borders.is_empty() { String::new() } else { format!(", borders{}", borders.concat()) };
    Page {
        page_id: (*name).to_owned(),
        title: (*name).to_owned(),
        text: format!(" {name}: capital {capital}, language {language}, area:{area}, population:{population}{borders}"),
        snippet: Some(format!("country, area ~{}, population ~{}", rounded(*area), rounded(*population))),
    }
}

fn capital_page(country: &Country) -> Page {
    Page {
        page_id: country.capital.to_owned(),
        title: country.capital.to_owned(),
        text: format!(" {}: capital of {}", country.capital, country.name),
        snippet: Some(format!("capital of {}", country.name)),
    }
}
