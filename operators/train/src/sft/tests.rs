//! Training goes on exactly, and says what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use operators::memory::MemoryIo;
use operators::{NoProgress, ProgressSink};
use serde_json::{Value, json};

use super::*;
use crate::fixture::{fixture, operator};

fn params(more: &Value) -> Value {
    let mut params = json!({"steps": 20, "batch": 4, "learning_rate": 3e-3, "warm_up": 3, "heldout": 0.2,
        "measure_every": 5, "checkpoint_every": 10, "threads": 1,
        "model": {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 48}});
    for (key, value) in more.as_object().unwrap() {
        params[key] = value.clone();
    }
    params
}

/// Weights, and the log without its times.
fn result(io: &MemoryIo) -> (Vec<u8>, Vec<TrainingStep>) {
    let mut steps: Vec<TrainingStep> = io.rows("steps").unwrap();
    steps.iter_mut().for_each(|step| step.seconds = 0.0);
    (io.written("model", "model.safetensors").unwrap(), steps)
}

/// A process that dies after this many steps.
struct Dies(u64);

impl ProgressSink for Dies {
    fn begin(&self, _total: Option<u64>, _unit: &'static str) {}
    fn at(&self, done: u64, _note: &str) {
        assert!(done < self.0, "the process dies here");
    }
}

/// 20 steps are the same bits as 10 steps, a death, and what follows.
#[test]
fn training_goes_on_exactly() {
    let fixture = fixture();
    let several_packs = json!({"pack": 100, "activation_checkpointing": true, "keep": "best", "measure_every": 1});
    for more in [json!({"optimizer": "adamw"}), json!({"optimizer": "muon"}), several_packs] {
        let sft: Sft = operator(params(&more));
        let straight = fixture.io();
        straight.run(&sft, 1).unwrap();
        let (weights, log) = result(&straight);
        assert_eq!(log.len(), 20);

        let broken = fixture.io();
        let never = AtomicBool::new(false);
        let died = catch_unwind(AssertUnwindSafe(|| broken.run_watched(&sft, 1, &Dies(15), &never)));
        assert!(died.is_err());
        broken.run(&sft, 1).unwrap();
        assert_eq!(result(&broken), (weights.clone(), log), "{more}");

        // From another seed, or from nothing after the death, it would be another model.
        let other = fixture.io();
        other.run(&sft, 2).unwrap();
        assert_ne!(result(&other).0, weights);
    }
}

#[test]
fn a_stop_saves_where_it_is() {
    struct Stops<'a>(&'a AtomicBool);
    impl ProgressSink for Stops<'_> {
        fn begin(&self, _total: Option<u64>, _unit: &'static str) {}
        fn at(&self, done: u64, _note: &str) {
            self.0.store(done >= 7, Ordering::Relaxed);
        }
    }
    let fixture = fixture();
    let sft: Sft = operator(params(&json!({})));
    let io = fixture.io();
    let stop = AtomicBool::new(false);
    let error = io.run_watched(&sft, 1, &Stops(&stop), &stop).unwrap_err();
    assert_eq!(error.kind, operators::ErrorKind::Interrupted);
    assert_eq!(operators::UnitIo::newest_checkpoint(&io).unwrap().unwrap().step, 7);
    io.run(&sft, 1).unwrap();
    let straight = fixture.io();
    straight.run(&sft, 1).unwrap();
    assert_eq!(result(&io), result(&straight));
}

/// A step without a finite loss changes nothing, and neither it nor a stop right after it ends the training.
#[test]
fn a_step_without_a_finite_loss_is_passed_over() {
    let fixture = fixture();
    let mut tokens = fixture.tokens.clone();
    tokens[0].weight = f64::INFINITY;
    let io = || {
        let io = MemoryIo::new().unwrap().with_rows("tokens", &tokens).unwrap();
        io.with_file("tokenizer", TOKENIZER_FILE, &fixture.tokenizer).unwrap()
    };
    let sft: Sft = operator(params(&json!({"heldout": 0.0, "checkpoint_every": 1})));
    let straight = io();
    straight.run(&sft, 1).unwrap();
    let (weights, log) = result(&straight);
    let skipped = log.iter().filter(|step| step.skipped).count();
    assert!((1..10).contains(&skipped), "{skipped} of 20 steps skipped");
    let first = log.iter().find(|step| step.skipped).unwrap();

    let broken = io();
    let never = AtomicBool::new(false);
    let dies = Dies(first.step as u64 + 2);
    assert!(catch_unwind(AssertUnwindSafe(|| broken.run_watched(&sft, 1, &dies, &never))).is_err());
    broken.run(&sft, 1).unwrap();
    let (resumed, resumed_log) = result(&broken);
    assert!(resumed == weights && format!("{resumed_log:?}") == format!("{log:?}"));

    let all: Vec<_> = tokens
        .iter()
        .cloned()
        .map(|mut row| {
            row.weight = f64::INFINITY;
            row
        })
        .collect();
    let io = MemoryIo::new().unwrap().with_rows("tokens", &all).unwrap();
    let io = io.with_file("tokenizer", TOKENIZER_FILE, &fixture.tokenizer).unwrap();
    let error = io.run(&sft, 1).unwrap_err();
    assert!(error.message.contains("no step had a finite loss"), "{}", error.message);
}

