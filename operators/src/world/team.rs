//! The team: agents with one job each, that hand each other messages and write down what they do.
//!
//! planner -> (searcher -> reader) for each country -> coder -> critic -> verifier, and back to the planner where the
//! critic finds nothing useful or the verifier doubts the answer. Each acts on what it was handed and on what its tool
//! returned; none knows the facts.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tools::{Observation, ToolError, Toolbox};

use super::facts::Attribute;
use super::task::{Goal, Place, Task};

/// How a team works on one question: its bad habits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Habits {
    /// Figures are read from search results, which are rounded, instead of pages.
    pub(super) sloppy: bool,
    /// The wrong figure of a page is read.
    pub(super) misreads: bool,
    /// The first query is useless.
    pub(super) wrong_query: bool,
    /// The first code does not run.
    pub(super) bad_code: bool,
    /// The critic is silent unless something went wrong.
    pub(super) uncritical: bool,
    /// The verifier notices figures from search results.
    pub(super) alert: bool,
    /// Nothing is looked up beyond this many calls; then the answer is made up.
    pub(super) gives_up_after: Option<usize>,
    /// The searcher never finds the right words, until the run's step limit.
    pub(super) lost: bool,
}

impl Habits {
    pub(super) fn draw(rng: &mut ChaCha8Rng) -> Self {
        let mut chance = |share: f64| rng.random_bool(share);
        let gives_up = [chance(0.015), chance(0.03)];
        Self {
            sloppy: chance(0.42),
            misreads: chance(0.05),
            wrong_query: chance(0.12),
            bad_code: chance(0.06),
            uncritical: chance(0.25),
            alert: chance(0.3),
            gives_up_after: gives_up.iter().position(|gives_up| *gives_up),
            lost: chance(0.015),
        }
    }
}

/// What became of a question.
pub(super) struct Solved {
    /// The steps, in the layout of an OAgents run record.
    pub(super) steps: Vec<Value>,
    /// The answer, unless the run hit its step limit.
    pub(super) answer: Option<String>,
}

/// A figure on its way from a page to the coder.
#[derive(Clone, Debug)]
struct Figure {
    country: String,
    value: i64,
    from_page: bool,
}

/// What the searcher hands the reader: a country and the search result it was found in.
struct Found {
    country: String,
    shown: String,
}

/// The step limit of a run.
const STEP_LIMIT: usize = 12;

/// A team at work on one question.
pub(super) struct Team<'a> {
    tools: &'a Toolbox,
    habits: Habits,
    rng: &'a mut ChaCha8Rng,
    steps: Vec<Value>,
    calls: usize,
    useful: usize,
    /// What the last agent said to the next one.
    handed: Option<String>,
}

/// Why a run ended early.
enum Ended {
    /// With this answer, if any.
    With(Option<String>),
    /// A tool cannot be used; there is no record of such a run.
    Broken(ToolError),
}

impl<'a> Team<'a> {
    pub(super) fn new(tools: &'a Toolbox, habits: Habits, rng: &'a mut ChaCha8Rng) -> Self {
        Self { tools, habits, rng, steps: Vec::new(), calls: 0, useful: 0, handed: None }
    }

    /// Works on a question until there is an answer or the step limit is reached.
    pub(super) fn solve(mut self, question: &str) -> Result<Solved, ToolError> {
        let answer = match self.work(question) {
            Ok(answer) => Some(answer),
            Err(Ended::With(answer)) => answer,
            Err(Ended::Broken(error)) => return Err(error),
        };
        Ok(Solved { steps: self.steps, answer })
    }

    fn work(&mut self, question: &str) -> Result<String, Ended> {
        let Some(task) = Task::read(question) else { return Err(Ended::With(None)) };
        self.plan_task(&task);
        let mut figures = self.look_up(&task)?;
        let mut result = self.compute(&task, &figures)?;
        self.review(&figures);
        let candidate = self.suggest(&result, &figures);
        if candidate.accepted {
            return Ok(result);
        }
        // The verifier doubts: the planner sends the reader back to the pages.
        self.plan("the figures are rounded", "read the pages");
        for figure in &mut figures {
            *figure = self.read_page(&figure.country.clone(), &format!("open {}", figure.country), task.attribute)?;
        }
        result = self.compute(&task, &figures)?;
        self.suggest(&result, &figures);
        Ok(result)
    }

    // planner

    fn plan_task(&mut self, task: &Task) {
        let attribute = task.attribute.name();
        let names: Vec<String> = task
            .places
            .iter()
            .map(|place| match place {
                Place::Country(name) => name.clone(),
                Place::CountryOf(capital) => format!("country of {capital}"),
            })
            .collect();
        let goal = match task.goal {
            Goal::Difference => "difference",
            Goal::Sum => "sum",
            Goal::Larger => "larger",
            Goal::Neighbour => "longest neighbour",
        };
        let plan = match task.goal {
            Goal::Neighbour => format!("{goal} of {}; its {attribute}", names[0]),
            _ => format!("{attribute} of {}; {attribute} of {}; {goal}", names[0], names[1]),
        };
        self.plan(&format!("{goal}, {attribute}"), &plan);
    }

