//! Which objects of a bucket are read: all pages of a listing, no markers and left-overs, each version once.

use futures::StreamExt;
use object_store::ObjectStoreExt;
use object_store::aws::AmazonS3Builder;
use serde_json::{Value, json};

use super::{as_runs, generated, ingest, strings};
use crate::bucket::Bucket;
use crate::coa::{Place, Said, shared, skipped};

fn coa(place: &Place, bucket: &Bucket, arguments: &[&str]) -> Said {
    bucket.of(place.command(arguments)).output().expect("coa starts").into()
}

/// State of every unit of a plan.
fn states(place: &Place, bucket: &Bucket) -> Vec<(String, String)> {
    let units: Value = serde_json::from_str(&coa(place, bucket, &["plan", "p.toml", "--json"]).ok().out).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let units = units.as_array().unwrap().iter();
    units.map(|unit| (text(&unit["partition"]), text(&unit["reason"]))).collect()
}

/// 2,501 objects in pages of 1,000, of 7 with empty pages between them, and with a page that cannot be had. `n` is the
/// accepted answer of the run.
#[test]
fn c35_more_objects_than_a_page() {
    let Some(case) = shared("cases/C35") else { return };
    let (place, bucket) = (Place::new(), Bucket::new());
    if !generated(&place, &case) {
        return;
    }
    for entry in std::fs::read_dir(place.path("tree")).unwrap() {
        let entry = entry.unwrap();
        let text = as_runs(&std::fs::read(entry.path()).unwrap(), &[("n", "true_answer")]);
        bucket.put(&format!("in/{}", entry.file_name().to_string_lossy()), &text);
    }
    // The part before the number is a key, so that all objects are one partition.
    place.write("p.toml", ingest("s3://b/in/{kind}-*.jsonl", ""));

    bucket.fail(|asked| (asked == "LIST 2").then_some(403));
    coa(&place, &bucket, &["run", "p.toml"]).fails(1, &["cannot list `s3://b/in`", "AccessDenied"]);
    place.coa(&["sql", "select count(*) from ingest.traces", "--store", "store"]).fails(1, &["ingest"]);

    // Once is no more than a hiccup.
    let mut left = 1;
    bucket.fail(move |asked| {
        (asked == "LIST 2" && left > 0).then(|| {
            left -= 1;
            500
        })
    });
    coa(&place, &bucket, &["run", "p.toml", "-q"]).ok();
    let number = |query: &str| place.number("store", query);
    assert_eq!(number("select count(*) from ingest.traces"), 2501);
    assert_eq!(number("select sum(cast(golden_answers[1] as bigint)) from ingest.traces"), 3_126_250);
    let seams = "'page-00999', 'page-01000', 'page-01001', 'page-02000', 'page-02500'";
    assert_eq!(number(&format!("select count(*) from ingest.traces where task_id in ({seams})")), 5);

    for (page, odd) in [(1000, false), (7, false), (7, true)] {
        bucket.list_by(page, odd);
        bucket.take_requests();
        assert_eq!(states(&place, &bucket), [("part".to_owned(), String::new())], "the same objects as before");
        let pages = bucket.take_requests().len();
        assert_eq!(pages, 2501_usize.div_ceil(page) * if odd { 2 } else { 1 } - usize::from(odd));
        let said = coa(&place, &bucket, &["backfill", "p.toml", "--partitions", "part"]).ok();
        assert!(said.err.contains("done: 0 units"), "{}", said.err);
    }
}

/// Markers, hidden, temporary and empty objects under the prefix.
#[test]
fn c37_what_is_no_data() {
    let Some(case) = shared("cases/C37") else { return };
    let (place, bucket) = (Place::new(), Bucket::new());
    let mut folders = vec![case.join("tree")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let key = path.strip_prefix(case.join("tree")).unwrap().to_string_lossy().into_owned();
                bucket.put(&format!("in/{key}"), &as_runs(&std::fs::read(&path).unwrap(), &[]));
            }
        }
    }
    for line in std::fs::read_to_string(case.join("markers.txt")).unwrap().lines().skip(1) {
        bucket.put(line, b"");
    }
    let run = |pattern: &str, passed_over: &str, quarantined: &[&str]| {
        place.write("p.toml", ingest(&format!("s3://b/{pattern}"), ""));
        let said = coa(&place, &bucket, &["run", "p.toml"]).ok();
        assert!(said.err.contains(&format!("objects passed over: {passed_over}\n")), "{}", said.err);
        let kept = place.sql("store", "select task_id from ingest.traces order by 1");
        assert_eq!(strings(&kept, "task_id"), ["mk-1", "mk-2"], "{pattern}");
        let bad = place.sql("store", "select code from ingest.quarantine");
        assert_eq!(strings(&bad, "code"), quarantined, "{pattern}");
        let empty = "select partition from units where current and counts like '%\"empty_objects\":1%' order by 1";
        strings(&place.sql("store", empty), "partition")
    };
    let empty = run("in/**/*.jsonl", "3 hidden, 4 marker, 1 not_matching, 1 temporary", &[]);
    assert_eq!(empty.len(), 2, "{empty:?}");
    assert!(empty[0].contains("2025-01-01") && empty[0].contains("part-1.jsonl"), "{empty:?}");
    assert!(empty[1].contains("2025-01-03") && empty[1].contains("part-0.jsonl"), "{empty:?}");
    // Without a pattern for names, the notes beside the data are read too, and are no record.
    let empty = run("in/**", "3 hidden, 4 marker, 1 temporary", &["not_json"]);
    assert_eq!(empty.len(), 2, "{empty:?}");

    // By day: the one with nothing but a marker is empty and no error.
    place.write("p.toml", ingest("s3://b/in/dt={date:%Y-%m-%d}/*.jsonl", ""));
    coa(&place, &bucket, &["backfill", "p.toml", "--partitions", "2025-01-01..2025-01-03", "--store", "days"]).ok();
    let days = place.sql("days", "select partition, rows_out from units where current order by 1");
    let days: Vec<(&str, i64)> =
        days.iter().map(|row| (row["partition"].as_str().unwrap(), row["rows_out"].as_i64().unwrap())).collect();
    assert_eq!(days, [("2025-01-01", 2), ("2025-01-02", 0), ("2025-01-03", 0)]);
    coa(&place, &bucket, &["backfill", "p.toml", "--partitions", "2025-01-02", "--store", "one"]).ok();
    coa(&place, &bucket, &["backfill", "p.toml", "--partitions", "2025-01-04", "--store", "one"])
        .fails(2, &["no partition is in 2025-01-04"]);
}

