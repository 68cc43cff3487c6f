//! Mistakes in a pipeline file, for people: file, line, column, the line itself with a caret, and how to mend it.

use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use operators::Mistake;

/// Every mistake found in one file.
#[derive(Debug, thiserror::Error)]
pub struct Diagnostics {
    path: String,
    text: String,
    mistakes: Vec<Mistake>,
}

impl Diagnostics {
    /// The mistakes of `text`, in order of place.
    pub(crate) fn new(path: &str, text: &str, mut mistakes: Vec<Mistake>) -> Self {
        mistakes.sort_by_key(|mistake| (mistake.span.start, mistake.span.end));
        mistakes.dedup();
        Self { path: path.to_owned(), text: text.to_owned(), mistakes }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.mistakes.len()
    }

    /// Whether there are none; a value of this type is an error, so there always is one.
    pub fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Line and column (in characters), from 1, and message of each.
    pub fn positions(&self) -> impl Iterator<Item = (usize, usize, &str)> {
        self.mistakes.iter().map(|mistake| {
            let before = &self.text[..mistake.span.start.min(self.text.len())];
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            (line, column, mistake.message.as_str())
        })
    }

    /// The report, with terminal colours or without.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut report = String::new();
        for mistake in &self.mistakes {
            let span = mistake.span.start.min(self.text.len())..mistake.span.end.min(self.text.len());
            let snippet = Snippet::source(&self.text)
                .path(&self.path)
                .annotation(AnnotationKind::Primary.span(first_line(&self.text, span)));
            let mut group = Level::ERROR.primary_title(mistake.message.as_str()).element(snippet);
            if let Some(hint) = &mistake.hint {
                group = group.element(Level::HELP.with_name("hint").message(hint.as_str()));
            }
            report.push_str(&renderer.render(&[group]).to_string());
            report.push_str("\n\n");
        }
        let count = self.mistakes.len();
        report.push_str(&format!("{count} mistake{} in {}", if count == 1 { "" } else { "s" }, self.path));
        report
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

/// A whole table as the place of a mistake would print pages; its first line is enough.
fn first_line(text: &str, span: std::ops::Range<usize>) -> std::ops::Range<usize> {
    let length = text[span.clone()].find('\n').unwrap_or(span.len());
    span.start..span.start + length
}