    fn plan(&mut self, facts: &str, plan: &str) {
        let facts = match self.handed.take() {
            Some(handed) => format!("{handed}; {facts}"),
            None => facts.to_owned(),
        };
        self.steps.push(json!({
            "model_input_messages": null,
            "facts": format!("Here are the facts that I know so far:\n```\n{facts}\n```"),
            "plan": format!("Here is the plan of action that I will follow:\n```\n{plan}\n```"),
            "step_type": "planning",
            "agent": "planner",
        }));
    }

    // searcher and reader

    fn look_up(&mut self, task: &Task) -> Result<Vec<Figure>, Ended> {
        let mut figures = Vec::new();
        for place in &task.places {
            let (found, said) = self.find(place, task.attribute)?;
            if task.goal == Goal::Neighbour {
                // The neighbour stands on the country's page only, so the page is opened whatever the habits.
                let page = self.call("reader", &said, "crawl_page", &format!(" {}", found.country))?;
                let borders = page.text.split_once("borders").map(|(_, borders)| borders).unwrap_or_default();
                let longest = borders.split_whitespace().next().unwrap_or_default();
                let neighbour = longest.split('=').next().unwrap_or_default().to_owned();
                self.handed = Some(format!("borders {longest} so {neighbour}"));
                let (found, said) = self.find(&Place::Country(neighbour), task.attribute)?;
                figures.push(self.read(found, &said, task.attribute)?);
            } else {
                figures.push(self.read(found, &said, task.attribute)?);
            }
        }
        Ok(figures)
    }

    /// Finds a country by search. Returns what to say before its page is opened.
    fn find(&mut self, place: &Place, attribute: Attribute) -> Result<(Found, String), Ended> {
        let name = place.name();
        let wanted = match place {
            Place::Country(_) => format!("find {name}"),
            Place::CountryOf(_) => format!("country of {name}"),
        };
        while self.habits.lost || std::mem::take(&mut self.habits.wrong_query) {
            let topics = ["largest", "border", "people", "world", "map", "list"];
            let topic = topics[self.rng.random_range(0..topics.len())];
            self.call("searcher", &wanted, "web_search", &format!(" {topic} {}", attribute.name()))?;
            self.criticise(&format!("no page of {name}"), "poor", 0.0);
            self.plan("use the name", &format!("search {name}"));
        }
        let results = self.call("searcher", &wanted, "web_search", &format!(" {name}"))?;
        if results.failed {
            return Err(Ended::With(None));
        }
        self.useful += 1;
        let lines: Vec<&str> = results.text.lines().collect();
        let (country, said) = match place {
            Place::Country(_) => (name.to_owned(), format!("open {name}")),
            Place::CountryOf(_) => {
                let country = results.text.split("capital of ").nth(1).unwrap_or_default();
                let country: String = country.chars().take_while(char::is_ascii_alphabetic).collect();
                (country.clone(), format!("it is {country}"))
            }
        };
        let shown = lines.iter().find(|line| line.trim_start().starts_with(&format!("{country}:")));
        let shown = shown.map(|line| (*line).to_owned()).unwrap_or_default();
        Ok((Found { country, shown }, said))
    }

    fn read(&mut self, found: Found, said: &str, attribute: Attribute) -> Result<Figure, Ended> {
        if self.habits.sloppy
            && let Some(value) = number_after(&found.shown, &format!("{} ~", attribute.name()))
        {
            let country = found.country;
            self.handed = Some(format!("{} ~{value} so {country}={value}", attribute.name()));
            return Ok(Figure { country, value, from_page: false });
        }
        self.read_page(&found.country, said, attribute)
    }

    fn read_page(&mut self, country: &str, said: &str, attribute: Attribute) -> Result<Figure, Ended> {
        let page = self.call("reader", said, "crawl_page", &format!(" {country}"))?;
        self.useful += usize::from(!page.failed);
        let read = match attribute {
            Attribute::Area if std::mem::take(&mut self.habits.misreads) => Attribute::Population,
            Attribute::Population if std::mem::take(&mut self.habits.misreads) => Attribute::Area,
            attribute => attribute,
        };
        let Some(value) = number_after(&page.text, &format!("{}:", read.name())) else { return Err(Ended::With(None)) };
        self.handed = Some(format!("{}:{value} so {country}={value}", read.name()));
        Ok(Figure { country: country.to_owned(), value, from_page: true })
    }

    // coder

