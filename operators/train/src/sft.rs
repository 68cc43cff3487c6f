//! Supervised fine-tuning: next-token training on tokenised trajectories, observations masked.

use std::fs::File;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Instant;

use arrow::error::ArrowError;
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::FileWriter;
use operators::tokens::{Codec, TOKENIZER_CONFIG, TOKENIZER_FILE};
use operators::{
    FilesIn, FilesOut, Fraction, In, Operator, OperatorError, Out, ParamsError, Port, Positive, Queue, Split,
    UnitContext, share,
};
use schemars::JsonSchema;
use schemas::{TokenizedSample, TrainingStep, decode, encode};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::batch::{Batch, Order, Sample};
use crate::device::{device, use_threads};
use crate::loss::cross_entropy;
use crate::model::{self, Config, Qwen2, Start};
use crate::optimizer::{self, Method, Optimizer, Schedule, Settings};

/// The shape of a new model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: NonZeroU32,
    /// Layers.
    pub layers: NonZeroU32,
    /// Query heads.
    pub heads: NonZeroU32,
    /// Key and value heads.
    pub kv_heads: NonZeroU32,
    /// Width of the feed-forward layers.
    pub intermediate: NonZeroU32,
    /// Base of the rotary frequencies.
    #[serde(default = "ten_thousand")]
    pub rope_theta: Positive,
    /// How its weights begin.
    #[serde(default = "normal")]
    pub start: Start,
}

/// Parameters of `sft`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The shape of a model to train from nothing. Leave it out where `base` is bound.
    #[serde(default)]
    pub model: Option<Shape>,
    /// Optimizer steps.
    pub steps: NonZeroU32,
    /// Samples in a step.
    #[serde(default = "sixteen")]
    pub batch: NonZeroU32,
    /// Learning rate of AdamW.
    #[serde(default = "rate")]
    pub learning_rate: Positive,
    /// How weights are changed.
    #[serde(default = "adamw")]
    pub optimizer: Method,
    /// Learning rate of Muon, for the matrices it changes.
    #[serde(default = "muon_rate")]
    pub muon_learning_rate: Positive,
    /// How the learning rate goes after its warm-up.
    #[serde(default = "cosine")]
    pub schedule: Schedule,
    /// Steps over which the learning rate rises from 0.
    #[serde(default)]
    pub warm_up: u32,
    /// Decay rate of AdamW's first moment.
    #[serde(default = "beta1")]
    pub beta1: Fraction,
    /// Decay rate of AdamW's second moment.
    #[serde(default = "beta2")]
    pub beta2: Fraction,
    /// Decoupled weight decay of matrices.
    #[serde(default = "none")]
    pub weight_decay: Fraction,
    /// Gradients longer than this are scaled down to it.
    #[serde(default = "one")]
    pub clip: Positive,
    /// Share of the samples that is not trained on but measured, by a seeded hash of the id.
    #[serde(default = "few")]
    pub heldout: Fraction,
    /// The held-out loss is measured every so many steps, and at the end.
    #[serde(default = "hundred")]
    pub measure_every: NonZeroU32,
    /// A checkpoint is saved every so many steps.
    #[serde(default = "hundred")]
    pub checkpoint_every: NonZeroU32,
    /// Processor threads; as many as there are processors where not given. Bits depend on it.
    #[serde(default)]
    pub threads: Option<NonZeroU32>,
}

fn ten_thousand() -> Positive {
    Positive::new(10_000.0)
}
fn normal() -> Start {
    Start::Normal
}
fn sixteen() -> NonZeroU32 {
    NonZeroU32::new(16).expect("not 0")
}
fn hundred() -> NonZeroU32 {
    NonZeroU32::new(100).expect("not 0")
}
fn rate() -> Positive {
    Positive::new(1e-3)
}
fn muon_rate() -> Positive {
    Positive::new(0.02)
}
fn adamw() -> Method {
    Method::Adamw
}
fn cosine() -> Schedule {
    Schedule::Cosine
}
fn beta1() -> Fraction {
    Fraction::new(0.9)
}
fn beta2() -> Fraction {
    Fraction::new(0.999)
}
fn none() -> Fraction {
    Fraction::new(0.0)
}
fn one() -> Positive {
    Positive::new(1.0)
}
fn few() -> Fraction {
    Fraction::new(0.02)
}

