//! From a file as written to a pipeline that can run, or every mistake on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use operators::address::{Address, AddressError};
use operators::params::closest;
use operators::{Built, Factory, Mistake, Payload, Port, Split};
use schemas::{Quarantined, TableDef};
use toml::Spanned;

use crate::diagnostics::Diagnostics;
use crate::file::{self, StageFile};
use crate::pipeline::{Binding, Pipeline, Stage, fingerprint};

/// Compiles the text of a pipeline file. `path` is for messages; `seed` replaces the file's own where given.
pub fn compile(
    path: &str,
    text: &str,
    registry: &[&'static dyn Factory],
    seed: Option<u64>,
) -> Result<Pipeline, Diagnostics> {
    let (file, mut mistakes) = file::read(text);
    let seed = seed.or(file.seed).unwrap_or(0);
    let unreadable = mistakes.iter().any(|mistake| mistake.message.starts_with("not TOML"));
    if file.name.is_none() && !unreadable && !mistakes.iter().any(|mistake| mistake.message.starts_with("`name`")) {
        mistakes.push(Mistake { span: 0..0, message: "missing key `name`".into(), hint: None });
    }
    if let Some(store) = &file.store
        && let Err(error) = Address::parse(store.get_ref())
        && !store.get_ref().trim().is_empty()
    {
        let hint = Some(AddressError::HINT.to_owned());
        mistakes.push(Mistake { span: store.span(), message: format!("`store`: {error}"), hint });
    }
    if file.stages.is_empty() && mistakes.is_empty() {
        let hint = Some("add a table [stages.NAME] with an `operator`".to_owned());
        mistakes.push(Mistake { span: 0..0, message: "the pipeline has no stages".into(), hint });
    }

    let mut drafts = Vec::new();
    for stage in &file.stages {
        check_name(&stage.name, &mut mistakes);
        if let Some(draft) = Draft::new(stage, registry, &mut mistakes) {
            drafts.push(draft);
        }
    }
    let names: Vec<&str> = file.stages.iter().map(|stage| stage.name.get_ref().as_str()).collect();
    let outputs: BTreeMap<&str, &'static [Port]> =
        drafts.iter().map(|draft| (draft.name(), draft.factory.outputs())).collect();
    for draft in &mut drafts {
        draft.bind(&names, &outputs, &mut mistakes);
    }
    let order = order(&drafts, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(Diagnostics::new(path, text, mistakes));
    }

    let mut drafts: Vec<Option<Draft<'_>>> = drafts.into_iter().map(Some).collect();
    let stages = order
        .into_iter()
        .map(|index| {
            let draft = drafts[index].take().expect("the order names each stage once");
            let built = draft.built.expect("a stage without operator is a mistake");
            Stage {
                name: draft.file.name.get_ref().clone(),
                factory: draft.factory,
                fingerprint: fingerprint(draft.factory, &built.params, seed, &draft.bindings),
                operator: Arc::from(built.operator),
                params: built.params,
                inputs: draft.bindings,
                max_parallel: draft.file.max_parallel,
                max_bad_ratio: draft.file.max_bad_ratio.as_ref().map(|ratio| *ratio.get_ref()),
            }
        })
        .collect();
    Ok(Pipeline {
        name: file.name.map(Spanned::into_inner).unwrap_or_default(),
        store: file.store.map(Spanned::into_inner),
        queue: file.queue.map(Spanned::into_inner),
        seed,
        text: text.to_owned(),
        stages,
    })
}

/// Where records go that could not be read.
const QUARANTINE: TableDef = TableDef::of::<Quarantined>();

/// Characters of a stage's name.
const LONGEST_NAME: usize = 64;

/// Stage names become folders and SQL schemas.
fn check_name(name: &Spanned<String>, mistakes: &mut Vec<Mistake>) {
    let text = name.get_ref();
    let plain = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !plain || text.len() > LONGEST_NAME || matches!(text.as_str(), "public" | "views" | "information_schema") {
        mistakes.push(Mistake {
            span: name.span(),
            message: format!("`{text}` cannot be the name of a stage"),
            hint: Some(format!("use at most {LONGEST_NAME} lower-case letters, digits and `_`, a letter first")),
        });
    }
}

/// A stage on the way.
struct Draft<'a> {
    file: &'a StageFile<'a>,
    factory: &'static dyn Factory,
    built: Option<Built>,
    bindings: Vec<Binding>,
}