    fn compute(&mut self, task: &Task, figures: &[Figure]) -> Result<String, Ended> {
        let expression = match task.goal {
            Goal::Difference => "max(d.values())-min(d.values())",
            Goal::Sum => "sum(d.values())",
            Goal::Larger => "max(d,key=d.get)",
            Goal::Neighbour => return Ok(figures[0].value.to_string()),
        };
        let items: Vec<String> = figures.iter().map(|figure| format!(" {}={}", figure.country, figure.value)).collect();
        let assignment = format!("d=dict({})", items.join(","));
        if std::mem::take(&mut self.habits.bad_code) {
            let code = format!("{assignment}\nprint('=',{expression}");
            self.call("coder", "compute", "code", &code)?;
            self.criticise("the code failed", "poor", 0.0);
            self.plan("a bracket is open", "close it");
        }
        let output = self.call("coder", "compute", "code", &format!("{assignment}\nprint('=',{expression})"))?;
        self.useful += usize::from(!output.failed);
        let result = output.text.trim().trim_start_matches('=').to_owned();
        // A name keeps the blank before it.
        Ok(if result.trim().parse::<i64>().is_ok() { result.trim().to_owned() } else { result })
    }

    // critic

    fn review(&mut self, figures: &[Figure]) {
        if self.habits.uncritical {
            return;
        }
        let (seen, grade) = if figures.iter().all(|figure| figure.from_page) {
            ("pages read", "good")
        } else {
            ("snippets read", "average")
        };
        let seen = match self.handed.take() {
            Some(handed) => format!("{handed}; {seen}"),
            None => seen.to_owned(),
        };
        let score = self.useful as f64 / self.calls as f64 * 10.0;
        self.criticise(&seen, grade, score);
    }

    /// A judgement of the last action: reasoning, then the verdict as the last line.
    fn criticise(&mut self, reasoning: &str, verdict: &str, score: f64) {
        if let Some(action) = self.steps.iter_mut().rfind(|step| step["step_type"] == "action") {
            action["evaluate_thought"] = json!(format!("{reasoning}\n{verdict}"));
            action["score"] = json!(score);
        }
    }

    // verifier

    fn suggest(&mut self, result: &str, figures: &[Figure]) -> Candidate {
        let thought = match self.handed.take() {
            Some(handed) => format!("{handed}; result ={}", spaced(result)),
            None => format!("result ={}", spaced(result)),
        };
        let from_pages = figures.iter().all(|figure| figure.from_page);
        let (seen, score) = match (from_pages, self.habits.alert) {
            (true, _) => ("from pages", 4),
            (false, true) => ("from snippets", 2),
            (false, false) => ("from snippets", 3),
        };
        self.answer(&thought, result);
        let action = self.steps.last_mut().expect("just pushed");
        action["evaluate_thought"] = json!(format!("{seen}\nscore {score}"));
        action["score"] = json!(f64::from(score));
        Candidate { accepted: score >= 3 }
    }

    fn answer(&mut self, thought: &str, answer: &str) {
        let number = self.steps.len();
        self.steps.push(json!({
            "model_input_messages": null,
            "tool_calls": [{"id": format!("call_{number}"), "type": "function",
                "function": {"name": "final_answer", "arguments": {"answer": answer}}}],
            "step": number,
            "error": null,
            "model_output": format!("Thought: {thought}"),
            "observations": null,
            "action_output": answer,
            "score": null,
            "evaluate_thought": "",
            "step_type": "action",
            "agent": "verifier",
        }));
    }

    /// One action of an agent: what it says, the call it makes, what the tool returned.
    fn call(&mut self, agent: &str, thought: &str, tool: &str, argument: &str) -> Result<Observation, Ended> {
        if self.habits.gives_up_after == Some(self.calls) {
            let guess = self.rng.random_range(1..2000).to_string();
            self.answer("from memory", &guess);
            // The share of useful calls; of none it is no number, and Python's writer puts it down as NaN.
            let action = self.steps.last_mut().expect("just pushed");
            action["score"] = if self.calls == 0 { json!(NAN) } else { json!(0.0) };
            return Err(Ended::With(Some(guess)));
        }
        if self.calls == STEP_LIMIT {
            return Err(Ended::With(None));
        }
        let thought = match self.handed.take() {
            Some(handed) => format!("{handed}; {thought}"),
            None => thought.to_owned(),
        };
        let body = if tool == "code" { format!("```py\n{argument}\n```") } else { argument.to_owned() };
        let observation = self.tools.call(tool, &body).map_err(Ended::Broken)?;
        self.calls += 1;
        let number = self.steps.len();
        let field = match tool {
            "web_search" => "query",
            "crawl_page" => "url",
            _ => "code",
        };
        self.steps.push(json!({
            "model_input_messages": null,
            "tool_calls": [{"id": format!("call_{number}"), "type": "function",
                "function": {"name": tool, "arguments": {field: argument}}}],
            "step": number,
            "error": null,
            "model_output": format!("Thought: {thought}"),
            "observations": observation.text,
            "action_output": null,
            "score": null,
            "evaluate_thought": "",
            "step_type": "action",
            "agent": agent,
        }));
        Ok(observation)
    }
}

struct Candidate {
    accepted: bool,
}

/// Stands for Python's `NaN`, which JSON values cannot hold.
pub(super) const NAN: &str = "\u{1}NaN\u{1}";

fn spaced(result: &str) -> String {
    if result.starts_with(' ') { result.to_owned() } else { format!(" {result}") }
}

/// The number that stands behind a label.
fn number_after(text: &str, label: &str) -> Option<i64> {
    let (_, rest) = text.split_once(label)?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
