//! The tools of an agent, by tag.

use crate::corpus::{Corpus, CorpusError};
use crate::python::{Python, SandboxError};

/// What a tool returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The text the agent sees.
    pub text: String,
    /// Whether the call was malformed or ended with an error.
    pub failed: bool,
}

impl Observation {
    fn ok(text: String) -> Self {
        Self { text, failed: false }
    }
    fn failed(text: impl Into<String>) -> Self {
        Self { text: text.into(), failed: true }
    }
}

/// A tool could not be used: no fault of the call, so nothing an agent should see or be judged by.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Search.
    #[error("the search failed")]
    Search(#[from] CorpusError),
    /// Python.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// The tools of an agent.
pub struct Toolbox {
    corpus: Corpus,
    python: Python,
    hits: usize,
}

impl Toolbox {
    /// Tools over a corpus; a search shows `hits` results.
    pub fn new(corpus: Corpus, python: Python, hits: usize) -> Self {
        Self { corpus, python, hits }
    }

    /// The tags it answers to.
    pub fn tags(&self) -> &'static [&'static str] {
        &["web_search", "wiki_search", "crawl_page", "code"]
    }

    /// Calls a tool with the text between its tags.
    pub fn call(&self, tag: &str, body: &str) -> Result<Observation, ToolError> {
        match tag {
            "web_search" | "wiki_search" => self.search(body),
            "crawl_page" => Ok(self.crawl(body)),
            "code" => self.code(body),
            other => Ok(Observation::failed(format!("no tool `{other}`"))),
        }
    }

    /// One line a hit. A line begins with a blank, so that a name is one token wherever it stands.
    fn search(&self, query: &str) -> Result<Observation, ToolError> {
        let hits = self.corpus.search(query, self.hits)?;
        if hits.is_empty() {
            return Ok(Observation::failed("no results"));
        }
        let lines: Vec<String> = hits
            .iter()
            .map(|hit| {
                let title = if hit.title == hit.id { String::new() } else { format!("{}. ", hit.title) };
                format!(" {}: {title}{}", hit.id, hit.shown())
            })
            .collect();
        Ok(Observation::ok(lines.join("\n")))
    }

    /// The texts of one or several addresses, joined by a bar.
    fn crawl(&self, addresses: &str) -> Observation {
        let mut texts = Vec::new();
        let mut failed = false;
        for address in addresses.split('|').map(str::trim) {
            match self.corpus.get(address) {
                Some(document) => texts.push(document.text.clone()),
                None => {
                    failed = true;
                    texts.push(format!("no page {address}"));
                }
            }
        }
        Observation { text: texts.join("\n"), failed }
    }

    /// Runs fenced Python, with a second fence as standard input.
    fn code(&self, body: &str) -> Result<Observation, ToolError> {
        let fences = fences(body);
        let source = |names: [&str; 2]| {
            let parts = fences.iter().filter(|(language, _)| names.contains(language)).map(|(_, text)| *text);
            parts.collect::<Vec<_>>().join("\n\n")
        };
        let code = source(["py", "python"]);
        if code.trim().is_empty() {
            return Ok(Observation::failed("no code: write it between ```py and ```"));
        }
        let output = self.python.run(&code, &source(["sh", "bash"]))?;
        Ok(Observation { text: output.text.trim_end().to_owned(), failed: !output.ok })
    }
}

/// The fenced blocks of a text with their language. A block may end with its text.
fn fences(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("```") {
        let Some((language, body)) = after.split_once('\n') else { break };
        let (body, next) = body.split_once("```").unwrap_or((body, ""));
        found.push((language.trim(), body.strip_suffix('\n').unwrap_or(body)));
        rest = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::fences;

    #[test]
    fn fenced_blocks() {
        assert_eq!(fences("```py\nprint(1)\n```"), [("py", "print(1)")]);
        assert_eq!(fences("x\n```python\na\nb\n```\n```sh\n1 2\n```\n"), [("python", "a\nb"), ("sh", "1 2")]);
        assert_eq!(fences("```py\nprint(1)"), [("py", "print(1)")]);
        assert_eq!(fences("print(1)"), []);
    }
}
