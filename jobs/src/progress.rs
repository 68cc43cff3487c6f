//! How a run is shown while it goes on: bars on a terminal, plain lines elsewhere. Always on stderr; stdout is data.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use operators::ProgressSink;

use crate::telemetry;

/// Plain lines about a stage come at most this often.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// What is shown of a run.
pub(crate) struct Display {
    bars: Option<MultiProgress>,
    quiet: bool,
    stages: Mutex<HashMap<String, Arc<StageDisplay>>>,
}

struct StageDisplay {
    name: String,
    units: u64,
    state: Mutex<StageState>,
    bar: Option<ProgressBar>,
}

struct StageState {
    /// When the first unit began: a stage may have waited for a worker before.
    first_unit: Option<Instant>,
    /// When what is counted now began.
    began: Instant,
    done: u64,
    total: Option<u64>,
    unit: &'static str,
    said: Instant,
}

impl Display {
    /// A display for this process's stderr.
    pub(crate) fn new(quiet: bool) -> Arc<Self> {
        let bars = (std::io::stderr().is_terminal() && !quiet && !telemetry::talks_in_lines()).then(MultiProgress::new);
        Arc::new(Self { bars, quiet, stages: Mutex::default() })
    }

    /// A line for people.
    pub(crate) fn say(&self, line: &str) {
        match &self.bars {
            _ if self.quiet => {}
            Some(bars) => above(bars, line),
            None => telemetry::say(line),
        }
    }

    /// A line about something that went wrong: told even where nothing else is.
    pub(crate) fn complain(&self, line: &str) {
        match &self.bars {
            Some(bars) => above(bars, line),
            None => telemetry::complain(line),
        }
    }

    /// A stage begins, with this many units to do.
    pub(crate) fn begin_stage(&self, name: &str, units: u64) {
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new(units));
            bar.set_style(style());
            bar.set_prefix(name.to_owned());
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        let now = Instant::now();
        let state = StageState { first_unit: None, began: now, done: 0, total: Some(units), unit: "units", said: now };
        let display = StageDisplay { name: name.to_owned(), units, state: Mutex::new(state), bar };
        self.stages.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), Arc::new(display));
    }

    /// A unit of a stage is done.
    pub(crate) fn unit_done(&self, stage: &str) {
        let Some(display) = self.stage(stage) else { return };
        if display.units > 1 {
            let done = display.state.lock().unwrap_or_else(PoisonError::into_inner).done + 1;
            self.show(&display, done, "");
        }
    }

    /// A stage has ended; `summary` says with what.
    pub(crate) fn end_stage(&self, name: &str, summary: &str) {
        let display = self.stages.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        let Some(display) = display else { return };
        if let Some(bar) = &display.bar {
            bar.finish_and_clear();
        }
        let began = display.state.lock().unwrap_or_else(PoisonError::into_inner).first_unit;
        let seconds = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        self.say(&format!("{name}: {summary} in {seconds:.1} s"));
    }

    /// A unit of a stage begins. Returns where its operator reports to.
    pub(crate) fn unit(self: &Arc<Self>, stage: &str) -> UnitProgress {
        let stage = self.stage(stage);
        if let Some(stage) = &stage {
            let mut state = stage.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.first_unit.is_none() {
                let now = Instant::now();
                (state.first_unit, state.began, state.said) = (Some(now), now, now);
                if let Some(bar) = &stage.bar {
                    bar.reset_elapsed();
                    bar.reset_eta();
                }
            }
        }
        UnitProgress { display: Arc::clone(self), stage }
    }

    fn stage(&self, name: &str) -> Option<Arc<StageDisplay>> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn show(&self, stage: &StageDisplay, done: u64, note: &str) {
        let mut state = stage.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done = done;
        if let Some(bar) = &stage.bar {
            bar.set_position(done);
            bar.set_message(note.to_owned());
        } else if state.said.elapsed() >= PLAIN_EVERY {
            state.said = Instant::now();
            let line = plain(&stage.name, &state, note);
            drop(state);
            self.say(&line);
        }
    }
}

fn above(bars: &MultiProgress, line: &str) {
    let _ = bars.println(line);
}

fn style() -> ProgressStyle {
    let template = "{prefix:>14} {wide_bar:.cyan/blue} {human_pos}/{human_len} {per_sec} {eta} left {msg}";
    ProgressStyle::with_template(template).expect("the template is well-formed").progress_chars("=> ")
}

/// `sft: 120/450 steps, 12.3/s, 27 s left, loss 0.84`
fn plain(name: &str, state: &StageState, note: &str) -> String {
    let rate = state.done as f64 / state.began.elapsed().as_secs_f64().max(1e-9);
    let mut line = match state.total {
        Some(total) => format!("{name}: {}/{total} {}", state.done, state.unit),
        None => format!("{name}: {} {}", state.done, state.unit),
    };
    line.push_str(&format!(", {}/s", short(rate)));
    if let Some(left) = state.total.and_then(|total| total.checked_sub(state.done)).filter(|_| rate > 0.0) {
        line.push_str(&format!(", {:.0} s left", left as f64 / rate));
    }
    if !note.is_empty() {
        line.push_str(&format!(", {note}"));
    }
    line
}

fn short(rate: f64) -> String {
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

/// Reports of one unit. Shown where the stage has only this unit; otherwise the stage counts its units.
pub(crate) struct UnitProgress {
    display: Arc<Display>,
    stage: Option<Arc<StageDisplay>>,
}

impl UnitProgress {
    fn alone(&self) -> Option<&StageDisplay> {
        self.stage.as_deref().filter(|stage| stage.units == 1)
    }
}

impl ProgressSink for UnitProgress {
    fn begin(&self, total: Option<u64>, unit: &'static str) {
        let Some(stage) = self.alone() else { return };
        let mut state = stage.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.total, state.unit, state.done, state.began) = (total, unit, 0, Instant::now());
        if let Some(bar) = &stage.bar {
            match total {
                Some(total) => bar.set_length(total),
                None => bar.unset_length(),
            }
            bar.reset_elapsed();
            bar.reset_eta();
            bar.set_position(0);
        }
    }

    fn at(&self, done: u64, note: &str) {
        if let Some(stage) = self.alone() {
            self.display.show(stage, done, note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_has_rate_and_time_left() {
        let began = Instant::now() - Duration::from_secs(10);
        let state = StageState { first_unit: None, began, done: 120, total: Some(450), unit: "steps", said: began };
        let line = plain("sft", &state, "loss 0.84");
        assert!(line.starts_with("sft: 120/450 steps, 12.0/s, 2"), "{line}");
        assert!(line.ends_with(" s left, loss 0.84"), "{line}");
    }
}