/// The operator.
pub struct Sft {
    params: Params,
}

const TOKENS: In<TokenizedSample> = In::new("tokens", "samples to train on");
const TOKENIZER: FilesIn = FilesIn::new("tokenizer", "tokenizer", "the tokenizer the samples were made with");
const BASE: FilesIn = FilesIn::new("base", "model", "a model to go on from").optional();
const MODEL: FilesOut = FilesOut::new("model", "model", "the trained model in Hugging Face layout");
const STEPS: Out<TrainingStep> = Out::new("steps", "what was measured at each step");

/// Files of a checkpoint.
const WEIGHTS: &str = "weights.safetensors";
const MOMENTS: &str = "moments.safetensors";
const PROGRESS: &str = "progress.arrow";

impl Operator for Sft {
    const NAME: &'static str = "sft";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Trains a Qwen2 model on tokenised trajectories; observations are not trained. Goes on \
                                 from its last checkpoint exactly.";
    const INPUTS: &'static [Port] = &[TOKENS.port(), TOKENIZER.port(), BASE.port()];
    const OUTPUTS: &'static [Port] = &[MODEL.port(), STEPS.port()];
    const SEEDED: bool = true;
    const QUEUE: Queue = Queue::Gpu;
    type Params = Params;

    fn new(params: Params) -> Result<Self, ParamsError> {
        if let Some(shape) = &params.model {
            if shape.hidden.get() % shape.heads.get() != 0 {
                return Err(ParamsError::at("model", "`hidden` must be a multiple of `heads`"));
            }
            if (shape.hidden.get() / shape.heads.get()) % 2 != 0 {
                return Err(ParamsError::at("model", "the width of a head, `hidden` / `heads`, must be even"));
            }
            if shape.heads.get() % shape.kv_heads.get() != 0 {
                return Err(ParamsError::at("model", "`heads` must be a multiple of `kv_heads`"));
            }
        }
        Ok(Self { params })
    }

    fn split(&self) -> Split {
        Split::Whole
    }

    fn run(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        use_threads(self.params.threads);
        let device = device();
        cx.io.count("cuda", u64::from(device != Device::Cpu));
        let codec = Codec::load(&cx.file(&TOKENIZER, TOKENIZER_FILE)?.path)?;
        let data = Data::read(cx, &codec, self.params.heldout.get())?;
        let (model, config) = self.begin(cx, &codec, device)?;
        let mut training = Training::new(&self.params, &model, cx.seed("order"), &data);
        if let Some(checkpoint) = cx.io.newest_checkpoint()? {
            training.restore(&checkpoint.folder)?;
        }
        let steps = u64::from(self.params.steps.get());
        cx.progress.begin(Some(steps), "steps");
        cx.progress.at(training.done(), "");
        while training.done() < steps {
            if cx.stopping() {
                training.checkpoint(cx)?;
                return Err(OperatorError::interrupted());
            }
            let loss = training.step(&data, device).loss;
            training.check_moving()?;
            cx.progress.at(training.done(), &format!("loss {loss:.3}"));
            let due = training.done().is_multiple_of(u64::from(self.params.checkpoint_every.get()));
            if due && training.done() < steps {
                training.checkpoint(cx)?;
            }
        }
        cx.append(&STEPS, &training.log)?;
        export(cx, &model, &config, &codec)
    }
}