impl<'a> Draft<'a> {
    fn new(stage: &'a StageFile<'a>, registry: &[&'static dyn Factory], mistakes: &mut Vec<Mistake>) -> Option<Self> {
        let Some(operator) = &stage.operator else {
            mistakes.push(Mistake {
                span: stage.name.span(),
                message: format!("stage `{}` has no `operator`", stage.name.get_ref()),
                hint: Some("`coa operators` lists them".to_owned()),
            });
            return None;
        };
        let Some(factory) = registry.iter().find(|factory| factory.name() == operator.get_ref()) else {
            let names: Vec<&str> = registry.iter().map(|factory| factory.name()).collect();
            let hint = match closest(operator.get_ref(), &names) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "`coa operators` lists those of this build".to_owned(),
            };
            let message = format!("unknown operator `{}`", operator.get_ref());
            mistakes.push(Mistake { span: operator.span(), message, hint: Some(hint) });
            return None;
        };
        let built = match factory.build(&stage.params) {
            Ok(built) => Some(built),
            Err(found) => {
                mistakes.extend(found.into_iter().map(|mistake| Mistake {
                    message: format!("{} (operator `{}`)", mistake.message, factory.name()),
                    ..mistake
                }));
                None
            }
        };
        let quarantines = factory.outputs().iter().any(|port| port.payload == Payload::Table(QUARANTINE));
        if let Some(ratio) = &stage.max_bad_ratio
            && !quarantines
        {
            mistakes.push(Mistake {
                span: ratio.span(),
                message: format!(
                    "operator `{}` quarantines nothing: `max_bad_ratio` has no meaning here",
                    factory.name()
                ),
                hint: None,
            });
        }
        Some(Self { file: stage, factory: *factory, built, bindings: Vec::new() })
    }

    fn name(&self) -> &'a str {
        self.file.name.get_ref()
    }

    fn bind(&mut self, stages: &[&str], outputs: &BTreeMap<&str, &'static [Port]>, mistakes: &mut Vec<Mistake>) {
        let operator = self.factory.name();
        for (port, _) in &self.file.inputs {
            if !self.factory.inputs().iter().any(|input| input.name == port.get_ref()) {
                let names: Vec<&str> = self.factory.inputs().iter().map(|input| input.name).collect();
                let hint = match closest(port.get_ref(), &names) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None if names.is_empty() => "it takes no inputs".to_owned(),
                    None => format!("its inputs are {}", names.join(", ")),
                };
                let message = format!("operator `{operator}` has no input `{}`", port.get_ref());
                mistakes.push(Mistake { span: port.span(), message, hint: Some(hint) });
            }
        }
        for input in self.factory.inputs() {
            let Some((_, from)) = self.file.inputs.iter().find(|(port, _)| port.get_ref() == input.name) else {
                if !input.optional {
                    mistakes.push(Mistake {
                        span: self.file.name.span(),
                        message: format!("input `{}` of operator `{operator}` is not bound", input.name),
                        hint: Some(format!("add inputs = {{ {} = \"STAGE.PORT\" }}", input.name)),
                    });
                }
                continue;
            };
            match resolve(from, input, stages, outputs) {
                Ok(Some(binding)) => self.bindings.push(binding),
                Ok(None) => {}
                Err(mistake) => mistakes.push(mistake),
            }
        }
        let Some(built) = &self.built else { return };
        let problem = match built.operator.split() {
            Split::PerPartition if self.bindings.is_empty() && self.file.inputs.is_empty() => {
                Some("it reads nothing: bind an input or name a `source`")
            }
            Split::PerObject(_) if !self.file.inputs.is_empty() => {
                Some("it has both a `source` and bound inputs: keep one of them")
            }
            _ => None,
        };
        if let Some(problem) = problem.filter(|_| self.factory.inputs().iter().all(|input| input.optional)) {
            let message = format!("stage `{}`: {problem}", self.name());
            mistakes.push(Mistake { span: self.file.name.span(), message, hint: None });
        }
    }
}

