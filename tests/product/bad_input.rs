//! Bad input: one clear message with the cause and what to do, an exit code that is not 0, nothing half-written.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::coa::{Place, Said, binary, filters, record, skipped};

fn place(source: &str) -> Place {
    let place = Place::new();
    place.write("p.toml", filters(source, 5));
    place
}

#[test]
fn pipeline_files() {
    let place = Place::new();
    place.coa(&["run", "missing.toml"]).fails(2, &["there is no file `missing.toml`"]);
    place.coa(&["run", "."]).fails(2, &["`.` is a folder"]);
    place.write("binary.toml", [0xff, 0xfe, 0x00]);
    place.coa(&["run", "binary.toml"]).fails(2, &["not UTF-8"]);
    place.write("broken.toml", "name = \"x\nstore = 1");
    place.coa(&["run", "broken.toml"]).fails(2, &["broken.toml:1:", "not TOML"]);
    place.write("empty.toml", "");
    place.coa(&["run", "empty.toml"]).fails(2, &["missing key `name`"]);
    place.write("storeless.toml", filters("in/*", 5).replace("store = \"store\"\n", ""));
    place.coa(&["run", "storeless.toml"]).fails(2, &["names no store", "hint: "]);
}

#[test]
fn sources() {
    let missing = place("in/*.jsonl");
    missing.coa(&["run", "p.toml"]).fails(1, &["no object matches `in/*.jsonl`", "hint: "]);
    let file = place("in/a.jsonl");
    file.coa(&["run", "p.toml"]).fails(1, &["no object matches `in/a.jsonl`"]);
    file.write("in/a.jsonl", "");
    file.coa(&["run", "p.toml"]).fails(2, &["the source `in/a.jsonl` is empty"]);
    let folder = place("in");
    folder.write("in/a.jsonl", record("a", 5));
    folder.coa(&["run", "p.toml"]).fails(1, &["`in` is a folder", "name its files: `in/*`"]);
    // Nothing can be read of any: all is in quarantine, nothing is lost.
    let garbage = place("in/*.jsonl");
    garbage.write("in/a.jsonl", b"\xff\n{}\n[1]\nnull\n");
    garbage.coa(&["run", "p.toml", "-q"]).ok();
    let codes = garbage.sql("store", "select code, line from ingest.quarantine order by line");
    let codes: Vec<&str> = codes.iter().map(|row| row["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["invalid_utf8", "missing_field", "missing_field", "missing_field"]);
}

#[test]
fn rights() {
    // Root may do anything, so the command runs as somebody else.
    // SAFETY: it only asks.
    if unsafe { libc::geteuid() } != 0 {
        skipped("not root, so no other user to be");
        return;
    }
    let place = place("in/*.jsonl");
    let secret = place.write("in/a.jsonl", record("a", 5));
    let nobody = |place: &Place| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(place.path("coa"))
            .args(["run", "p.toml"]);
        command.current_dir(place.path(".")).env("HOME", place.path("."));
        Said::from(command.output().expect("setpriv starts"))
    };
    // Where the checkout lies may be closed to others.
    std::fs::copy(binary(), place.path("coa")).unwrap();
    let open = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(&place.path("."), 0o755);
    let probe = nobody(&place);
    if probe.code == 127 || probe.err.contains("error while loading") {
        skipped("another user cannot load libtorch here");
        return;
    }
    probe.fails(1, &["cannot create the folder", "hint: choose a `store` this user may write to"]);
    std::fs::create_dir(place.path("store")).unwrap();
    open(&place.path("store"), 0o777);
    open(&secret, 0o600);
    nobody(&place).fails(1, &["cannot open", "a.jsonl", "Permission denied"]);
}

#[test]
fn stores() {
    let place = place("in/*.jsonl");
    place.write("in/a.jsonl", record("a", 5));
    place.write("store", "a file stands here");
    place.coa(&["run", "p.toml"]).fails(1, &["store", "hint: "]);
    place.coa(&["sql", "select 1", "--store", "nowhere"]).fails(1, &["there is no store at", "nowhere"]);
    place.coa(&["run", "p.toml", "--store", "gopher://x"]).fails(1, &["unknown scheme `gopher`"]);
    let mut unreachable = place.command(&["run", "p.toml", "--store", "s3://bucket/prefix"]);
    unreachable
        .env("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "very-secret")
        .env("AWS_REGION", "us-east-1");
    let said: Said = unreachable.output().unwrap().into();
    let said = said.fails(1, &["s3://bucket/prefix", "hint: "]);
    assert!(!said.err.contains("very-secret"));
}

#[test]
fn a_full_disk() {
    let place = place("in/*.jsonl");
    // Text that does not compress, more of it than fits.
    let noise = |i: u64| (0..40).map(|j| format!("{:016x}", operators::seed(i, &[&j.to_string()]))).collect::<String>();
    let records: String = (0..4000).map(|i| record(&noise(i), 1) + "\n").collect();
    place.write("in/a.jsonl", records);
    std::fs::create_dir(place.path("small")).unwrap();
    // A disk of 1 MiB, in a mount namespace of its own.
    let script =
        format!("mount -t tmpfs -o size=1m tmpfs small && exec {} run p.toml --store small/store", binary().display());
    let output = Command::new("unshare").args(["-Urm", "sh", "-c", &script]).current_dir(place.path(".")).output();
    let Ok(output) = output else {
        skipped("there is no unshare");
        return;
    };
    let said = Said::from(output);
    if said.err.contains("unshare:") || said.err.contains("mount:") {
        skipped(&said.err);
        return;
    }
    said.fails(1, &["No space left on device"]);
}

#[test]
fn an_endpoint_without_a_scheme() {
    let place = Place::new();
    for endpoint in ["", "localhost:9000", "bogus", "127.0.0.1:9", "http://", "http://a b"] {
        let mut command = place.command(&["status", "--store", "s3://bucket/store"]);
        let credentials = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "us-east-1")];
        let said: Said = command.envs(credentials).env("AWS_ENDPOINT_URL", endpoint).output().unwrap().into();
        said.fails(1, &[endpoint, "is no address", "http://localhost:9000"]);
    }
}

/// Told at once, whatever is wrong with a queue, and nothing is made.
#[test]
fn queues() {
    let place = place("in/*.jsonl");
    place.write("in/a.jsonl", format!("{}\n", record("a", 6)));
    place
        .coa(&["run", "p.toml", "--queue", "postgres://nobody:secret@127.0.0.1:1/x"])
        .fails(1, &["`postgres://127.0.0.1:1/x`", "Connection refused", "hint: check that the server runs"]);
    place.coa(&["worker", "--queue", "typo/q.sqlite"]).fails(2, &["there is no queue at `typo/q.sqlite`"]);
    assert!(!place.path("typo").exists());
}

#[test]
fn a_bucket_that_is_not_there() {
    let (Ok(endpoint), mut place) = (std::env::var("COA_TEST_RGW"), place("in/*.jsonl")) else {
        return skipped("no S3 server runs");
    };
    place.set("AWS_ENDPOINT_URL", &endpoint);
    place.write("in/a.jsonl", format!("{}\n", record("a", 6)));
    for arguments in
        [&["run", "p.toml", "--store", "s3://nowhere/x"][..], &["sql", "select 1", "--store", "s3://nowhere/x"]]
    {
        let said = place.coa(arguments).fails(1, &["there is no such bucket", "--mend` creates it"]);
        assert!(!said.err.contains("<Error>"), "{}", said.err);
    }
}
