//! SQL as text: its tokens and their places, its statements, and the spelling of its names.
//!
//! Names are found as they are written; where there is none so written, the case of letters is not looked at. The engine
//! knows only one of the two, so names are respelled before it reads a query: token by token, never inside a string, a
//! comment or a quoted name.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// SQL with its tokens and where each stands in it.
pub(super) struct Text<'a> {
    sql: &'a str,
    tokens: Vec<(Token, Range<usize>)>,
}

impl<'a> Text<'a> {
    /// Reads tokens; the error says what is not closed, and where.
    pub(super) fn of(sql: &'a str) -> Result<Self, String> {
        let found = Tokenizer::new(&GenericDialect, sql).tokenize_with_location().map_err(|error| error.to_string())?;
        let mut places = Places { rest: sql.char_indices(), line: 1, column: 1, end: sql.len() };
        let mut tokens = Vec::with_capacity(found.len());
        for token in found {
            let start = places.offset(token.span.start.line, token.span.start.column);
            let end = places.offset(token.span.end.line, token.span.end.column);
            tokens.push((token.token, start..end));
        }
        Ok(Self { sql, tokens })
    }

    fn significant(&self) -> impl Iterator<Item = &(Token, Range<usize>)> {
        self.tokens.iter().filter(|(token, _)| !matches!(token, Token::Whitespace(_) | Token::EOF))
    }

    /// Whether a `;` ends the last statement.
    pub(super) fn is_ended(&self) -> bool {
        matches!(self.significant().last(), Some((Token::SemiColon, _)))
    }

    /// The statements, without their `;`.
    pub(super) fn statements(&self) -> Vec<&'a str> {
        let mut statements = Vec::new();
        let mut open: Option<Range<usize>> = None;
        for (token, place) in self.significant() {
            if *token == Token::SemiColon {
                statements.extend(open.take().map(|place| &self.sql[place]));
            } else {
                open = Some(open.map_or(place.start, |open| open.start)..place.end);
            }
        }
        statements.extend(open.map(|place| &self.sql[place]));
        statements
    }

    /// How many operators there are: no expression, set operation or join can be nested deeper than this.
    pub(super) fn operators(&self) -> usize {
        self.significant().filter(|(token, _)| is_operator(token)).count()
    }

    /// The same SQL with the names that stand in it spelled as they are known. A name that is not known (an alias, say)
    /// is spelled as where it is first written.
    pub(super) fn respelled(&self, names: &Names) -> String {
        let mut respelled = String::with_capacity(self.sql.len());
        let mut first: HashMap<String, &str> = HashMap::new();
        let mut copied = 0;
        let tokens: Vec<_> = self.significant().collect();
        for (at, (token, place)) in tokens.iter().enumerate() {
            let Token::Word(word) = token else { continue };
            if word.quote_style.is_some() {
                continue;
            }
            let spelling = match names.spelling(&word.value) {
                Some(known) => known,
                // Keywords and functions may be written either way, and are no place to learn a spelling from.
                None if word.keyword != Keyword::NoKeyword => continue,
                None if matches!(tokens.get(at + 1), Some((Token::LParen, _))) => continue,
                None => (*first.entry(word.value.to_lowercase()).or_insert(&word.value)).to_owned(),
            };
            respelled.push_str(&self.sql[copied..place.start]);
            respelled.push_str(&spelling);
            copied = place.end;
        }
        respelled.push_str(&self.sql[copied..]);
        respelled
    }
}

fn is_operator(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND
                | Keyword::OR
                | Keyword::XOR
                | Keyword::NOT
                | Keyword::IS
                | Keyword::IN
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::BETWEEN
                | Keyword::WHEN
                | Keyword::UNION
                | Keyword::EXCEPT
                | Keyword::INTERSECT
                | Keyword::JOIN
        ),
        Token::Number(..) | Token::Char(_) | Token::Comma | Token::Period | Token::SemiColon => false,
        Token::LParen | Token::RParen | Token::RBracket | Token::RBrace | Token::Colon => false,
        other => !is_string(other),
    }
}

fn is_string(token: &Token) -> bool {
    matches!(
        token,
        Token::SingleQuotedString(_)
            | Token::DoubleQuotedString(_)
            | Token::DollarQuotedString(_)
            | Token::NationalStringLiteral(_)
            | Token::EscapedStringLiteral(_)
            | Token::UnicodeStringLiteral(_)
            | Token::HexStringLiteral(_)
            | Token::Placeholder(_)
    )
}

/// From a token's line and column, both from 1 and in characters, to bytes. Asked in rising order.
struct Places<'a> {
    rest: std::str::CharIndices<'a>,
    line: u64,
    column: u64,
    end: usize,
}

impl Places<'_> {
    fn offset(&mut self, line: u64, column: u64) -> usize {
        while (self.line, self.column) < (line, column) {
            match self.rest.next() {
                Some((_, '\n')) => (self.line, self.column) = (self.line + 1, 1),
                Some(_) => self.column += 1,
                None => return self.end,
            }
        }
        self.rest.clone().next().map_or(self.end, |(at, _)| at)
    }
}

/// Names that exist, found whatever the case of their letters.
#[derive(Default)]
pub(super) struct Names(HashMap<String, BTreeSet<String>>);

impl Names {
    pub(super) fn add(&mut self, name: &str) {
        self.0.entry(name.to_lowercase()).or_default().insert(name.to_owned());
    }

