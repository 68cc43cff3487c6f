//! Tools over a table of pages, for operators that call them.

use std::num::NonZeroUsize;

use schemas::Page;
use tools::{Corpus, Document, Limits, Python, ToolError, Toolbox};

use crate::error::OperatorError;

/// The default number of search results.
pub(crate) fn two_results() -> NonZeroUsize {
    NonZeroUsize::new(2).expect("not 0")
}

/// Search and page reading over the pages, and sandboxed Python with this many interpreters.
///
/// Fails where the sandbox cannot be set up: nothing is ever run outside of one.
pub fn corpus_tools(pages: Vec<Page>, search_results: usize, interpreters: usize) -> Result<Toolbox, OperatorError> {
    if pages.is_empty() {
        return Err(OperatorError::input("the corpus has no pages").hint("bind `pages` to a table with rows"));
    }
    let documents = pages.into_iter().map(|page| Document {
        id: page.page_id,
        title: page.title,
        text: page.text,
        snippet: page.snippet,
    });
    let corpus = Corpus::new(documents).map_err(|error| OperatorError::input(error.to_string()).because(error))?;
    let python = Python::start(interpreters, Limits::default()).map_err(ToolError::from)?;
    Ok(Toolbox::new(corpus, python, search_results))
}

/// Sets up sandboxed Python, proves it, runs something in it, and says what it is.
pub fn prove_sandbox() -> Result<String, OperatorError> {
    let python = Python::start(1, Limits::default()).map_err(ToolError::from)?;
    let output = python.run("import sys; print(sys.version.split()[0])", "").map_err(ToolError::from)?;
    Ok(output.text.trim().to_owned())
}
