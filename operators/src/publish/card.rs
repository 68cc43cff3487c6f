//! The card: `README.md`, whose header tells Hugging Face what the folder holds and whose text tells people.

use std::fmt::Write;

use serde_json::{Value, json};

use super::columns::Published;
use super::{Params, Publish, SplitShards};
use crate::context::Origin;
use crate::operator::Operator;

/// The card of a data set.
pub(super) fn card(
    params: &Params,
    origin: &Origin,
    published: &Published,
    grouped_by: &[String],
    splits: &[SplitShards],
) -> String {
    let shards = || splits.iter().flat_map(|(_, shards)| shards);
    let rows: u64 = shards().map(|shard| shard.rows).sum();
    let bytes: u64 = shards().map(|shard| shard.bytes).sum();
    let rows_of = |split: &SplitShards| split.1.iter().map(|shard| shard.rows).sum::<u64>();
    let title = params.pretty_name.clone().unwrap_or_else(|| format!("{}.{}", origin.stage, origin.output));

    let mut header = json!({"pretty_name": title});
    if let Some(license) = &params.license {
        header["license"] = json!(license);
    }
    header["size_categories"] = json!([size_category(rows)]);
    let data_files: Value =
        splits.iter().map(|(split, _)| json!({"split": split, "path": format!("data/{split}-*")})).collect();
    header["configs"] = json!([{"config_name": params.config, "data_files": data_files}]);
    let sizes = |(split, shards): &SplitShards| {
        let in_memory: u64 = shards.iter().map(|shard| shard.in_memory).sum();
        json!({"name": split, "num_bytes": in_memory, "num_examples": shards.iter().map(|shard| shard.rows).sum::<u64>()})
    };
    let in_memory: u64 = shards().map(|shard| shard.in_memory).sum();
    header["dataset_info"] = json!([{
        "config_name": params.config,
        "features": published.features(),
        "splits": splits.iter().map(sizes).collect::<Value>(),
        "download_size": bytes,
        "dataset_size": in_memory,
    }]);

    let mut text = String::from("---\n");
    yaml(&mut text, &header, 0);
    let Origin { table, stage, output, .. } = origin;
    let _ = write!(
        text,
        "---\n\n# {title}\n\n{rows} rows of the table `{}` v{}, from `{stage}.{output}`, published by coa ({} v{}).\n\n",
        table.name,
        table.version,
        Publish::NAME,
        Publish::VERSION
    );
    text.push_str("| split | rows | files |\n|---|---:|---:|\n");
    for split in splits {
        let _ = writeln!(text, "| `{}` | {} | {} |", split.0, rows_of(split), split.1.len());
    }
    if splits.len() > 1 {
        let columns: Vec<String> = grouped_by.iter().map(|column| format!("`{column}`")).collect();
        let _ = write!(
            text,
            "\nRows of one group are in one split. A row's group is its {}.\n",
            columns.join(", else its ")
        );
    }
    text.push_str("\n## Columns\n\n| column | type | what it is |\n|---|---|---|\n");
    for column in published.docs() {
        let null = if column.nullable { ", may be null" } else { "" };
        let doc = column.doc.replace('|', "\\|");
        let _ = writeln!(text, "| `{}` | {}{null} | {doc} |", column.name, column.data_type);
    }
    text.push_str("\nWhat it was made from, and the SHA-256 of every file, stand in `manifest.json`.\n");
    text
}

/// The range of rows, in the words that Hugging Face knows.
fn size_category(rows: u64) -> String {
    const BOUNDS: [(u64, &str); 10] = [
        (1_000, "1K"),
        (10_000, "10K"),
        (100_000, "100K"),
        (1_000_000, "1M"),
        (10_000_000, "10M"),
        (100_000_000, "100M"),
        (1_000_000_000, "1B"),
        (10_000_000_000, "10B"),
        (100_000_000_000, "100B"),
        (1_000_000_000_000, "1T"),
    ];
    match BOUNDS.iter().position(|(bound, _)| rows < *bound) {
        Some(0) => "n<1K".to_owned(),
        Some(above) => format!("{}<n<{}", BOUNDS[above - 1].1, BOUNDS[above].1),
        None => "n>1T".to_owned(),
    }
}

/// Writes an object or a list as YAML in block style. Texts are in double quotes, as in JSON, which YAML reads too.
fn yaml(text: &mut String, value: &Value, indent: usize) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let _ = write!(text, "{pad}{key}:");
                nested(text, value, indent);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                match item {
                    Value::Object(_) => yaml(&mut inner, item, indent + 2),
                    scalar => inner = format!("{pad}  {scalar}\n"),
                }
                // The dash stands where the item's indentation ends.
                let _ = write!(text, "{pad}- {}", &inner[indent + 2..]);
            }
        }
        scalar => {
            let _ = writeln!(text, "{pad}{scalar}");
        }
    }
}

/// Writes what follows a key.
fn nested(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(_) => {
            text.push('\n');
            yaml(text, value, indent + 2);
        }
        Value::Array(_) => {
            text.push('\n');
            yaml(text, value, indent);
        }
        scalar => {
            let _ = writeln!(text, " {scalar}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_words_of_hugging_face() {
        for (rows, word) in [(0, "n<1K"), (999, "n<1K"), (1_000, "1K<n<10K"), (12_000_000, "10M<n<100M")] {
            assert_eq!(size_category(rows), word);
        }
        assert_eq!(size_category(u64::MAX), "n>1T");
    }

    #[test]
    fn a_header_is_yaml_in_blocks() {
        let mut text = String::new();
        yaml(&mut text, &json!({"a": "x: \"y\"", "b": [{"c": 1, "d": [{"e": true}]}, {"c": 2}], "f": ["g"]}), 0);
        let expected = "a: \"x: \\\"y\\\"\"\nb:\n- c: 1\n  d:\n  - e: true\n- c: 2\nf:\n- \"g\"\n";
        assert_eq!(text, expected);
    }
}