/// What `"stage.port"` names. `None` where the named stage has mistakes of its own.
fn resolve(
    from: &Spanned<String>,
    input: &Port,
    stages: &[&str],
    outputs: &BTreeMap<&str, &'static [Port]>,
) -> Result<Option<Binding>, Mistake> {
    let mistake = |message: String, hint: Option<String>| Mistake { span: from.span(), message, hint };
    let Some((stage, port)) = from.get_ref().split_once('.') else {
        let message = format!("`{}` names no output", from.get_ref());
        return Err(mistake(message, Some("write it as \"STAGE.PORT\"".to_owned())));
    };
    if !stages.contains(&stage) {
        let hint = closest(stage, stages).map(|meant| format!("did you mean `{meant}.{port}`?"));
        return Err(mistake(format!("no stage `{stage}`"), hint));
    }
    let Some(ports) = outputs.get(stage) else { return Ok(None) };
    let Some(output) = ports.iter().find(|output| output.name == port) else {
        let names: Vec<&str> = ports.iter().map(|output| output.name).collect();
        let hint = match closest(port, &names) {
            Some(meant) => format!("did you mean `{stage}.{meant}`?"),
            None => format!("its outputs are {}", names.join(", ")),
        };
        return Err(mistake(format!("stage `{stage}` has no output `{port}`"), Some(hint)));
    };
    if !input.payload.takes(&output.payload) {
        let message =
            format!("input `{}` takes {}, `{stage}.{port}` gives {}", input.name, input.payload, output.payload);
        return Err(mistake(message, None));
    }
    Ok(Some(Binding { port: Port { payload: output.payload, ..*input }, stage: stage.to_owned(), from: output.name }))
}

