//! `coa status --watch`: a run as it goes on, from any machine that sees its store; with its queue, how far its units are.
//!
//! On a terminal the picture is drawn again in its place; elsewhere it is written whenever something but a clock has
//! changed. It ends with the run, and as the run did.

use std::time::Duration;

use console::Term;
use store::{Outcome, RunEnd, Store};

use super::QueueArgs;
use super::status::{Facts, Times, Why, find, open_queue};
use crate::error::CommandError;

/// A run whose process was not heard of for this long is taken for dead.
const RUN_DEAD: Duration = Duration::from_secs(60);

/// A time between two looks.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is meant".to_owned())?;
    match seconds {
        0.1..=86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it must be from 0.1 to 86400 seconds".to_owned()),
    }
}

/// Shows a run, or the last one, until it has ended.
pub(super) async fn watch(
    store: &Store,
    wanted: Option<u64>,
    address: &QueueArgs,
    every: Duration,
) -> Result<(), CommandError> {
    let (run, mut end) = find(store, wanted).await?;
    let mut queue = None;
    let mut screen = Screen::new();
    // Its process says that it is alive soon after the run is on record, and never again once its end is.
    let mut unheard = false;
    loop {
        if queue.is_none() {
            queue = open_queue(store, &run, address).await;
        }
        let facts = Facts::gather(store, run.clone(), end.clone(), queue.as_ref(), Why::LeftOut).await?;
        screen.show(&facts.text(store, Times::Told), &facts.text(store, Times::LeftOut))?;
        if let Some(end) = end {
            return verdict(run.run, &end);
        }
        tokio::time::sleep(every).await;
        let alive = match &queue {
            Some(queue) => queue.is_run_alive(store.url().as_str(), run.run, RUN_DEAD).await.unwrap_or(true),
            None => true,
        };
        (_, end) = find(store, Some(run.run)).await?;
        if end.is_none() && !alive && unheard {
            let number = run.run;
            return Err(CommandError::Failed(format!(
                "run {number} has no end and its process is gone; `coa resume {number} --store {}` goes on",
                store.url()
            )));
        }
        unheard = !alive;
    }
}

/// What a run's end means for who waited for it.
fn verdict(run: u64, end: &RunEnd) -> Result<(), CommandError> {
    match end.outcome {
        Outcome::Complete => Ok(()),
        Outcome::Failed => Err(CommandError::Failed(format!(
            "run {run} failed: {} units failed, {} were not tried",
            end.failed, end.blocked
        ))),
        Outcome::Interrupted | Outcome::Cancelled => {
            Err(CommandError::Interrupted(format!("run {run} was {}", end.outcome.name())))
        }
    }
}

/// Where the picture is.
struct Screen {
    term: Term,
    /// Lines that are drawn, on a terminal.
    drawn: usize,
    /// What was last written, elsewhere, without its clocks.
    written: Option<String>,
}

impl Screen {
    fn new() -> Self {
        Self { term: Term::buffered_stdout(), drawn: 0, written: None }
    }

    /// Shows a picture; `still` is the same one without its clocks.
    fn show(&mut self, picture: &str, still: &str) -> Result<(), CommandError> {
        self.draw(picture, still)
            .map_err(|source| CommandError::Io { what: "the run cannot be shown".to_owned(), source })
    }

    fn draw(&mut self, picture: &str, still: &str) -> std::io::Result<()> {
        if !self.term.is_term() {
            if self.written.as_deref() != Some(still) {
                let between = if self.written.is_some() { "\n" } else { "" };
                self.term.write_line(&format!("{between}{picture}"))?;
                self.written = Some(still.to_owned());
            }
            return self.term.flush();
        }
        let (rows, columns) = self.term.size();
        let lines = fitting(picture, usize::from(rows), usize::from(columns));
        self.term.clear_last_lines(self.drawn)?;
        for line in &lines {
            self.term.write_line(line)?;
        }
        self.drawn = lines.len();
        self.term.flush()
    }
}

/// The lines of a picture that a terminal has room for; the cursor stands on the line below them.
fn fitting(picture: &str, rows: usize, columns: usize) -> Vec<String> {
    let all = picture.lines().count();
    let room = rows.saturating_sub(1).max(1);
    let shown = if all > room { room - 1 } else { all };
    let mut lines: Vec<String> =
        picture.lines().take(shown).map(|line| console::truncate_str(line, columns, "…").into_owned()).collect();
    if shown < all {
        lines.push(format!("… {} more lines", all - shown));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_cut_to_the_terminal() {
        assert_eq!(fitting("a\nlong line\nc", 24, 5), ["a", "long…", "c"]);
        assert_eq!(fitting("a\nb\nc\nd", 4, 80), ["a", "b", "… 2 more lines"]);
        assert_eq!(fitting("a\nb\nc", 4, 80), ["a", "b", "c"]);
    }

    #[test]
    fn times_between_looks() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "soon", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