/// Objects that appear within the second of the newest, before it, and under a new tag.
#[test]
fn c45_new_objects_within_the_same_second() {
    let Some(case) = shared("cases/C45") else { return };
    let (place, bucket) = (Place::new(), Bucket::new());
    place.write("p.toml", ingest("s3://b/in/*.jsonl", ""));
    let expected: [(&[&str], bool); 4] = [
        (&["in/a.jsonl", "in/b.jsonl"], false),
        (&["in/0-early.jsonl", "in/c.jsonl", "in/d.jsonl"], true),
        (&[], false),
        (&["in/b.jsonl"], true),
    ];
    for (run, (read, odd)) in (1..).zip(expected) {
        let listing: Value =
            serde_json::from_slice(&std::fs::read(case.join(format!("listing_{run}.json"))).unwrap()).unwrap();
        for object in listing.as_array().unwrap() {
            let text = |name: &str| object[name].as_str().unwrap();
            // The content follows from key and tag: of the same tag it is the same.
            let record = json!({"question": "q", "task_id": text("key"), "prediction": text("etag")});
            bucket.put_as(text("key"), record.to_string().as_bytes(), text("etag"), text("last_modified"));
        }
        bucket.list_by(1000, odd);
        if run == 4 {
            let changed = states(&place, &bucket).into_iter().filter(|(_, reason)| !reason.is_empty());
            assert_eq!(changed.collect::<Vec<_>>(), [("b.jsonl".to_owned(), "inputs changed".to_owned())]);
        }
        bucket.take_requests();
        coa(&place, &bucket, &["run", "p.toml", "-q"]).ok();
        let mut got: Vec<String> =
            bucket.take_requests().iter().filter_map(|asked| asked.strip_prefix("GET ").map(str::to_owned)).collect();
        got.sort();
        assert_eq!(got, read, "run {run}");
    }
    let rows = place.sql("store", "select task_id, prediction from ingest.traces order by 1");
    let rows: Vec<(String, String)> = strings(&rows, "task_id").into_iter().zip(strings(&rows, "prediction")).collect();
    let row = |key: &str, tag: &str| (format!("in/{key}.jsonl"), tag.to_owned());
    assert_eq!(rows, [row("0-early", "4"), row("a", "1"), row("b", "2b"), row("c", "3"), row("d", "5")]);
}

/// The same objects on a server: its own pages are of 1,000.
fn c35_on(variable: &str) {
    let Some(case) = shared("cases/C35") else { return };
    let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (Some(endpoint), Some(key), Some(secret)) =
        (get(variable), get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"))
    else {
        skipped(&format!("{variable} names no S3 server: eval \"$(bash infra/s3-up.sh)\" starts one"));
        return;
    };
    let mut place = Place::new();
    if !generated(&place, &case) {
        return;
    }
    for (name, value) in
        [("AWS_ENDPOINT_URL", &endpoint), ("AWS_ACCESS_KEY_ID", &key), ("AWS_SECRET_ACCESS_KEY", &secret)]
    {
        place.set(name, value);
    }
    place.set("AWS_REGION", "us-east-1");
    // The place's own name is nobody else's.
    let folder = place.path("tree").parent().unwrap().file_name().unwrap().to_string_lossy().to_lowercase();
    let bucket = format!("coa-c35-{}", folder.trim_start_matches('.').trim_start_matches("tmp"));
    place.coa(&["doctor", "--store", &format!("s3://{bucket}/store"), "--mend"]);
    let store = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(&bucket)
        .with_access_key_id(key)
        .with_secret_access_key(secret)
        .build()
        .unwrap();
    let puts = (0..2501).map(|number| {
        let name = format!("part-{number:05}.jsonl");
        let text = as_runs(&std::fs::read(place.path(&format!("tree/{name}"))).unwrap(), &[("n", "true_answer")]);
        let store = &store;
        async move { store.put(&format!("in/{name}").into(), text.into()).await.unwrap() }
    });
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        futures::stream::iter(puts).buffer_unordered(16).collect::<Vec<_>>().await;
    });
    place.write("p.toml", ingest(&format!("s3://{bucket}/in/{{kind}}-*.jsonl"), ""));
    place.coa(&["run", "p.toml", "-q"]).ok();
    assert_eq!(place.number("store", "select count(*) from ingest.traces"), 2501);
    assert_eq!(place.number("store", "select sum(cast(golden_answers[1] as bigint)) from ingest.traces"), 3_126_250);
}

#[test]
fn c35_on_ceph() {
    c35_on("COA_TEST_RGW");
}

#[test]
fn c35_on_moto() {
    c35_on("COA_TEST_MOTO");
}
