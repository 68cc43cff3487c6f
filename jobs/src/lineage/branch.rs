//! A tree of lines, for people.

/// A line, and what belongs below it.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    text: String,
    below: Vec<Branch>,
}

impl Branch {
    /// A line with nothing below it.
    pub(super) fn leaf(text: impl Into<String>) -> Self {
        Self { text: text.into(), below: Vec::new() }
    }

    /// A line and what is below it.
    pub(super) fn new(text: impl Into<String>, below: Vec<Branch>) -> Self {
        Self { text: text.into(), below }
    }

    /// Puts something below.
    pub(super) fn push(&mut self, branch: Branch) {
        self.below.push(branch);
    }

    /// The tree as text: with lines drawn for a terminal, else indented by two blanks a level.
    pub(crate) fn render(&self, drawn: bool) -> String {
        let mut text = format!("{}\n", self.text);
        self.render_below(drawn, "", &mut text);
        text
    }

    fn render_below(&self, drawn: bool, indent: &str, text: &mut String) {
        for (number, branch) in self.below.iter().enumerate() {
            let (knot, further) = match (drawn, number + 1 == self.below.len()) {
                (false, _) => ("  ", "  "),
                (true, false) => ("├─ ", "│  "),
                (true, true) => ("└─ ", "   "),
            };
            text.push_str(&format!("{indent}{knot}{}\n", branch.text));
            branch.render_below(drawn, &format!("{indent}{further}"), text);
        }
    }
}

/// The first few of many, and how many more there are.
pub(super) fn some(all: impl ExactSizeIterator<Item = Branch>, most: usize) -> Vec<Branch> {
    let more = all.len().saturating_sub(most);
    let mut shown: Vec<Branch> = all.take(most).collect();
    if more > 0 {
        shown.push(Branch::leaf(format!("and {more} more: `--json` has all")));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_drawn_or_indented() {
        let tree = Branch::new(
            "a",
            vec![Branch::new("b", vec![Branch::leaf("c")]), Branch::new("d", vec![Branch::leaf("e")])],
        );
        assert_eq!(tree.render(true), "a\n├─ b\n│  └─ c\n└─ d\n   └─ e\n");
        assert_eq!(tree.render(false), "a\n  b\n    c\n  d\n    e\n");
        assert_eq!(some([Branch::leaf("x"), Branch::leaf("y"), Branch::leaf("z")].into_iter(), 1).len(), 2);
    }
}