/// Indexes of the stages, each after those it reads from. A cycle is a mistake, told once with its stages.
fn order(drafts: &[Draft<'_>], mistakes: &mut Vec<Mistake>) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    let known: BTreeSet<&str> = drafts.iter().map(Draft::name).collect();
    loop {
        let ready = |draft: &Draft<'_>| {
            draft.bindings.iter().all(|b| placed.contains(b.stage.as_str()) || !known.contains(b.stage.as_str()))
        };
        let next = (0..drafts.len()).find(|index| !order.contains(index) && ready(&drafts[*index]));
        match next {
            Some(index) => {
                order.push(index);
                placed.insert(drafts[index].name());
            }
            None => break,
        }
    }
    let left: Vec<&Draft<'_>> = drafts.iter().filter(|draft| !placed.contains(draft.name())).collect();
    if let Some(first) = left.first() {
        // Follow unplaced inputs until a stage comes up again: that is the cycle.
        let mut path = vec![*first];
        loop {
            let last = path[path.len() - 1];
            let binding = last.bindings.iter().find(|b| left.iter().any(|draft| draft.name() == b.stage));
            let Some(next) = binding.and_then(|b| left.iter().find(|draft| draft.name() == b.stage)) else { break };
            if let Some(start) = path.iter().position(|draft| draft.name() == next.name()) {
                let mut names: Vec<&str> = path[start..].iter().rev().map(|draft| draft.name()).collect();
                names.insert(0, path[start].name());
                let message = format!("the stages form a cycle: {}", names.join(" -> "));
                mistakes.push(Mistake { span: path[start].file.name.span(), message, hint: None });
                break;
            }
            path.push(next);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, usize, String)> {
        let error = compile("p.toml", text, operators::OPERATORS, None).err().expect("mistakes");
        error.positions().map(|(line, column, message)| (line, column, message.to_owned())).collect()
    }

    const GOOD: &str = r#"
name = "demo"
[stages.ingest]
operator = "ingest_traces"
params = { format = "oagents", source = "in/*.jsonl" }
[stages.complexity]
operator = "complexity_filter"
inputs = { rows = "convert.trajectories" }
[stages.complexity.params]
min_interactions = 7 # more than usual
[stages.convert]
operator = "convert_coa"
inputs = { traces = "ingest.traces", steps = "ingest.steps" }
"#;

    #[test]
    fn stages_stand_after_what_they_read() {
        let pipeline = compile("p.toml", GOOD, operators::OPERATORS, None).unwrap();
        let names: Vec<&str> = pipeline.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["ingest", "convert", "complexity"]);
    }

    #[test]
    fn the_fingerprint_covers_settings_and_nothing_else() {
        let print = |text: &str, seed: Option<u64>| -> Vec<String> {
            let pipeline = compile("p.toml", text, operators::OPERATORS, seed).unwrap();
            pipeline.stages.into_iter().map(|stage| stage.fingerprint).collect()
        };
        let before = print(GOOD, None);
        assert_eq!(print(&GOOD.replace("# more than usual", "# another comment"), None), before);
        assert_eq!(print(GOOD, Some(9)), before, "no stage of these draws");
        let defaults = GOOD.replace("format = \"oagents\"", "repair = [], domain = \"qa\", format = \"oagents\"");
        assert_eq!(print(&defaults, None), before, "defaults written out are the same settings");
        let changed = print(&GOOD.replace("= 7", "= 6"), None);
        assert_eq!((&changed[..2], changed[2] == before[2]), (&before[..2], false));
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let text = r#"nam = "demo"
store = 7
[stages.ingest]
operator = "ingest_trace"
[stages.convert]
operator = "convert_coa"
inputs = { traces = "ingest.traces", step = "ingest.steps" }
[stages.Bad-name]
operator = "complexity_filter"
inputs = { rows = "convert.rejected" }
[stages.quality]
operator = "quality_filter"
inputs = { rows = "convert.trajectory" }
min = 3
[stages.quality.params]
grammar = "wep"
require_think = "yes"
"#;
        let expected = [
            (1, 1, "missing key `name`"),
            (1, 1, "unknown key `nam`"),
            (2, 9, "`store` must be a string, found integer"),
            (4, 12, "unknown operator `ingest_trace`"),
            (5, 9, "input `steps` of operator `convert_coa` is not bound"),
            (7, 38, "operator `convert_coa` has no input `step`"),
            (8, 9, "`Bad-name` cannot be the name of a stage"),
            (10, 19, "input `rows` takes rows of `trajectories` v1, `convert.rejected` gives rows of `rejected` v1"),
            (13, 19, "stage `convert` has no output `trajectory`"),
            (14, 1, "unknown key `min`"),
            (
                16,
                11,
                "`grammar`: unknown variant `wep`, expected one of `web`, `mhqa`, `code` (operator `quality_filter`)",
            ),
            (17, 17, "`require_think`: invalid type: string \"yes\", expected a boolean (operator `quality_filter`)"),
        ];
        let expected: Vec<_> = expected.into_iter().map(|(l, c, m)| (l, c, m.to_owned())).collect();
        assert_eq!(found(text), expected);
    }

    #[test]
    fn a_cycle_is_told_with_its_stages() {
        let text = r#"name = "demo"
[stages.a]
operator = "complexity_filter"
inputs = { rows = "b.kept" }
[stages.b]
operator = "quality_filter"
inputs = { rows = "a.kept" }
"#;
        assert_eq!(found(text), [(2, 9, "the stages form a cycle: a -> b -> a".to_owned())]);
    }

    #[test]
    fn broken_toml_is_reported_where_it_breaks() {
        let found = found("name = \"demo\"\n[stages.a\noperator = 1\n");
        assert_eq!(found[0].0, 2);
        assert!(found[0].2.starts_with("not TOML: "), "{found:?}");
    }

    #[test]
    fn an_ingest_needs_exactly_one_origin() {
        let neither =
            found("name = \"d\"\n[stages.i]\noperator = \"ingest_traces\"\nparams = { format = \"oagents\" }\n");
        assert_eq!(neither, [(2, 9, "stage `i`: it reads nothing: bind an input or name a `source`".to_owned())]);
    }
}
