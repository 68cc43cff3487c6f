//! Where one record ends and the next begins, and fields whose type changes from file to file.

use std::io::{Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::{as_runs, generated, ingest, strings};
use crate::coa::{Place, shared};

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// The texts of a gzip file's members, as far as they can be read, and what follows the last.
fn members(mut bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut texts = Vec::new();
    while bytes.first() == Some(&0x1f) {
        let (mut decoder, mut text) = (GzDecoder::new(bytes), Vec::new());
        let _ = decoder.read_to_end(&mut text);
        texts.push(text);
        bytes = decoder.into_inner();
    }
    (texts, bytes.to_vec())
}

/// Several members, bytes that follow the last, and a stream that is cut. The records are those of the case as runs, in
/// as many members and with the same bytes behind them.
#[test]
fn c04_gzip_members() {
    let Some(case) = shared("cases/C04") else { return };
    let place = Place::new();
    let convert = |from: &str, to: &str| -> (usize, usize) {
        let bytes = std::fs::read(case.join(from)).unwrap();
        let (texts, trailing) = members(&bytes);
        let mut converted: Vec<u8> = texts.iter().flat_map(|text| gzip(&as_runs(text, &[]))).collect();
        let end = converted.len();
        converted.extend(&trailing);
        place.write(to, converted);
        (texts.len(), end)
    };
    let run = |folder: &str| {
        place.write("p.toml", ingest(&format!("{folder}/*"), ""));
        place.coa(&["run", "p.toml", "--store", folder.trim_start_matches("in_")])
    };
    let tasks = |store: &str| strings(&place.sql(store, "select task_id from ingest.traces order by line"), "task_id");

    assert_eq!(convert("in/two_members.jsonl.gz", "in_whole/two.jsonl.gz").0, 2);
    run("in_whole").ok();
    assert_eq!(tasks("whole"), ["gz-1", "gz-2", "gz-3", "gz-4", "gz-5"]);
    assert_eq!(place.number("whole", "select count(*) from ingest.quarantine"), 0);

    let (_, end) = convert("in_trailing/trailing_garbage.jsonl.gz", "in_trailing/garbage.jsonl.gz");
    let said = run("in_trailing").ok();
    for words in ["garbage.jsonl.gz", &format!("offset={end}"), "length=9", "not gzip"] {
        assert!(said.err.contains(words), "{words} is not in:\n{}", said.err);
    }
    assert_eq!(tasks("trailing"), ["gz-1", "gz-2"]);
    let unread = place.sql("trailing", "select code, reason, byte_offset, byte_length, source from ingest.quarantine");
    assert_eq!((unread.len(), &unread[0]["code"], &unread[0]["byte_length"]), (1, &json!("not_gzip"), &json!(9)));
    assert_eq!(unread[0]["byte_offset"], end);
    assert!(unread[0]["source"].as_str().unwrap().ends_with("in_trailing/garbage.jsonl.gz"));

    // Cut before its trailer, as the case's is.
    convert("in_cut/cut.jsonl.gz", "in_cut/cut.jsonl.gz");
    let whole = std::fs::read(place.path("in_cut/cut.jsonl.gz")).unwrap();
    place.write("in_cut/cut.jsonl.gz", &whole[..whole.len() - 8]);
    run("in_cut").fails(1, &["in_cut/cut.jsonl.gz", "cannot be read on after byte", "it is truncated"]);
    place.coa(&["sql", "select * from ingest.traces", "--store", "cut"]).fails(1, &["ingest"]);

    // The case's own files: the same places, and its records one by one in quarantine for want of a question.
    for (folder, codes) in
        [("in", vec!["missing_field"; 5]), ("in_trailing", vec!["missing_field", "missing_field", "not_gzip"])]
    {
        place.write("p.toml", ingest(&format!("{}/{folder}/*", case.display()), ""));
        place.coa(&["run", "p.toml", "-q", "--store", &format!("own_{folder}")]).ok();
        let bad =
            place.sql(&format!("own_{folder}"), "select code from ingest.quarantine order by line, byte_offset desc");
        assert_eq!(strings(&bad, "code"), codes, "{folder}");
    }
    place.write("p.toml", ingest(&format!("{}/in_cut/*", case.display()), ""));
    place.coa(&["run", "p.toml", "--store", "own_cut"]).fails(1, &["cut.jsonl.gz", "it is truncated"]);
}

/// Runs a command and gives its greatest size in memory, in bytes.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it, and tells its size")]
fn peak(place: &Place, arguments: &[&str]) -> u64 {
    let child = place.command(arguments).spawn().unwrap();
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the process is our child, and nobody else waits for it.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!((waited, status), (child.id() as i32, 0));
    // SAFETY: a rusage of zeroes is one, and wait4 has filled it.
    unsafe { usage.assume_init() }.ru_maxrss as u64 * 1024
}

/// A record of 40 MiB, and one that is not finished. There is no batch size to set: plain and compressed, the same text
/// comes in pieces of different sizes.
#[test]
fn c05_a_huge_line_and_a_cut_one() {
    let Some(case) = shared("cases/C05") else { return };
    let place = Place::new();
    if !generated(&place, &case) {
        return;
    }
    let text = as_runs(&std::fs::read(place.path("in/huge.jsonl")).unwrap(), &[("observations", "prediction")]);
    std::fs::remove_dir_all(place.path("in")).unwrap();
    let cut: usize = text.split_inclusive(|byte| *byte == b'\n').take(3).map(<[u8]>::len).sum();
    place.write("in/huge.jsonl", &text);
    place.write("in/huge.jsonl.gz", gzip(&text));
    place.write("small/a.jsonl", as_runs(b"{\"task_id\": \"small\"}\n", &[]));
    place.write("small.toml", ingest("small/*", ""));
    let small = peak(&place, &["run", "small.toml", "-q", "--store", "small-store"]);
    place.write("p.toml", ingest("in/*", ""));
    let large = peak(&place, &["run", "p.toml", "-q", "--jobs", "1"]);
    let longest = 40 << 20;
    assert!(large < small + 8 * longest, "{} MiB more than for a small file", (large - small) >> 20);
    for partition in ["huge.jsonl", "huge.jsonl.gz"] {
        let here = format!("where partition = '{partition}'");
        let query = format!("select task_id, length(prediction) as n from ingest.traces {here} order by line");
        let rows = place.sql("store", &query);
        assert_eq!(strings(&rows, "task_id"), ["huge-1", "huge-2", "huge-3"]);
        assert_eq!(rows[1]["n"], 41_943_034);
        let bad = place.sql("store", &format!("select line, byte_offset, code, reason from ingest.quarantine {here}"));
        assert_eq!((bad.len(), &bad[0]["line"], &bad[0]["code"]), (1, &json!(4), &json!("truncated")));
        assert_eq!(bad[0]["byte_offset"], cut);
        assert!(
            bad[0]["reason"].as_str().unwrap().contains("incomplete record at the end of the source"),
            "{}",
            bad[0]
        );
    }
}

/// A record over the limit is told with its size and the limit, and the lines after it are read.
#[test]
fn c05_a_line_over_the_limit() {
    let place = Place::new();
    let long = 129 << 20;
    let mut text = as_runs(b"{\"task_id\": \"before\"}\n", &[]);
    text.extend(std::iter::repeat_n(b'x', long));
    text.push(b'\n');
    text.extend(as_runs(b"{\"task_id\": \"after\"}\n", &[]));
    place.write("in/a.jsonl", text);
    place.write("p.toml", ingest("in/*", ""));
    place.coa(&["run", "p.toml", "-q"]).ok();
    let kept = place.sql("store", "select task_id from ingest.traces order by line");
    assert_eq!(strings(&kept, "task_id"), ["before", "after"]);
    let bad = place.sql("store", "select line, code, reason from ingest.quarantine");
    assert_eq!((&bad[0]["line"], &bad[0]["code"]), (&json!(2), &json!("row_too_large")));
    let expected = format!("{long} bytes; records of up to {} are read", 128 << 20);
    assert_eq!(bad[0]["reason"], expected);
}

/// The files of a case below `in`, each under another name; records pass through `convert`.
fn renamed(place: &Place, case: &Path, names: &[(&str, &str)], convert: impl Fn(&str) -> String) {
    let _ = std::fs::remove_dir_all(place.path("in"));
    for (from, to) in names {
        let text = std::fs::read_to_string(case.join("in").join(from)).unwrap();
        let lines: String = text.lines().map(|line| convert(line) + "\n").collect();
        place.write(&format!("in/{to}"), lines);
    }
}

/// A field that is null in one file, an object in the next and absent in a third. `error` is that of the run; the tool
/// calls are those of its one step. All files are of one partition, so that one Parquet file holds what they say.
#[test]
fn c07_a_field_of_changing_shape() {
    let Some(case) = shared("cases/C07") else { return };
    let convert = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        let mut step = json!({"step_type": "action", "step": 1});
        let mut run = json!({"question": "q"});
        for (key, value) in record.as_object().unwrap() {
            match key.as_str() {
                "error" => run["agent_error"] = value.clone(),
                "answer" => run["prediction"] = value.clone(),
                "tool_calls" => step["tool_calls"] = value.clone(),
                _ => run[key] = value.clone(),
            }
        }
        run["intermediate_steps"] = json!([step]);
        run.to_string()
    };
    let columns = "select table_name, column_name, data_type, is_nullable from information_schema.columns \
                   where table_schema = 'ingest' order by 1, ordinal_position";
    let rows = "select t.task_id, t.error, prediction, status, s.calls, c.tool, c.call_id from ingest.traces t \
                join ingest.steps s on s.trace_id = t.trace_id and s.kind = 'turn' \
                left join ingest.steps c on c.trace_id = t.trace_id and c.kind = 'call' order by task_id";
    let mut found = Vec::new();
    for names in [["x-1.jsonl", "x-2.jsonl", "x-3.jsonl"], ["x-3.jsonl", "x-2.jsonl", "x-1.jsonl"]] {
        let place = Place::new();
        let from = ["a_nulls.jsonl", "b_struct.jsonl", "c_absent.jsonl"];
        renamed(&place, &case, &from.into_iter().zip(names).collect::<Vec<_>>(), convert);
        place.write("p.toml", ingest("in/{set}-*.jsonl", ""));
        place.coa(&["run", "p.toml", "-q"]).ok();
        assert_eq!(place.number("store", "select count(distinct partition) from ingest.traces"), 1);
        assert_eq!(place.number("store", "select count(*) from ingest.quarantine"), 0);
        found.push((place.sql("store", columns), place.sql("store", rows)));
    }
    assert_eq!(found[0], found[1], "the order of files makes no difference");
    let rows = &found[0].1;
    assert_eq!(strings(rows, "task_id"), ["n-1", "n-2", "n-3", "n-4", "n-5", "n-6"]);
    let errors: Vec<Option<Value>> =
        rows.iter().map(|row| row["error"].as_str().map(|text| serde_json::from_str(text).unwrap())).collect();
    assert_eq!(errors.iter().flatten().count(), 2);
    let error = |at: usize| errors[at].as_ref().unwrap();
    assert_eq!((&error(2)["message"], error(2).get("step")), (&json!("no code block"), None));
    assert_eq!((&error(3)["message"], error(3).get("step")), (&json!("limit"), Some(&json!(12))));
    let calls: Vec<Option<i64>> = rows.iter().map(|row| row["calls"].as_i64()).collect();
    assert_eq!(calls, [Some(0), Some(0), Some(1), None, None, None], "an empty list is not no list");
    assert_eq!((&rows[2]["tool"], &rows[2]["call_id"]), (&json!("web_search"), &json!("c1")));
}