impl Sft {
    /// The model training begins with: the base, or a new one.
    fn begin(&self, cx: &UnitContext<'_>, codec: &Codec, device: Device) -> Result<(Qwen2, Config), OperatorError> {
        let base = cx.io.is_bound(BASE.port().name);
        let model = match (&self.params.model, base) {
            (Some(_), true) => {
                return Err(OperatorError::input("both a `model` shape and a `base` model are given")
                    .hint("keep the one that training is to begin with"));
            }
            (None, false) => {
                return Err(OperatorError::input("there is neither a `model` shape nor a `base` model")
                    .hint("add [stages.NAME.params.model] with the shape of a new model, or bind `base`"));
            }
            (None, true) => {
                let (config, weights) = (cx.file(&BASE, model::CONFIG_FILE)?, cx.file(&BASE, model::WEIGHTS_FILE)?);
                model::load(&config.path, &weights.path, device)?
            }
            (Some(shape), false) => {
                let whole = |number: NonZeroU32| i64::from(number.get());
                let config = Config {
                    vocabulary: codec.size() as i64,
                    hidden: whole(shape.hidden),
                    intermediate: whole(shape.intermediate),
                    layers: whole(shape.layers),
                    heads: whole(shape.heads),
                    kv_heads: whole(shape.kv_heads),
                    head: whole(shape.hidden) / whole(shape.heads),
                    rope_theta: shape.rope_theta.get(),
                    norm_epsilon: 1e-6,
                    tied: true,
                    max_positions: 32_768,
                };
                shape.start.model(config, cx.seed("weights"), device)
            }
        };
        if (model.config.vocabulary as usize) < codec.size() {
            return Err(OperatorError::input(format!(
                "the tokenizer has {} ids, the model only {}",
                codec.size(),
                model.config.vocabulary
            ))
            .hint("use the tokenizer that belongs to the model"));
        }
        let config = model.config.clone();
        Ok((model, config))
    }
}

/// Samples to train on and samples to measure.
struct Data {
    train: Vec<Sample>,
    heldout: Vec<Sample>,
}

impl Data {
    fn read(cx: &UnitContext<'_>, codec: &Codec, heldout: f64) -> Result<Self, OperatorError> {
        let seed = cx.seed("heldout");
        let mut data = Self { train: Vec::new(), heldout: Vec::new() };
        while let Some(rows) = cx.next(&TOKENS)? {
            for row in rows {
                if row.tokenizer != codec.digest() {
                    return Err(OperatorError::input(format!(
                        "sample `{}` was made with another tokenizer than the one that is bound",
                        row.sample_id
                    ))
                    .hint("bind `tokenizer` to the stage that `tokenize` reads it from"));
                }
                let held = share(seed, &row.sample_id) < heldout;
                let sample = Sample {
                    id: row.sample_id,
                    ids: row.input_ids.into_iter().map(i64::from).collect(),
                    mask: row.loss_mask,
                    weight: row.weight,
                };
                if held { data.heldout.push(sample) } else { data.train.push(sample) }
            }
        }
        if data.train.is_empty() {
            return Err(OperatorError::input("there are 0 samples to train on")
                .hint("the stages before this one kept nothing: `coa report` shows where rows were lost"));
        }
        cx.io.count("train_samples", data.train.len() as u64);
        cx.io.count("heldout_samples", data.heldout.len() as u64);
        Ok(data)
    }
}

/// A training on its way.
struct Training<'a> {
    params: &'a Params,
    model: &'a Qwen2,
    weights: Vec<(String, Tensor)>,
    optimizer: Optimizer,
    order: Order,
    log: Vec<TrainingStep>,
}

impl<'a> Training<'a> {
    fn new(params: &'a Params, model: &'a Qwen2, seed: u64, data: &Data) -> Self {
        let weights: Vec<(String, Tensor)> =
            model.weights().iter().map(|(name, tensor)| (name.clone(), tensor.set_requires_grad(true))).collect();
        let settings = Settings {
            method: params.optimizer,
            learning_rate: params.learning_rate.get(),
            muon_learning_rate: params.muon_learning_rate.get(),
            betas: (params.beta1.get(), params.beta2.get()),
            weight_decay: params.weight_decay.get(),
        };
        let optimizer = Optimizer::new(&weights, settings);
        let lengths = data.train.iter().map(|sample| sample.ids.len()).collect();
        let order = Order::new(seed, lengths, params.batch.get() as usize);
        Self { params, model, weights, optimizer, order, log: Vec::new() }
    }