    /// How a name is spelled: as it is written if there is one so written, else as the only one that differs in case.
    fn spelling(&self, written: &str) -> Option<String> {
        // A table may be followed by its version.
        if let Some((name, version)) = written.rsplit_once('@') {
            return Some(format!("{}@{}", self.spelling(name)?, version.to_lowercase()));
        }
        let known = self.0.get(&written.to_lowercase())?;
        match known.iter().next() {
            _ if known.contains(written) => Some(written.to_owned()),
            Some(only) if known.len() == 1 => Some(only.clone()),
            _ => None,
        }
    }
}

/// Puts lines together to statements and commands.
#[derive(Default)]
pub(super) struct Reader {
    pending: String,
}

/// What was read.
#[derive(Debug, PartialEq)]
pub(super) enum Input {
    /// One statement, without its `;`.
    Statement(String),
    /// A line that begins with `\`.
    Command(String),
}

impl Reader {
    /// Whether a statement is begun and not ended.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.trim().is_empty()
    }

    /// Forgets what is begun.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// Takes a line; gives what it completes.
    pub(super) fn push(&mut self, line: &str) -> Vec<Input> {
        if !self.is_pending() && line.trim_start().starts_with('\\') {
            return vec![Input::Command(line.trim().to_owned())];
        }
        self.pending.push_str(line);
        self.pending.push('\n');
        // A string or comment may go on in the next line, so what cannot be read yet is no mistake yet.
        let is_ended = line.contains(';') && Text::of(&self.pending).is_ok_and(|text| text.is_ended());
        if is_ended { self.finish() } else { Vec::new() }
    }

    /// Gives what is left: at the end of the input a `;` may be missing.
    pub(super) fn finish(&mut self) -> Vec<Input> {
        let pending = std::mem::take(&mut self.pending);
        let statements = match Text::of(&pending) {
            Ok(text) => text.statements().into_iter().map(str::to_owned).collect(),
            Err(_) => vec![pending],
        };
        statements.into_iter().map(Input::Statement).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respelled(sql: &str, known: &[&str]) -> String {
        let mut names = Names::default();
        known.iter().for_each(|name| names.add(name));
        Text::of(sql).unwrap().respelled(&names)
    }

    #[test]
    fn names_are_spelled_as_they_are_known() {
        assert_eq!(respelled("SELECT TASKID FROM T", &["taskId", "t"]), "SELECT taskId FROM t");
        assert_eq!(respelled("select taskid, TaskId", &["taskId", "taskid"]), "select taskid, TaskId");
        assert_eq!(respelled("from C.Trajectories@V3", &["c", "trajectories"]), "from c.trajectories@v3");
        let kept = "select 'TASKID', \"TASKID\" -- TASKID\n, /* TASKID */ $$TASKID$$, E'\\'TASKID'";
        assert_eq!(respelled(kept, &["taskId"]), kept);
        assert_eq!(respelled("'日本語' = TaskID or ñ = TASKID", &["taskId"]), "'日本語' = taskId or ñ = taskId");
    }

    #[test]
    fn unknown_names_are_spelled_as_first_written() {
        assert_eq!(respelled("select 1 as firstId order by FIRSTID", &[]), "select 1 as firstId order by firstId");
        assert_eq!(respelled("SELECT MAX(x) AS max", &["x"]), "SELECT MAX(x) AS max");
        assert_eq!(respelled("SELECT 1 AS a union SELECT 2", &[]), "SELECT 1 AS a union SELECT 2");
    }

    #[test]
    fn statements_are_told_apart() {
        let sql = "select ';' ; -- a; b\n select \"x;\" from t /* ; */ ;; ";
        assert_eq!(Text::of(sql).unwrap().statements(), ["select ';'", "select \"x;\" from t"]);
        assert!(Text::of(sql).unwrap().is_ended());
        assert!(!Text::of("select 1; select").unwrap().is_ended());
        assert!(Text::of("-- nothing\n").unwrap().statements().is_empty());
        assert!(Text::of("select 'open").is_err_and(|error| error.contains("Unterminated string")));
    }

    #[test]
    fn operators_are_counted() {
        let count = |sql: &str| Text::of(sql).unwrap().operators();
        assert_eq!(count("a = 1 or b = 2"), 3);
        assert_eq!(count("x in (1, 2, 3, 'a', 'b')"), 1);
        assert_eq!(count("select a.b, f(c) from d;"), 0);
        assert_eq!(count("- - - 1"), 3);
    }

    #[test]
    fn lines_become_statements() {
        let statement = |text: &str| Input::Statement(text.to_owned());
        let mut reader = Reader::default();
        assert_eq!(reader.push("select 1,"), []);
        assert!(reader.is_pending());
        assert_eq!(reader.push("  2; -- done"), [statement("select 1,\n  2")]);
        assert!(!reader.is_pending());
        assert_eq!(reader.push(" \\d t "), [Input::Command("\\d t".to_owned())]);
        assert_eq!(reader.push("select 'a;"), []);
        assert_eq!(reader.push("\\d;'; select 3;"), [statement("select 'a;\n\\d;'"), statement("select 3")]);
        assert_eq!(reader.push("select"), []);
        reader.clear();
        assert_eq!(reader.push("select 4"), []);
        assert_eq!(reader.finish(), [statement("select 4")]);
        assert_eq!(reader.finish(), []);
    }
}