/// Answers, ids and scores that are numbers in one file and text in the next. The score is that of the run's one step,
/// which is a judged one.
#[test]
fn c09_numbers_that_become_text() {
    let Some(case) = shared("cases/C09") else { return };
    // On the text: reading 42.50 as a number would change it.
    let convert = |line: &str| {
        let (before, score) = line.strip_suffix('}').unwrap().split_once("\"score\":").unwrap();
        let step = format!("{{\"step_type\":\"action\",\"step\":1,\"evaluate_thought\":\"judged\",\"score\":{score}}}");
        format!("{before}\"question\":\"q\",\"intermediate_steps\":[{step}]}}")
    };
    let rows = "select task_id, array_to_string(golden_answers, '|') as golden, s.score, \
                array_to_string(unread, ';') as unread from ingest.traces t \
                join ingest.steps s on s.trace_id = t.trace_id and s.kind = 'critique' order by golden";
    let mut found = Vec::new();
    for names in [["x-1.jsonl", "x-2.jsonl", "x-3.jsonl"], ["x-3.jsonl", "x-2.jsonl", "x-1.jsonl"]] {
        let place = Place::new();
        let from = ["a_int.jsonl", "b_float.jsonl", "c_string.jsonl"];
        renamed(&place, &case, &from.into_iter().zip(names).collect::<Vec<_>>(), convert);
        place.write("p.toml", ingest("in/{set}-*.jsonl", ""));
        place.coa(&["run", "p.toml", "-q"]).ok();
        assert_eq!(place.number("store", "select count(*) from ingest.quarantine"), 0);
        let ids = "select trace_id from ingest.traces order by 1";
        let first = place.sql("store", ids);
        place.coa(&["run", "p.toml", "-q", "--force"]).ok();
        assert_eq!(place.sql("store", ids), first, "ids that are made up are made up alike every time");
        assert_eq!(place.number("store", "select count(distinct trace_id) from ingest.traces"), 7);
        let counts = place.sql("store", "select counts from units where current");
        assert!(counts[0]["counts"].as_str().unwrap().contains("\"unread_values\":1"), "{counts:?}");
        found.push(place.sql("store", rows));
    }
    assert_eq!(found[0], found[1], "the order of files makes no difference");
    let row = |task: Value, golden: &str, score: Value, unread: Value| json!({"task_id": task, "golden": golden, "score": score, "unread": unread});
    let expected = [
        row(json!("18446744073709551615"), "1000", json!(1.0), Value::Null),
        row(json!("9007199254740993"), "42", json!(1.0), Value::Null),
        row(json!("9007199254740995"), "42.5", json!(0.5), Value::Null),
        row(Value::Null, "7", json!(0.0), Value::Null),
        row(json!("t-9"), "a|b", Value::Null, json!("step 0 score: \"n/a\" is no number")),
        row(json!("0007"), "forty-two", json!(0.25), Value::Null),
        row(json!("t-8"), "true", Value::Null, Value::Null),
    ];
    assert_eq!(found[0], expected);
}