    /// Steps done.
    fn done(&self) -> u64 {
        self.log.len() as u64
    }

    fn step(&mut self, data: &Data, device: Device) -> &TrainingStep {
        let began = Instant::now();
        let step = self.done();
        let steps = u64::from(self.params.steps.get());
        let (epoch, numbers) = self.order.step(step);
        let samples: Vec<&Sample> = numbers.iter().map(|number| &data.train[*number]).collect();
        let weight: f64 = samples.iter().map(|sample| sample.trained_weight()).sum();
        let (mut loss, mut length, mut skipped) = (0.0, 0.0, true);
        let factor = self.params.schedule.factor(step, u64::from(self.params.warm_up), steps);
        if weight > 0.0 {
            let batch = Batch::new(&samples, 0, device);
            let value = cross_entropy(self.model, &batch, weight);
            loss = value.double_value(&[]);
            let inputs: Vec<&Tensor> = self.weights.iter().map(|(_, tensor)| tensor).collect();
            let mut gradients = Tensor::run_backward(&[&value], &inputs, false, false);
            length = optimizer::norm(&gradients);
            skipped = !(loss.is_finite() && length.is_finite());
            if !skipped {
                optimizer::clip(&mut gradients, length, self.params.clip.get());
                self.optimizer.step(&self.weights, &gradients, factor);
            }
        }
        let every = u64::from(self.params.measure_every.get());
        let measured = (step + 1).is_multiple_of(every) || step + 1 == steps;
        let heldout_loss = if measured { self.heldout(data, device) } else { None };
        self.log.push(TrainingStep {
            step: step as i64 + 1,
            epoch: epoch as i64,
            loss,
            heldout_loss,
            learning_rate: self.params.learning_rate.get() * factor,
            gradient_norm: length,
            samples: samples.len() as i64,
            tokens: samples.iter().map(|sample| sample.ids.len() as i64).sum(),
            trained_tokens: samples.iter().map(|sample| sample.trained() as i64).sum(),
            skipped,
            seconds: began.elapsed().as_secs_f64(),
        });
        self.log.last().expect("just pushed")
    }

    /// Mean cross-entropy over the trained tokens of the held-out samples.
    fn heldout(&self, data: &Data, device: Device) -> Option<f64> {
        let _no_grad = tch::no_grad_guard();
        let weight: f64 = data.heldout.iter().map(Sample::trained_weight).sum();
        if weight == 0.0 {
            return None;
        }
        let mut samples: Vec<&Sample> = data.heldout.iter().collect();
        samples.sort_by_key(|sample| sample.ids.len());
        let parts = samples.chunks(self.params.batch.get() as usize);
        Some(parts.map(|part| cross_entropy(self.model, &Batch::new(part, 0, device), weight).double_value(&[])).sum())
    }

    /// Saves everything the next step depends on: weights, moments, and the log, whose length is the number of steps.
    fn checkpoint(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        if self.log.is_empty() {
            return Ok(());
        }
        let folder = tempfile::tempdir_in(cx.scratch)?;
        model::write_tensors(&folder.path().join(WEIGHTS), &self.weights)?;
        model::write_tensors(&folder.path().join(MOMENTS), &self.optimizer.state())?;
        write_log(&self.log, &folder.path().join(PROGRESS))?;
        cx.io.save_checkpoint(self.done(), folder.path())
    }

