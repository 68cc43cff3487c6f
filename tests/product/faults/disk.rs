//! A disk that is full: one clear message, nothing half-written, and the run goes on when there is space again.

use std::process::Command;

use super::{Scene, server::program};
use crate::coa::{Said, binary, skipped};

#[test]
fn full_and_then_not() {
    let scene = Scene::new(6, 4000);
    if !program("unshare") {
        return;
    }
    // A store in memory that is too small, and is made larger afterwards.
    let script = "set -u
        mkdir store || exit 9
        mount -t tmpfs -o size=2m tmpfs store || exit 9
        \"$COA\" run p.toml --store store
        echo \"first $?\" >&2
        mount -o remount,size=64m store || exit 9
        \"$COA\" resume --store store -q || exit 8
        cp -r store after";
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c", script]).current_dir(scene.place.path(".")).env("COA", binary());
    let said: Said = command.output().unwrap().into();
    if said.code == 9 || said.err.contains("unshare failed") {
        skipped(&format!("no file system can be mounted here: {}", said.err));
        return;
    }
    assert_eq!(said.code, 0, "{}", said.err);
    let (first, _) = said.err.split_once("first ").expect("the first run ended");
    assert!(said.err.contains("first 1"), "{}", said.err);
    assert!(first.contains("free disk space") && first.contains("No space left"), "{first}");
    assert!(!first.contains("panicked"), "{first}");
    scene.holds("after");
}
