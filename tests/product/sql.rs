//! `coa sql`: names, versions, partitions, numbers, views, several stores, files of rows, and what it refuses.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::coa::{Place, filters, record};

/// Two partitions, three trajectories, one torn line.
fn demo() -> Place {
    let place = Place::new();
    let torn = "{\"question\": \"torn";
    place.write("in/a.jsonl", format!("{}\n{}\n{torn}\n", record("a1", 4), record("a2", 6)));
    place.write("in/b.jsonl", format!("{}\n", record("b1", 7)));
    place.write("p.toml", filters("in/*.jsonl", 5));
    place.coa(&["run", "p.toml", "-q"]).ok();
    place
}

fn sql(place: &Place, query: &str) -> Vec<Value> {
    place.sql("store", query)
}

fn fails(place: &Place, query: &str, words: &[&str]) {
    let said = place.coa(&["sql", query, "--store", "store"]).fails(1, words);
    assert_eq!(said.out, "", "rows only");
}

/// All files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// A store with one table that another program wrote: one version, one Parquet file a partition.
fn foreign(place: &Place, store: &str, table: &str, columns: &Value, data: &[PathBuf]) {
    let folder = format!("{store}/tables/rl/{table}/{table}.v1");
    place.write(&format!("{store}/store.json"), r#"{"version":1,"pipeline":"foreign"}"#);
    let mut fields = columns.as_array().unwrap().clone();
    fields.push(json!(["partition", "string"]));
    let fields: Vec<Value> = fields
        .iter()
        .map(|field| json!({"name": field[0], "type": field[1], "nullable": true, "metadata": {}}))
        .collect();
    let schema = json!({"type": "struct", "fields": fields}).to_string();
    let mut log = vec![
        json!({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}),
        json!({"metaData": {"id": "6b22fb21-e96b-4f03-a9ed-87ec662accde", "createdTime": 0, "configuration": {},
            "format": {"provider": "parquet", "options": {}}, "partitionColumns": ["partition"], "schemaString": schema}}),
    ];
    for (number, file) in data.iter().enumerate() {
        let path = format!("partition=p{number}/rows.parquet");
        let bytes = std::fs::read(file).unwrap();
        log.push(json!({"add": {"path": path, "partitionValues": {"partition": format!("p{number}")},
            "size": bytes.len(), "modificationTime": 0, "dataChange": true}}));
        place.write(&format!("{folder}/{path}"), bytes);
    }
    let log: Vec<String> = log.iter().map(Value::to_string).collect();
    place.write(&format!("{folder}/_delta_log/{:020}.json", 0), log.join("\n") + "\n");
}

#[test]
fn a_table_as_it_stood() {
    let place = demo();
    place.write("in/c.jsonl", format!("{}\n", record("c1", 8)));
    place.coa(&["run", "p.toml", "-q"]).ok();
    for (query, rows) in [
        ("select count(*) from convert.trajectories@v0", 0),
        ("select count(*) from convert.trajectories@v1", 3),
        ("select count(*) from convert.trajectories@v2 as t where t.interactions > 0", 4),
        ("SELECT COUNT(*) FROM Convert.Trajectories@V1", 3),
        ("select count(*) from trajectories@v1", 3),
        ("select count(*) from \"convert\".\"trajectories@v1\"", 3),
        ("select count(*) from convert.trajectories", 4),
        ("select count(*) from convert.trajectories where question <> 'convert.trajectories@v1'", 4),
    ] {
        assert_eq!(place.number("store", query), rows, "{query}");
    }
    let new = "select task_id from convert.trajectories except select task_id from convert.trajectories@v1";
    assert_eq!(sql(&place, new), [json!({"task_id": "c1"})]);
    fails(&place, "select 1 from convert.trajectories@v9", &["no version 9", "it has @v0 to @v2"]);
    fails(&place, "select 1 from convert.trajectories@9", &["write it as `convert.trajectories@v3`"]);
    fails(&place, "select 1 from units@v1", &["`units` has no versions"]);
    let described = place.coa(&["sql", "\\d convert.trajectories@v1", "--store", "store"]).ok().out;
    assert!(described.contains("versions @v0 to @v2"), "{described}");
}

/// Files of other partitions are not looked at: they may even be gone.
#[test]
fn a_condition_on_the_partition_keeps_files_from_being_read() {
    let place = demo();
    let explain = |query: &str| sql(&place, &format!("explain {query}"))[1]["plan"].as_str().unwrap().to_owned();
    assert_eq!(explain("select task_id from convert.trajectories").matches(".parquet").count(), 2);
    let one = "select task_id from convert.trajectories where partition = 'b.jsonl'";
    let plan = explain(one);
    assert_eq!(plan.matches(".parquet").count(), 1, "{plan}");
    assert!(plan.contains("partition=b.jsonl"), "{plan}");
    let a = files(&place.path("store/tables/convert/trajectories"));
    let a: Vec<_> = a.iter().filter(|path| path.to_string_lossy().contains("partition=a.jsonl")).collect();
    assert_eq!(a.len(), 1);
    std::fs::remove_file(a[0]).unwrap();
    assert_eq!(sql(&place, one), [json!({"task_id": "b1"})]);
    for condition in
        ["partition in ('b.jsonl', 'z')", "partition > 'a.jsonl'", "partition = 'b.jsonl' and interactions > 6"]
    {
        let query = format!("select task_id from convert.trajectories where {condition}");
        assert_eq!(sql(&place, &query), [json!({"task_id": "b1"})], "{condition}");
    }
    fails(&place, "select task_id from convert.trajectories", &["is gone although the table names it", "hint: "]);
}

/// Columns as other programs name them, numbers that are none: found, compared and printed one way.
#[test]
fn camel_case_and_nan() {
    let place = demo();
    for (name, rewards) in [("a", "('n1', 'NaN'), ('x1', '1')"), ("b", "('n2', 'NaN'), ('x2', '1'), ('z', null)")] {
        let query = format!(
            "select column1 as taskId, cast(column2 as double) as reward, \
             named_struct('stepCount', 3) as inner from (values {rewards})"
        );
        let output = format!("{name}.parquet");
        place.coa(&["sql", &query, "--store", "store", "--output", &output]).ok();
    }
    let inner = json!({"type": "struct", "fields": [
        {"name": "stepCount", "type": "long", "nullable": true, "metadata": {}}]});
    let columns = json!([["taskId", "string"], ["reward", "double"], ["inner", inner]]);
    foreign(&place, "other", "rows", &columns, &[place.path("a.parquet"), place.path("b.parquet")]);
    let rows = |query: &str| place.sql("other", query);

    let ones = [json!({"taskId": "x1"}), json!({"taskId": "x2"})];
    assert_eq!(rows("select taskId from rl.rows where reward = 1 order by taskId"), ones);
    assert_eq!(rows("SELECT TASKID FROM RL.ROWS R WHERE R.Reward = 1 ORDER BY r.taskid"), ones);
    assert_eq!(rows("select \"taskId\" from rows where reward = 1 order by TaskId"), ones);
    assert_eq!(rows("select count(*) as rowCount from rows having ROWCOUNT > 1"), [json!({"rowCount": 5})]);
    assert_eq!(rows("select sum(r.inner.STEPCOUNT) as steps from rows r"), [json!({"steps": 15})]);
    assert_eq!(rows("select count(*) as n from rows where taskId = 'TASKID'"), [json!({"n": 0})]);

    // NaN is above all numbers, whatever the least and greatest values are that a file knows of its columns.
    for (condition, expected) in [
        ("isnan(reward)", 2),
        ("reward is null", 1),
        ("reward > 2", 2),
        ("not (reward <= 1)", 2),
        ("reward <> 1", 2),
        ("reward <= 1 and not isnan(reward)", 2),
    ] {
        assert_eq!(
            place.number("other", &format!("select count(*) from rows where {condition}")),
            expected,
            "{condition}"
        );
    }
    let top = "select taskId from rows order by reward desc nulls last, taskId limit 2";
    assert_eq!(rows(top), [json!({"taskId": "n1"}), json!({"taskId": "n2"})]);
    let numbers = "select reward from rows where taskId in ('n1', 'x1', 'z') order by taskId";
    assert_eq!(rows(numbers), [json!({"reward": "NaN"}), json!({"reward": 1.0}), json!({"reward": null})]);
    let print = |format: &str| place.coa(&["sql", numbers, "--store", "other", "--format", format]).ok().out;
    assert_eq!(print("csv"), "reward\nNaN\n1.0\n\n".replace("1.0\n\n", "1.0\n\"\"\n"), "null is empty");
    assert!(print("table").contains("| NaN    |"), "{}", print("table"));
    let others = "select cast('inf' as double) as a, cast('-inf' as double) as b, [cast('nan' as real), 0.5] as c";
    assert_eq!(rows(others), [json!({"a": "Infinity", "b": "-Infinity", "c": ["NaN", 0.5]})]);
}

#[test]
fn several_stores() {
    let place = demo();
    place.write("in/c.jsonl", format!("{}\n", record("c1", 8)));
    place.write("q.toml", filters("in/*.jsonl", 5).replace("store = \"store\"", "store = \"new\""));
    place.coa(&["run", "q.toml", "-q"]).ok();
    let attached = |query: &str, attach: &[&str]| {
        let mut arguments = vec!["sql", query, "--store", "new", "--format", "csv"];
        arguments.extend(attach.iter().flat_map(|attach| ["--attach", *attach]));
        place.coa(&arguments)
    };
    let old = ["old=store"];
    let query = "select task_id from convert.trajectories except select task_id from old.convert.trajectories";
    assert_eq!(attached(query, &old).ok().out, "task_id\nc1\n");
    let counts = "select (select count(*) from units) as a, (select count(*) from old.units) as b, \
                  (select count(*) from old.public.units) as c, (select count(*) from old.traces) as d, \
                  (select count(*) from old.convert.trajectories@v0) as e, (select sum(rows_kept) from old.funnel) as f, \
                  (select sum(rows_kept) from funnel) as g";
    assert_eq!(attached(counts, &old).ok().out.lines().nth(1), Some("9,6,6,3,0,8,11"));
    let twice = attached(
        "select (select count(*) from a.traces) as a, (select count(*) from b.traces) as b",
        &["a=store", "b=new"],
    );
    assert_eq!(twice.ok().out.lines().nth(1), Some("3,4"));
    for (attach, words) in [
        ("old", "write --attach NAME=URL"),
        ("coa=store", "has a meaning already"),
        ("Old=store", "lower-case letters"),
        ("convert=store", "a stage has this name"),
    ] {
        attached("select 1", &[attach]).fails(2, &[words]);
    }
    attached("select 1", &["a=store", "a=new"]).fails(2, &["two stores have this name"]);
    attached("select 1", &["a=nowhere"]).fails(1, &["there is no store at"]);
}

#[test]
fn views_over_whatever_stages_there_are() {
    let place = demo();
    let funnel = "select stage, rows_in, rows_kept, rows_rejected, reasons from funnel order by finished";
    let why = |reason: &str| json!([{"reason": reason, "rows": 1}]);
    assert_eq!(
        sql(&place, funnel),
        [
            json!({"stage": "ingest", "rows_in": 4, "rows_kept": 3, "rows_rejected": 1, "reasons": why("truncated")}),
            json!({"stage": "convert", "rows_in": 3, "rows_kept": 3, "rows_rejected": 0, "reasons": null}),
            json!({"stage": "complexity", "rows_in": 3, "rows_kept": 2, "rows_rejected": 1,
                "reasons": why("too_few_interactions")}),
        ]
    );
    let tools = "select stage, tool, calls, callers, trajectories, calls_each, most_calls from views.tool_use \
                 order by stage, tool";
    let row = |stage: &str, tool: Value, calls: i64, of: i64, each: f64| {
        json!({"stage": stage, "tool": tool, "calls": calls, "callers": of, "trajectories": of, "calls_each": each,
            "most_calls": 7})
    };
    assert_eq!(
        sql(&place, tools),
        [
            row("complexity", json!("web_search"), 13, 2, 6.5),
            row("complexity", Value::Null, 13, 2, 6.5),
            row("convert", json!("web_search"), 17, 3, 17.0 / 3.0),
            row("convert", Value::Null, 17, 3, 17.0 / 3.0),
        ]
    );
    let cost = "select task_id, steps, calls, input_tokens from trace_cost order by task_id";
    let steps =
        sql(&place, "select count(*) as steps, sum(case kind when 'call' then 1 end) as calls from ingest.steps");
    assert_eq!(
        sql(&place, &format!("select sum(steps) as steps, sum(calls) as calls from ({cost})")),
        steps,
        "every step is counted once"
    );
    assert_eq!(sql(&place, cost)[0]["calls"], 4);
    fails(&place, "select * from token_lengths", &["the view `token_lengths` is not there", "`tokenize`"]);

    let listed = place.coa(&["sql", "\\d", "--store", "store", "--format", "csv"]).ok().out;
    assert!(listed.contains("\nconvert.trajectories,3,1,trajectories v1\n"), "{listed}");
    assert!(listed.contains("\nfunnel,,,") && !listed.contains("token_lengths"), "{listed}");
    let definition = place.coa(&["sql", "\\d trace_cost", "--store", "store"]).ok().out;
    assert!(definition.contains("from ingest.traces as traces left join"), "{definition}");
    let columns = place.coa(&["sql", "\\d ingest.traces", "--store", "store", "--format", "json"]).ok().out;
    let columns: Vec<Value> = serde_json::from_str(&columns).unwrap();
    let question = columns.iter().find(|column| column["column"] == "question").unwrap();
    assert_eq!(
        *question,
        json!({"column": "question", "type": "text", "nullable": false, "about": "The raw question."})
    );
}

#[test]
fn lengths_of_samples() {
    let place = demo();
    let samples = "select 's' || value as sample_id, range(0, value) as input_ids, value - 1 as trained_tokens, \
                   1 as observation_tokens, value = 4 as truncated from generate_series(1, 4)";
    place.coa(&["sql", samples, "--store", "store", "--output", "samples.parquet"]).ok();
    let list = json!({"type": "array", "elementType": "long", "containsNull": true});
    let columns = json!([
        ["sample_id", "string"],
        ["input_ids", list],
        ["trained_tokens", "long"],
        ["observation_tokens", "long"],
        ["truncated", "boolean"]
    ]);
    foreign(&place, "other", "tokens", &columns, &[place.path("samples.parquet")]);
    assert_eq!(
        place.sql("other", "select * except (p99), round(p99, 2) as p99 from token_lengths"),
        [json!({"stage": "rl", "port": "tokens", "samples": 4, "tokens": 10, "shortest": 1, "p50": 2.5,
            "p90": 3.7, "longest": 4, "trained_share": 0.6, "observation_share": 0.4, "truncated": 1, "p99": 3.97})]
    );
    fails(&place, "select * from views.token_lengths", &["is not there"]);
}

#[test]
fn rows_into_a_file() {
    let place = demo();
    let query = "select task_id, interactions from trajectories order by task_id";
    let output = |file: &str| place.coa(&["sql", query, "--store", "store", "--output", file]);
    assert_eq!(output("out.csv").ok().out, "", "rows go to the file alone");
    assert_eq!(std::fs::read_to_string(place.path("out.csv")).unwrap(), "task_id,interactions\na1,4\na2,6\nb1,7\n");
    output("out.json").ok();
    let rows = std::fs::read_to_string(place.path("out.json")).unwrap();
    assert!(rows.starts_with(r#"[{"task_id":"a1","interactions":4},"#), "{rows}");
    output("out.parquet").ok();
    assert!(std::fs::read(place.path("out.parquet")).unwrap().starts_with(b"PAR1"));
    output("out.csv").fails(2, &["`out.csv` exists"]);
    output("out.txt").fails(2, &["`out.txt` does not say what to write", ".parquet, .csv or .json"]);
    output("nowhere/out.csv").fails(1, &["cannot write `nowhere/out.csv`"]);
    let failing = ["sql", "select 1 / (interactions - 6) from trajectories", "--store", "store", "--output", "bad.csv"];
    place.coa(&failing).fails(1, &["ivide by zero"]);
    place.coa(&["sql", "select 1; select 2", "--store", "store", "--output", "two.csv"]).fails(2, &["one query"]);
    let names = std::fs::read_dir(place.path(".")).unwrap();
    let mut names: Vec<String> = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, ["in", "out.csv", "out.json", "out.parquet", "p.toml", "store"], "nothing half written");
}

#[test]
fn queries_from_standard_input() {
    let place = demo();
    let ask = |text: &str| {
        let file = place.write("q.sql", text);
        let mut command = place.command(&["sql", "--store", "store", "--format", "csv"]);
        crate::coa::Said::from(command.stdin(std::fs::File::open(file).unwrap()).output().unwrap())
    };
    let said = ask("-- first\nselect ';' as a;\n\nselect count(*) as b\nfrom traces; -- then\n\\d nothing;\n");
    assert_eq!(said.out, "a\n;\nb\n3\n");
    said.fails(1, &["there is no table `nothing`"]);
    assert_eq!(ask("select 1 as a").ok().out, "a\n1\n", "the last `;` may be missing");
    ask("-- nothing\n").fails(2, &["there is no query"]);
    ask("select 'open").fails(1, &["Unterminated string literal"]);
}

#[test]
fn nothing_is_written() {
    let place = demo();
    let before = files(&place.path("."));
    for query in [
        "drop table complexity.kept",
        "insert into complexity.kept select * from complexity.kept",
        "update complexity.kept set weight = 0",
        "delete from complexity.kept",
        "truncate table complexity.kept",
        "create table x as select 1",
        "create view x as select 1",
        "create external table x stored as csv location 'x'",
        "select 1 as a into x",
        "copy (select 1) to 'x.csv'",
        "explain analyze copy (select 1) to 'x.csv'",
        "explain analyze insert into complexity.kept select * from complexity.kept",
        "set datafusion.execution.batch_size = 1",
        "prepare p as select 1",
        "begin",
        "select * from 'in/a.jsonl'",
    ] {
        fails(&place, query, &["error: "]);
    }
    assert_eq!(files(&place.path(".")), before);
    assert_eq!(place.number("store", "select count(*) from complexity.kept"), 2);
}

/// Text that would need a stack without end is refused, and what is long but flat is answered.
#[test]
fn deep_and_long_queries() {
    let place = demo();
    let deep = [
        ("nests more than", format!("select {}1{}", "(".repeat(20_000), ")".repeat(20_000))),
        ("operators", format!("select {}", vec!["1 = 2"; 20_000].join(" or "))),
        ("operators", format!("select {}", vec!["1"; 20_000].join(" + "))),
        ("operators", vec!["select 1"; 20_000].join(" union all ")),
        ("operators", format!("select {} true", "not ".repeat(20_000))),
    ];
    let ask = |text: &str| {
        let file = place.write("q.sql", text);
        let mut command = place.command(&["sql", "--store", "store", "--format", "csv"]);
        crate::coa::Said::from(command.stdin(std::fs::File::open(file).unwrap()).output().unwrap())
    };
    for (words, query) in deep {
        ask(&query).fails(1, &[words]);
    }
    let list: Vec<String> = (1..=20_000).map(|number| number.to_string()).collect();
    let flat = format!("select count(*) as n from traces where line in ({})", list.join(", "));
    assert_eq!(ask(&flat).ok().out, "n\n3\n");
    let terms: Vec<String> = (1..=400).map(|number| format!("line = {number}")).collect();
    let chain = format!("select count(*) as n from traces where {}", terms.join(" or "));
    assert_eq!(ask(&chain).ok().out, "n\n3\n");
    assert_eq!(ask(&format!("select {}1{} as n", "(".repeat(40), ")".repeat(40))).ok().out, "n\n1\n");
}

/// What is wrong is the name of a file and what to do, in two lines.
fn says(place: &Place, query: &str, words: &[&str]) {
    let said = place.coa(&["sql", query, "--store", "store"]).fails(1, words);
    assert_eq!(said.err.lines().count(), 2, "{}", said.err);
    assert!(said.err.contains("\nhint: restore it from a copy, or "), "{}", said.err);
}

#[test]
fn a_damaged_log_is_named() {
    let place = demo();
    let query = "select sum(interactions) as hops from convert.trajectories";
    let log = place.path("store/tables/convert/trajectories/trajectories.v1/_delta_log");
    let entry = log.join(format!("{:020}.json", 1));
    let intact = std::fs::read(&entry).unwrap();
    for (bytes, line) in
        [(&intact[..intact.len() / 2], "line"), (b"", "line 1"), (&[0; 800], "line 1"), (b"[1]\n", "line 1")]
    {
        std::fs::write(&entry, bytes).unwrap();
        says(&place, query, &["00000000000000000001.json` is damaged", line, "_delta_log"]);
    }
    // A list of tables is of use also when one is damaged.
    let listed = place.coa(&["sql", "\\d", "--store", "store", "--format", "csv"]).ok().out;
    assert!(listed.contains("convert.trajectories,,,") && listed.contains("\ningest.traces,3,1,"), "{listed}");
    std::fs::write(&entry, &intact).unwrap();
    std::fs::remove_file(log.join(format!("{:020}.json", 0))).unwrap();
    says(&place, query, &["is gone from the table's log"]);
    // The hint holds: units are not done again, and the table is there.
    std::fs::remove_dir_all(&log).unwrap();
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(sql(&place, query), [json!({"hops": 17})]);
    assert_eq!(place.number("store", "select count(*) from units where stage = 'convert'"), 2);
}

#[test]
fn a_damaged_data_file_is_named() {
    let place = demo();
    let all = files(&place.path("store/tables/convert/trajectories"));
    let file = all.iter().find(|path| path.extension().is_some_and(|extension| extension == "parquet")).unwrap();
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let query = "select count(*) from (select distinct * from convert.trajectories)";
    let intact = std::fs::read(file).unwrap();
    let mut bodies = 0;
    // Behind the first bytes of a file lie pages: each of them in turn.
    for at in (4..intact.len() - 200).step_by(intact.len() / 12) {
        let mut bytes = intact.clone();
        bytes[at..at + 60].iter_mut().for_each(|byte| *byte ^= 0x5a);
        std::fs::write(file, bytes).unwrap();
        let said = place.coa(&["sql", query, "--store", "store"]);
        if said.code != 0 {
            bodies += 1;
            says(&place, query, &[&name, "is damaged: its bytes are not those that were written"]);
        }
    }
    assert!(bodies > 4, "{bodies}");
    for bytes in [&intact[..intact.len() / 2], b""] {
        std::fs::write(file, bytes).unwrap();
        says(&place, query, &[&name, "is damaged"]);
    }
    std::fs::remove_file(file).unwrap();
    says(&place, query, &[&name, "is gone"]);
}