#[test]
fn the_loss_falls() {
    let fixture = fixture();
    let sft: Sft = operator(params(&json!({"steps": 60, "optimizer": "muon", "learning_rate": 0.01})));
    let io = fixture.io();
    io.run(&sft, 1).unwrap();
    let (_, log) = result(&io);
    assert!(log[59].loss < log[0].loss / 4.0, "{} to {}", log[0].loss, log[59].loss);
    let heldout: Vec<f64> = log.iter().filter_map(|step| step.heldout_loss).collect();
    assert!(heldout.len() == 12 && heldout[11] < heldout[0] / 2.0, "{heldout:?}");
    assert!(io.counted("heldout_samples") > 0);
    assert_eq!(log[0].learning_rate, 0.0, "warm-up begins at 0");
    assert!(log.iter().all(|step| !step.skipped && step.trained_tokens < step.tokens));
}

/// How a step is cut into packs changes no more than the last bits.
#[test]
fn packs_are_a_matter_of_memory() {
    let fixture = fixture();
    let losses = |pack: u32| -> Vec<f64> {
        let io = fixture.io();
        io.run(&operator::<Sft>(params(&json!({"pack": pack, "steps": 5}))), 1).unwrap();
        result(&io).1.iter().map(|step| step.loss).collect()
    };
    let [one, alone] = [8192, 1].map(losses);
    assert!(one.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-4), "{one:?} {alone:?}");
}

/// The best model is the one that a training of as many steps gives, and impatience ends a training that gets worse.
#[test]
fn the_best_weights_are_kept_and_patience_ends() {
    let fixture = fixture();
    let run = |more: Value| {
        let mut all =
            json!({"schedule": "constant", "warm_up": 0, "learning_rate": 0.2, "measure_every": 2, "steps": 40});
        more.as_object().unwrap().iter().for_each(|(key, value)| all[key] = value.clone());
        let io = fixture.io();
        io.run(&operator::<Sft>(params(&all)), 1).unwrap();
        io
    };
    let best = run(json!({"keep": "best"}));
    let (weights, log) = result(&best);
    let measured: Vec<(i64, f64)> = log.iter().filter_map(|s| s.heldout_loss.map(|loss| (s.step, loss))).collect();
    let least = measured.iter().copied().reduce(|a, b| if b.1 < a.1 { b } else { a }).unwrap();
    assert!(least.0 < 40, "the test wants a training that gets worse: {measured:?}");
    assert_eq!(best.counted("model_of_step"), least.0 as u64);
    assert!(result(&run(json!({"steps": least.0}))).0 == weights);

    let (_, log) = result(&run(json!({"patience": 3})));
    let measured: Vec<f64> = log.iter().filter_map(|step| step.heldout_loss).collect();
    let (before, after) = measured.split_at(measured.len() - 3);
    assert!(log.len() < 40 && after.iter().all(|loss| before.iter().any(|earlier| earlier <= loss)), "{measured:?}");

    let blind: Params = serde_json::from_value(params(&json!({"keep": "best", "heldout": 0.0}))).unwrap();
    assert_eq!(Sft::new(blind).err().unwrap().key, Some("keep"));
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let fixture = fixture();
    let message = |io: &MemoryIo, more: Value| {
        let stop = AtomicBool::new(false);
        io.run_watched(&operator::<Sft>(params(&more)), 1, &NoProgress, &stop).unwrap_err().message
    };
    assert!(message(&fixture.io(), json!({"model": null})).contains("neither a `model` shape nor a `base` model"));
    let mut foreign = fixture.tokens.clone();
    foreign[0].tokenizer = "another".into();
    let io = MemoryIo::new().unwrap().with_rows("tokens", &foreign).unwrap();
    let io = io.with_file("tokenizer", TOKENIZER_FILE, &fixture.tokenizer).unwrap();
    assert!(message(&io, json!({})).contains("made with another tokenizer"));
    let io = MemoryIo::new().unwrap().with_file("tokenizer", TOKENIZER_FILE, &fixture.tokenizer).unwrap();
    assert!(message(&io, json!({})).contains("0 samples"));
    let shape = json!({"hidden": 30, "layers": 1, "heads": 4, "kv_heads": 2, "intermediate": 48});
    let params: Params = serde_json::from_value(params(&json!({ "model": shape }))).unwrap();
    assert!(Sft::new(params).is_err());
}

/// Weights that are no numbers any more are not handed on as a model.
#[test]
fn a_training_that_diverges_fails() {
    let fixture = fixture();
    let stop = AtomicBool::new(false);
    let sft: Sft = operator(params(&json!({"learning_rate": 1e38, "warm_up": 0, "steps": 3})));
    let error = fixture.io().run_watched(&sft, 1, &NoProgress, &stop).unwrap_err();
    assert!(error.message.contains("are not all finite"), "{}", error.message);
    let params: Params = serde_json::from_value(params(&json!({"beta2": 1.0}))).unwrap();
    assert!(Sft::new(params).is_err());
}
