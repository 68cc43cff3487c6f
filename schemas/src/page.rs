//! Pages: the local corpus that the search and crawl tools work on.

use serde::{Deserialize, Serialize};

use crate::Table;

/// One document of the corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Page {
    /// Its address; `crawl_page` takes it. Unique.
    pub page_id: String,
    /// Its title, searched with twice the weight of the text.
    pub title: String,
    /// The whole text, as `crawl_page` returns it.
    pub text: String,
    /// What a search result shows of it; the beginning of the text where null.
    pub snippet: Option<String>,
}

impl Table for Page {
    const NAME: &'static str = "pages";
    const VERSION: u32 = 1;
    const KEY: Option<&'static str> = Some("page_id");
}
