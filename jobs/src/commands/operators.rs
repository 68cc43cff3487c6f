//! `coa operators`: the operators of this build, from the code itself.

use clap::Args;
use operators::params::closest;
use operators::{Factory, Port};
use serde_json::Value;

use super::print;
use crate::error::CommandError;
use crate::registry;

/// See the module documentation.
#[derive(Args)]
pub(super) struct Operators {
    /// The operator to describe.
    name: Option<String>,
}

impl Operators {
    pub(super) fn execute(self) -> Result<(), CommandError> {
        let registry = registry();
        let Some(name) = self.name else {
            let lines: Vec<String> =
                registry.iter().map(|operator| format!("{:<22} {}", operator.name(), operator.about())).collect();
            print(&lines.join("\n"));
            return Ok(());
        };
        let Some(operator) = registry.iter().find(|operator| operator.name() == name) else {
            let names: Vec<&str> = registry.iter().map(|operator| operator.name()).collect();
            return Err(CommandError::Usage {
                message: format!("no operator `{name}` in this build"),
                hint: closest(&name, &names).map(|meant| format!("did you mean `{meant}`?")),
            });
        };
        print(&describe(*operator));
        Ok(())
    }
}

fn describe(operator: &dyn Factory) -> String {
    let mut text = format!("{} (version {})\n{}\n", operator.name(), operator.version(), operator.about());
    let mut facts = vec![format!("its units go to `{}` workers", operator.queue().name())];
    if operator.seeded() {
        facts.push("it draws random numbers: the pipeline's seed is part of its result".to_owned());
    }
    text.push_str(&format!("{}\n", facts.join("; ")));
    let ports = |title: &str, ports: &[Port]| -> String {
        let mut text = format!("\n{title}\n");
        for port in ports {
            let optional = if port.optional { ", optional" } else { "" };
            let whole = if port.whole { ", all partitions" } else { "" };
            text.push_str(&format!("  {:<16} {} ({}{optional}{whole})\n", port.name, port.about, port.payload));
        }
        if ports.is_empty() {
            text.push_str("  none\n");
        }
        text
    };
    text.push_str(&ports("inputs", operator.inputs()));
    text.push_str(&ports("outputs", operator.outputs()));
    text.push_str("\nparameters\n");
    text.push_str(&parameters(&operator.params_schema().to_value()));
    text.trim_end().to_owned()
}

fn parameters(schema: &Value) -> String {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some(properties) = schema["properties"].as_object().filter(|properties| !properties.is_empty()) else {
        return "  none\n".to_owned();
    };
    let mut text = String::new();
    for (name, property) in properties {
        let kind = type_of(property, schema);
        let default = match property.get("default") {
            _ if required.contains(&name.as_str()) => "required".to_owned(),
            Some(Value::Null) | None => "optional".to_owned(),
            Some(default) => format!("default {default}"),
        };
        text.push_str(&format!("  {name} ({kind}, {default})\n"));
        let about = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        for line in wrap(&about, 96) {
            text.push_str(&format!("      {line}\n"));
        }
    }
    text
}

/// The type of a property in words: what it refers to, its variants, its bounds.
fn type_of(property: &Value, root: &Value) -> String {
    if let Some(name) = property["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        return type_of(&root["$defs"][name], root);
    }
    for combined in ["oneOf", "anyOf"] {
        if let Some(parts) = property[combined].as_array() {
            let parts: Vec<String> = parts
                .iter()
                .filter(|part| part["type"] != "null")
                .map(|part| part["const"].as_str().map_or_else(|| type_of(part, root), |word| format!("`{word}`")))
                .collect();
            return parts.join(" or ");
        }
    }
    if let Some(parts) = property["allOf"].as_array() {
        return parts.iter().map(|part| type_of(part, root)).collect::<Vec<_>>().join(" and ");
    }
    if let Some(words) = property["enum"].as_array() {
        return words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ");
    }
    let word = match &property["type"] {
        Value::String(word) => word.clone(),
        Value::Array(words) => {
            words.iter().filter_map(Value::as_str).filter(|word| *word != "null").collect::<Vec<_>>().join(" or ")
        }
        _ => "value".to_owned(),
    };
    if word == "array" {
        return format!("list of {}", type_of(&property["items"], root));
    }
    match (property["minimum"].as_f64(), property["maximum"].as_f64(), property["exclusiveMinimum"].as_f64()) {
        (Some(low), Some(high), _) => format!("{word} from {low} to {high}"),
        (Some(low), None, _) => format!("{word} from {low}"),
        (_, _, Some(low)) => format!("{word} above {low}"),
        _ => word,
    }
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}
