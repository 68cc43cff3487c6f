//! `coa lineage`: what it prints leads back to the bytes that a row was made of.

use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};

use crate::bucket::Bucket;
use crate::coa::{Place, Said, filters, record, skipped};
use crate::kill::PIPELINE;

/// The answer of `coa lineage` as JSON.
fn lineage(place: &Place, what: &str) -> Value {
    let said = place.coa(&["lineage", what, "--store", "store", "--json"]).ok();
    serde_json::from_str(&said.out).expect("one JSON document")
}

fn ids(place: &Place, query: &str) -> Vec<String> {
    place.sql("store", query).iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

/// A FireAct row.
fn fireact(question: &str) -> Value {
    json!({"instruction": question, "input": "", "output": "Thought: look\nAction: search[Vall]\nObservation: deep\n\
        Thought: so\nAction: finish[Vall]\nObservation: Episode finished, reward = True\n"})
}

fn gzip(text: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// What an offset counts in.
fn text_of(bytes: &[u8], offset_in: &str) -> Vec<u8> {
    match offset_in {
        "source" => bytes.to_vec(),
        "decompressed source" => {
            let mut text = Vec::new();
            flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut text).unwrap();
            text
        }
        other => panic!("{other}"),
    }
}

/// The value at a place of a source, which must be on that line.
fn value_at(text: &[u8], line: u64, offset: u64) -> Value {
    let (before, rest) = text.split_at(offset as usize);
    let lines = before.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert_eq!(lines + 1, line);
    serde_json::Deserializer::from_slice(rest).into_iter().next().expect("a record").expect("a whole record")
}

fn ingest(format: &str, source: &str) -> String {
    format!(
        "name = \"case\"\nstore = \"store\"\n[stages.ingest]\noperator = \"ingest_traces\"\n\
         params = {{ format = \"{format}\", source = \"{source}\" }}\n\
         [stages.convert]\noperator = \"convert_coa\"\ninputs = {{ traces = \"ingest.traces\", steps = \"ingest.steps\" }}\n"
    )
}

/// Sources of both layouts as a file may have them: lines with blanks between and `\r\n`, a list over several lines with
/// a byte order mark, compressed lines in two members. With each, the records in their order.
fn sources() -> Vec<(&'static str, &'static str, Vec<u8>, Vec<Value>)> {
    let runs: Vec<Value> =
        ["größer", "b", "c"].iter().map(|task| serde_json::from_str(&record(task, 3)).unwrap()).collect();
    let rows: Vec<Value> = ["Which lake?", "Wo?", "Who?"].map(fireact).to_vec();
    let lines = |values: &[Value], end: &str| -> Vec<u8> {
        values.iter().map(|value| format!("{value}{end}")).collect::<String>().into_bytes()
    };
    let list = |values: &[Value]| -> Vec<u8> {
        let items: Vec<String> = values.iter().map(|value| serde_json::to_string_pretty(value).unwrap()).collect();
        format!("\u{feff}\n[\n{}\n]\n", items.join(" ,\n  ")).into_bytes()
    };
    let members = |values: &[Value]| -> Vec<u8> {
        [gzip(&lines(&values[..1], "\n\n")), gzip(&lines(&values[1..], "\n"))].concat()
    };
    vec![
        ("oagents", "runs.jsonl", lines(&runs, "\r\n \n"), runs.clone()),
        ("oagents", "runs.json", list(&runs), runs.clone()),
        ("oagents", "runs.jsonl.gz", members(&runs), runs.clone()),
        ("fireact", "rows.json", list(&rows), rows.clone()),
        ("fireact", "rows.jsonl.gz", members(&rows), rows.clone()),
    ]
}

/// Every trace leads to the record it was read from: its source's bytes at the offset are the record, on that line.
fn leads_back(place: &Place, source: &str, bytes: &[u8], records: &[Value], run: impl Fn(&[&str]) -> Said) {
    let found = place.sql("store", "select trace_id as id, question from ingest.traces");
    assert_eq!(found.len(), records.len());
    for row in found {
        let said = run(&["lineage", row["id"].as_str().unwrap(), "--store", "store", "--json"]).ok();
        let told: Value = serde_json::from_str(&said.out).unwrap();
        let origin = &told["origin"];
        assert!(origin["source"].as_str().unwrap().ends_with(source), "{origin}");
        assert_eq!(origin["object"]["now"]["state"], "unchanged", "{origin}");
        assert_eq!(origin["object"]["bytes"].as_u64(), Some(bytes.len() as u64));
        let text = text_of(bytes, origin["offset_in"].as_str().unwrap());
        let value = value_at(&text, origin["line"].as_u64().unwrap(), origin["byte_offset"].as_u64().unwrap());
        assert!(records.contains(&value));
        let question = value.get("question").or(value.get("instruction")).unwrap();
        assert_eq!(*question, row["question"], "the record is that row's and no other's");
        let tables: Vec<String> = told["places"].as_array().unwrap().iter().map(table).collect();
        assert_eq!(tables, ["ingest.steps", "ingest.traces", "convert.trajectories"]);
    }
}

fn table(place: &Value) -> String {
    format!("{}.{}", place["stage"].as_str().unwrap(), place["port"].as_str().unwrap())
}

#[test]
fn the_place_of_a_row_yields_its_record() {
    for (format, name, bytes, records) in sources() {
        let place = Place::new();
        place.write(&format!("in/{name}"), &bytes);
        place.write("p.toml", ingest(format, "in/*"));
        place.coa(&["run", "p.toml", "-q"]).ok();
        leads_back(&place, name, &bytes, &records, |arguments| place.coa(arguments));
    }
}

#[test]
fn the_place_of_a_row_in_a_bucket_yields_its_record() {
    for (format, name, bytes, records) in sources().into_iter().skip(2) {
        let (place, bucket) = (Place::new(), Bucket::new());
        bucket.put(&format!("in/{name}"), &bytes);
        place.write("p.toml", ingest(format, "s3://b/in/*"));
        let coa = |arguments: &[&str]| Said::from(bucket.of(place.command(arguments)).output().unwrap());
        coa(&["run", "p.toml", "-q"]).ok();
        leads_back(&place, &format!("s3://b/in/{name}"), &bytes, &records, coa);
    }
}

/// Versions and how their objects are now, of the sources that a table was made from.
fn objects(told: &Value) -> Vec<(String, String)> {
    let makings = told["makings"].as_array().unwrap().iter();
    let work = makings.flat_map(|making| making["work"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let objects = work.flat_map(|work| work["objects"].as_array().unwrap());
    objects.map(|object| (text(&object["version"]), text(&object["now"]["state"]))).collect()
}

fn pair(version: &str, state: &str) -> (String, String) {
    (format!("\"{version}\""), state.to_owned())
}

#[test]
fn an_old_version_names_what_it_was_read_from() {
    let (place, bucket) = (Place::new(), Bucket::new());
    let coa = |arguments: &[&str]| Said::from(bucket.of(place.command(arguments)).output().unwrap());
    let told = |what: &str| -> Value {
        serde_json::from_str(&coa(&["lineage", what, "--store", "store", "--json"]).ok().out).unwrap()
    };
    let modified = "2025-08-01T10:00:00.000Z";
    bucket.put_as("in/a.jsonl", format!("{}\n", record("a1", 6)).as_bytes(), "one", modified);
    bucket.put_as("in/b.jsonl", format!("{}\n", record("b1", 6)).as_bytes(), "b", modified);
    place.write("p.toml", filters("s3://b/in/*", 5));
    coa(&["run", "p.toml", "-q"]).ok();
    let before = told("complexity.kept@v1");
    assert_eq!(objects(&before), [pair("one", "unchanged"), pair("b", "unchanged")]);

    // The change comes late: the second run takes it in, and the first version still tells of what it was made from.
    bucket.put_as("in/a.jsonl", format!("{}\n", record("a2", 7)).as_bytes(), "two", modified);
    assert_eq!(objects(&told("complexity.kept")), [pair("one", "changed"), pair("b", "unchanged")]);
    coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(objects(&told("complexity.kept@v1")), [pair("one", "changed"), pair("b", "unchanged")]);
    assert_eq!(objects(&told("complexity.kept@v2")), [pair("two", "unchanged"), pair("b", "unchanged")]);
    assert_eq!(objects(&told("complexity.kept")), objects(&told("complexity.kept@v2")));
    let old = told("ingest.traces@v1");
    let runs = |told: &Value| -> Vec<u64> {
        told["runs"].as_array().unwrap().iter().map(|run| run["run"].as_u64().unwrap()).collect()
    };
    assert_eq!((runs(&old), runs(&told("ingest.traces@v2"))), (vec![1], vec![1, 2]));
    assert_eq!(
        old["makings"][0]["work"][0]["objects"],
        json!([
        {"uri": "s3://b/in/a.jsonl", "bytes": record("a1", 6).len() + 1, "version": "\"one\"", "records": 1,
            "now": {"state": "changed", "bytes": record("a2", 7).len() + 1, "version": "\"two\""}},
        {"uri": "s3://b/in/b.jsonl", "bytes": record("b1", 6).len() + 1, "version": "\"b\"", "records": 1,
            "now": {"state": "unchanged"}}])
    );

    // What cannot be looked at is told, and the rest with it.
    bucket.fail(|asked| asked.starts_with("HEAD").then_some(403));
    assert!(objects(&told("complexity.kept")).iter().all(|(_, state)| state != "unchanged"));
}

/// The settings that made a version are those it was made with, whatever the pipeline says now.
#[test]
fn a_table_tells_its_settings_and_inputs() {
    let place = Place::new();
    place.write("in/a.jsonl", format!("{}\n{}\n", record("a1", 4), record("a2", 6)));
    place.write("p.toml", filters("in/*", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let text = filters("in/*", 3);
    place.write("p.toml", &text);
    place.coa(&["run", "p.toml", "-q"]).ok();
    let least = |what: &str| lineage(&place, what)["makings"][0]["work"][0]["params"]["min_interactions"].clone();
    assert_eq!((least("complexity.kept@v1"), least("complexity.kept@v2")), (5.into(), 3.into()));
    let told = lineage(&place, "complexity.kept");
    let texts: Vec<&Value> = told["runs"].as_array().unwrap().iter().map(|run| &run["text"]).collect();
    assert_eq!(
        texts,
        [&Value::from(filters("in/*", 5)), &Value::from(text)],
        "convert is of run 1, the filter of run 2"
    );
    let outputs = |making: &Value| -> Vec<String> {
        let outputs = making["outputs"].as_array().unwrap().iter();
        let stage = making["stage"].as_str().unwrap();
        outputs.map(|o| format!("{stage}.{} v{} {}", o["port"].as_str().unwrap(), o["version"], o["rows"])).collect()
    };
    let makings: Vec<Vec<String>> = told["makings"].as_array().unwrap().iter().map(outputs).collect();
    let expected: [&[&str]; 3] =
        [&["complexity.kept v2 2"], &["convert.trajectories v1 2"], &["ingest.steps v1 20", "ingest.traces v1 2"]];
    assert_eq!(makings, expected);
    // A file is moved away: that is told, not failed on.
    std::fs::rename(place.path("in/a.jsonl"), place.path("a.jsonl")).unwrap();
    let said = place.coa(&["lineage", "complexity.kept@v1", "--store", "store"]).ok();
    for words in ["complexity.kept@v1 (trajectories v1, 1 row)", "\"min_interactions\":5", "gone since"] {
        assert!(said.out.contains(words), "{words} is not in\n{}", said.out);
    }
}

#[test]
fn rows_that_were_turned_down_are_traced() {
    let place = Place::new();
    let (kept, short, poor) = (record("a1", 6), record("a2", 4), record("a3", 2));
    let poor = poor.replacen('{', "{\"n\": 2, ", 1);
    let (kept, short) = (kept.replacen('{', "{\"n\": 6, ", 1), short.replacen('{', "{\"n\": 4, ", 1));
    let text = format!("{kept}\n{{\"n\": 1, bad\n{short}\n{poor}\n");
    place.write("in/a.jsonl", &text);
    place.write("p.toml", filters("in/*", 5).replace("source = \"in/*\"", "source = \"in/*\", where = [\"n >= 3\"]"));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let last = |what: &str| {
        let told = lineage(&place, what);
        let last = told["places"].as_array().unwrap().last().unwrap().clone();
        let at = &told["origin"];
        let at = (at["line"].as_u64().unwrap(), at["byte_offset"].as_u64().unwrap());
        (format!("{} {}", table(&last), last["state"].as_str().unwrap()), last["row"].clone(), at)
    };
    let (state, _, at) = last("a.jsonl:1");
    assert_eq!((state.as_str(), at), ("complexity.kept kept", (1, 0)));
    let (state, row, at) = last("in/a.jsonl:3");
    assert_eq!(
        (state.as_str(), row["reason"].as_str()),
        ("complexity.rejected rejected", Some("too_few_interactions"))
    );
    assert_eq!(&text.as_bytes()[at.1 as usize..][..short.len()], short.as_bytes());
    let rejected = ids(&place, "select row_id as id from ingest.rejected").remove(0);
    let (state, row, at) = last(&rejected);
    assert_eq!((state.as_str(), row["detail"].as_str()), ("ingest.rejected rejected", Some("`n >= 3`: n is 2")));
    assert_eq!(&text.as_bytes()[at.1 as usize..][..poor.len()], poor.as_bytes());
    let (state, row, at) = last("a.jsonl:2");
    assert_eq!((state.as_str(), row["code"].as_str()), ("ingest.quarantine quarantined", Some("not_json")));
    assert!(text[at.1 as usize..].starts_with("{\"n\": 1, bad\n"));
}

#[test]
fn what_is_not_there_is_one_clear_error() {
    let place = Place::new();
    place.write("in/a.jsonl", format!("{}\n{}\n", record("a1", 6), record("a2", 6)));
    place.write("p.toml", filters("in/*", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let coa = |what: &str| place.coa(&["lineage", what, "--store", "store"]);
    coa("complexity.kpet").fails(2, &["`complexity.kpet` is no stage", "did you mean `complexity.kept`?"]);
    coa("complexity.kept@v9").fails(2, &["`complexity.kept` has no version 9; it has @v0 to @v1"]);
    coa("complexity.kept@3").fails(2, &["names no version: write it as `complexity.kept@v3`"]);
    coa("zzz").fails(2, &["`zzz` is no stage", "the outputs are complexity.kept, "]);
    coa("a.jsonl:7").fails(2, &["`a.jsonl:7` is no stage"]);
    coa("complexity@7").fails(2, &["no checkpoint or model `complexity@7`", "is it a stage that trains?"]);
    let known = ids(&place, "select trace_id as id from ingest.traces order by id");
    coa("").fails(2, &["2 ids begin with ``", &known[0], &known[1], "write more of the id"]);
    // The shortest beginning that only one has.
    let common = known[0].bytes().zip(known[1].bytes()).take_while(|(a, b)| a == b).count();
    assert!(coa(&known[1][..=common]).ok().out.starts_with(&known[1]));
}

/// Takes out of all records what a unit read: records as an older version of this product wrote them.
fn forget_reads(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            forget_reads(&path);
            continue;
        }
        let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let units = record["units"].as_array_mut().into_iter().flatten();
        let forgotten = units.filter_map(|unit| unit.as_object_mut()?.remove("read")).count();
        let own = record.as_object_mut().unwrap().remove("read").is_some();
        assert!(own || forgotten > 0, "{} says nothing of what was read", path.display());
        std::fs::write(&path, record.to_string()).unwrap();
    }
}

#[test]
fn records_of_before_are_read_and_nothing_runs_for_them() {
    let place = Place::new();
    place.write("in/a.jsonl", format!("{}\n", record("a1", 6)));
    place.write("in/b.jsonl", format!("{}\n", record("b1", 6)));
    place.write("p.toml", filters("in/*", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let full = lineage(&place, "complexity.kept");
    forget_reads(&place.path("store/units"));
    forget_reads(&place.path("store/stages"));
    let said = place.coa(&["run", "p.toml"]).ok();
    assert!(said.err.contains("done: 0 units"), "{}", said.err);
    let told = lineage(&place, "complexity.kept");
    let makings = |told: &Value| -> Vec<Value> {
        told["makings"].as_array().unwrap().iter().map(|making| making["outputs"].clone()).collect()
    };
    assert_eq!(makings(&told), makings(&full));
    assert_eq!(told["makings"][0]["work"][0]["reads_recorded"], false);
    assert!(objects(&told).is_empty(), "which objects it were is not known");
    let origin = &lineage(&place, "a.jsonl:1")["origin"];
    assert_eq!((origin["line"].as_u64(), &origin["object"]), (Some(1), &Value::Null));
}

/// A model leads to its training and its data; a sample of it to the file of its run, the question and the model's files.
#[test]
fn a_model_leads_to_its_data() {
    let place = Place::new();
    place.write("p.toml", PIPELINE);
    let said = place.coa(&["run", "p.toml", "-q"]);
    if said.err.contains("sandbox cannot be set up") {
        skipped(&said.err);
        return;
    }
    said.ok();
    let number = |query: &str| place.number("store", query);
    let told = lineage(&place, "sft.model");
    let training = &told["training"];
    assert_eq!((training["step"].as_u64(), training["run"].as_u64()), (Some(24), Some(1)));
    assert_eq!(training["tokens_seen"], number("select sum(tokens) from sft.steps"));
    let data = &training["data"][0];
    assert_eq!(data["table"], "tokens.tokens@v1");
    assert_eq!(data["rows"], number("select count(*) from tokens.tokens"));
    assert_eq!(data["tokens"], number("select sum(cardinality(input_ids)) from tokens.tokens"));
    let makings = told["makings"].as_array().unwrap();
    let stages: Vec<&str> = makings.iter().map(|making| making["stage"].as_str().unwrap()).collect();
    for stage in ["tokenizer", "correction", "convert", "ingest", "teacher", "questions", "pages"] {
        assert_eq!(stages.iter().filter(|name| **name == stage).count(), 1, "{stage} in {stages:?}");
    }
    let seeds: Vec<u64> = makings.iter().filter_map(|making| making["work"][0]["seed"].as_u64()).collect();
    assert!(seeds.len() >= 4 && seeds.iter().all(|seed| *seed == 3), "{seeds:?}");
    // The tokenizer's digest in the samples is that of the file the model's tokenizer was made from.
    let tokenizer = makings.iter().find(|making| making["stage"] == "tokenizer").unwrap();
    let files = tokenizer["outputs"][0]["files"].as_array().unwrap();
    assert!(files.iter().any(|file| file["sha256"] == data["tokenizers"][0]), "{files:?}");
    assert_eq!(lineage(&place, "sft/model")["makings"], told["makings"]);
    assert_eq!(lineage(&place, "sft@24")["training"], *training);

    let sample = ids(&place, "select sample_id as id from tokens.tokens order by id limit 1").remove(0);
    let told = lineage(&place, &sample);
    let file = &told["origin"]["file"];
    let path = file["uri"].as_str().unwrap().strip_prefix("file://").unwrap();
    let (line, offset) = (told["origin"]["line"].as_u64().unwrap(), told["origin"]["byte_offset"].as_u64().unwrap());
    let run = value_at(&std::fs::read(path).unwrap(), line, offset);
    let task = told["task"]["task_id"].as_str().unwrap();
    assert_eq!(run["task_id"], task);
    assert_eq!((&told["task"]["asked_in"], &file["from"]), (&json!(["questions.train"]), &json!("teacher.records")));
    let readers: Vec<&str> =
        told["read_by"].as_array().unwrap().iter().map(|reader| reader["stage"].as_str().unwrap()).collect();
    assert_eq!(readers, ["tokenizer", "sft"]);
    assert_eq!(lineage(&place, task)["traces"], json!([{"table": "ingest.traces", "trace_id": sample}]));
    let rollout = ids(&place, "select rollout_id as id from agent.rollouts limit 1").remove(0);
    let inputs = &lineage(&place, &rollout)["places"][0]["unit"]["inputs"];
    assert_eq!(*inputs, json!(["sft.model", "questions.last@v1", "pages.pages@v1"]));
}
