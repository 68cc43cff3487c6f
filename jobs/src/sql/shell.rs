//! The interactive shell: lines until a `;`, a history that outlives it, and commands that begin with `\`.

use std::ffi::OsString;
use std::path::PathBuf;

use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

use super::Queries;
use super::output::Format;
use super::text::{Input, Reader};
use crate::error::CommandError;
use crate::telemetry::{complain, say};

/// What `\?` says.
const HELP: &str = "\
SELECT … ;      ends with `;` and may take several lines
\\d              lists tables, with their rows and versions
\\d TABLE        shows the columns of a table, or what a view is made of
\\?              this
\\q              ends, as Ctrl-D does; Ctrl-C drops what is begun, or interrupts a query";

const PROMPT: &str = "coa> ";
const MORE: &str = "...> ";

/// Whether to go on.
#[derive(Debug, PartialEq)]
enum Next {
    Line,
    End,
}

impl Queries {
    /// Answers queries that a person types.
    pub async fn shell(&self, format: Format) -> Result<(), CommandError> {
        let broken = |error: ReadlineError| CommandError::Io {
            what: "cannot read from the terminal".to_owned(),
            source: std::io::Error::other(error),
        };
        // Prompts go to the terminal, so that stdout has nothing but rows.
        let config = Config::builder().behavior(Behavior::PreferTerm).max_history_size(10_000).map_err(broken)?.build();
        let mut editor: Editor<(), FileHistory> = Editor::with_config(config).map_err(broken)?;
        let history = History::open(&mut editor);
        say("\\? for help, \\q to end");
        let mut reader = Reader::default();
        loop {
            let prompt = if reader.is_pending() { MORE } else { PROMPT };
            let inputs = match editor.readline(prompt) {
                Ok(line) => reader.push(&line),
                Err(ReadlineError::Interrupted) => {
                    reader.clear();
                    continue;
                }
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(broken(error)),
            };
            for input in inputs {
                history.add(&mut editor, &input);
                if self.one(input, format).await == Next::End {
                    return Ok(());
                }
            }
        }
    }

    async fn one(&self, input: Input, format: Format) -> Next {
        match &input {
            Input::Command(command) if command == "\\q" => return Next::End,
            Input::Command(command) if command == "\\?" => say(HELP),
            _ => {
                if let Err(error) = self.print(input, format).await {
                    complain(&format!("error: {error}"));
                    if let Some(hint) = error.hint() {
                        complain(&format!("hint: {hint}"));
                    }
                }
            }
        }
        Next::Line
    }
}

/// The file of what was typed before; a shell without one works too.
struct History(Option<PathBuf>);

impl History {
    fn open(editor: &mut Editor<(), FileHistory>) -> Self {
        let Some(path) = history_file(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")) else {
            return Self(None);
        };
        let made = path.parent().map(std::fs::create_dir_all).transpose();
        let read = made.and_then(|_| match editor.load_history(&path) {
            Err(ReadlineError::Io(error)) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        match read {
            Ok(()) => Self(Some(path)),
            Err(error) => {
                say(&format!("no history is kept: `{}`: {error}", path.display()));
                Self(None)
            }
        }
    }

    fn add(&self, editor: &mut Editor<(), FileHistory>, input: &Input) {
        let text = match input {
            Input::Statement(statement) => format!("{statement};"),
            Input::Command(command) => command.clone(),
        };
        let _ = editor.add_history_entry(text);
        if let Some(path) = &self.0
            && let Err(error) = editor.append_history(path)
        {
            tracing::warn!(path = %path.display(), %error, "the history cannot be written");
        }
    }
}

/// In the user's folder for state, as XDG has it: a relative path there counts as none.
fn history_file(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let state = state.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".local/state")))?;
    Some(state.join("coa/sql_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_kept_among_the_users_state() {
        let file = |state: Option<&str>, home: Option<&str>| history_file(state.map(Into::into), home.map(Into::into));
        assert_eq!(file(Some("/s"), Some("/h")), Some("/s/coa/sql_history".into()));
        assert_eq!(file(None, Some("/h")), Some("/h/.local/state/coa/sql_history".into()));
        assert_eq!(file(Some("relative"), Some("/h")), Some("/h/.local/state/coa/sql_history".into()));
        assert_eq!(file(Some(""), None), None);
    }
}