    fn restore(&mut self, folder: &Path) -> Result<(), OperatorError> {
        let mut found = model::read_tensors(&folder.join(WEIGHTS))?;
        {
            let _no_grad = tch::no_grad_guard();
            for (name, weight) in &mut self.weights {
                let saved = found.remove(name).filter(|saved| saved.size() == weight.size());
                let saved =
                    saved.ok_or_else(|| OperatorError::input(format!("the checkpoint has no usable `{name}`")))?;
                weight.copy_(&saved);
            }
        }
        self.optimizer.restore(model::read_tensors(&folder.join(MOMENTS))?)?;
        self.log = read_log(&folder.join(PROGRESS))?;
        Ok(())
    }

    /// Fails where no step has changed anything for a while: what made one loss infinite makes the next one so.
    fn check_moving(&self) -> Result<(), OperatorError> {
        let idle = self.log.iter().rev().take_while(|step| step.skipped && step.trained_tokens > 0).count();
        if idle < IDLE_STEPS {
            return Ok(());
        }
        let step = self.done();
        Err(OperatorError::input(format!("no step had a finite loss and gradient from {} on", step + 1 - idle as u64))
            .hint("lower `learning_rate` or `clip`, or look for damaged weights in `base`"))
    }
}

/// Steps in a row without a finite loss and gradient after which training is given up.
const IDLE_STEPS: usize = 20;

/// As Arrow, which keeps every bit of a number: a loss may be infinite.
fn write_log(log: &[TrainingStep], path: &Path) -> Result<(), OperatorError> {
    let batch = encode(log)?;
    let written = FileWriter::try_new(File::create(path)?, &batch.schema()).and_then(|mut writer| {
        writer.write(&batch)?;
        writer.finish()
    });
    written.map_err(|error| OperatorError::environment("the progress cannot be written").because(error))
}

fn read_log(path: &Path) -> Result<Vec<TrainingStep>, OperatorError> {
    let damaged = |error: ArrowError| OperatorError::input("the checkpoint's progress cannot be read").because(error);
    let mut log = Vec::new();
    for batch in FileReader::try_new(File::open(path)?, None).map_err(damaged)? {
        log.extend(decode(&batch.map_err(damaged)?)?);
    }
    Ok(log)
}

/// The model in Hugging Face layout.
fn export(cx: &UnitContext<'_>, model: &Qwen2, config: &Config, codec: &Codec) -> Result<(), OperatorError> {
    let _no_grad = tch::no_grad_guard();
    let weights = cx.scratch.join(model::WEIGHTS_FILE);
    let detached: Vec<(String, Tensor)> =
        model.weights().iter().map(|(name, tensor)| (name.clone(), tensor.detach().to_kind(Kind::Float))).collect();
    model::write_tensors(&weights, &detached)?;
    cx.put_file(&MODEL, model::WEIGHTS_FILE, &weights)?;
    cx.put_bytes(&MODEL, model::CONFIG_FILE, config.to_json(codec.turn_end(), codec.pad()).as_bytes())?;
    let generation = model::generation_config(codec.turn_end(), codec.pad());
    cx.put_bytes(&MODEL, model::GENERATION_FILE, generation.as_bytes())?;
    for file in cx.files(&TOKENIZER)? {
        if [TOKENIZER_FILE, TOKENIZER_CONFIG].contains(&file.name.as_str()) {
            cx.put_file(&MODEL, &file.name, &file.path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
        for optimizer in ["adamw", "muon"] {
            let sft: Sft = operator(params(&json!({"optimizer": optimizer})));
            let straight = fixture.io();
            straight.run(&sft, 1).unwrap();
            let (weights, log) = result(&straight);
            assert_eq!(log.len(), 20);

            let broken = fixture.io();
            let never = AtomicBool::new(false);
            let died = catch_unwind(AssertUnwindSafe(|| broken.run_watched(&sft, 1, &Dies(15), &never)));
            assert!(died.is_err());
            broken.run(&sft, 1).unwrap();
            assert_eq!(result(&broken), (weights.clone(), log), "{optimizer}");

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
}
