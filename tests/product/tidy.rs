//! The shape of the code: who may use what, and what every file must have.

use std::path::{Path, PathBuf};

use crate::coa::checkout;

/// All Rust files of the checkout.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["schemas", "operators", "pipelines", "jobs", "tests"].iter().map(|name| checkout().join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50);
    found
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_file_says_what_it_is_for() {
    for path in sources() {
        assert!(text(&path).starts_with("//! "), "{} has no module documentation", path.display());
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(!["utils", "util", "common", "helpers", "misc"].contains(&name.as_str()), "{}", path.display());
    }
}

#[test]
fn files_can_be_read_in_one_sitting() {
    for path in sources() {
        let lines = text(&path).lines().count();
        assert!(lines <= 600, "{} has {lines} lines", path.display());
    }
}

/// Heavy libraries are known to one package each.
#[test]
fn who_may_depend_on_what() {
    let manifests = ["schemas", "operators", "operators/tools", "operators/train", "pipelines", "jobs", "jobs/store"];
    let rules: [(&str, &[&str]); 18] = [
        ("apalis", &["jobs"]),
        ("apalis-core", &["jobs"]),
        ("apalis-postgres", &["jobs"]),
        ("apalis-sqlite", &["jobs"]),
        ("aws-sdk-s3", &["jobs/store"]),
        ("aws-config", &["jobs/store"]),
        ("clap", &["jobs"]),
        ("deltalake-core", &["jobs/store"]),
        ("object_store", &["jobs/store"]),
        ("opentelemetry", &["jobs"]),
        ("parquet", &["operators", "jobs/store"]),
        ("prometheus-client", &["jobs"]),
        ("reqwest", &["jobs"]),
        ("datafusion", &["jobs", "jobs/store"]),
        ("tch", &["operators/train"]),
        ("tantivy", &["operators/tools"]),
        ("hakoniwa", &["operators/tools"]),
        ("serde_arrow", &["schemas"]),
    ];
    for manifest in manifests {
        let content = text(&checkout().join(manifest).join("Cargo.toml"));
        for (library, allowed) in rules {
            let named = content.lines().any(|line| {
                line.strip_prefix(library).is_some_and(|rest| rest.starts_with('.') || rest.starts_with(" ="))
            });
            assert!(!named || allowed.contains(&manifest), "{manifest} may not depend on {library}");
        }
    }
}

/// The dependency direction between packages of the workspace.
#[test]
fn packages_depend_in_one_direction() {
    let rules: [(&str, &[&str]); 7] = [
        ("schemas", &[]),
        ("operators/tools", &[]),
        ("operators", &["schemas", "tools"]),
        ("operators/train", &["schemas", "operators", "tools"]),
        ("pipelines", &["schemas", "operators"]),
        ("jobs/store", &["schemas", "operators"]),
        ("jobs", &["schemas", "operators", "operators-train", "pipelines", "store"]),
    ];
    let ours = ["schemas", "tools", "operators", "operators-train", "pipelines", "store", "jobs"];
    for (package, allowed) in rules {
        let content = text(&checkout().join(package).join("Cargo.toml"));
        for other in ours {
            let named = content.lines().any(|line| {
                line.strip_prefix(other).is_some_and(|rest| rest.starts_with(".workspace") || rest.starts_with(" ="))
            });
            assert!(!named || allowed.contains(&other), "{package} may not depend on {other}");
        }
    }
}

/// A file that implements an operator is in the registry.
#[test]
fn every_operator_is_registered() {
    let registered: Vec<&str> = jobs::registry().iter().map(|factory| factory.name()).collect();
    let mut sorted = registered.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(registered, sorted, "names are unique");
    for path in sources() {
        let source = text(&path);
        let is_operator = source.contains("impl Operator for ") || source.contains("impl RowFilter for ");
        if !is_operator || path.starts_with(checkout().join("tests")) {
            continue;
        }
        let names = source.lines().filter_map(|line| line.trim().strip_prefix("const NAME: &'static str = \""));
        for name in names {
            let name = name.trim_end_matches("\";");
            assert!(registered.contains(&name), "add `{name}` of {} to the registry", path.display());
        }
    }
}

#[test]
fn shipped_pipelines_have_no_mistakes() {
    let mut count = 0;
    for entry in std::fs::read_dir(checkout().join("pipelines")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") && !path.ends_with("Cargo.toml") {
            let pipeline = pipelines::compile(&path.display().to_string(), &text(&path), &jobs::registry(), None);
            if let Err(mistakes) = pipeline {
                panic!("{mistakes}");
            }
            count += 1;
        }
    }
    assert!(count >= 3);
}
