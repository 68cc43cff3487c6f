//! Supervised fine-tuning: next-token training on tokenised trajectories, observations masked.

mod best;
mod params;
#[cfg(test)]
mod tests;
mod training;

use std::num::NonZeroU32;

use operators::tokens::{Codec, TOKENIZER_CONFIG, TOKENIZER_FILE};
use operators::{
    FilesIn, FilesOut, In, Operator, OperatorError, Out, ParamsError, Port, Queue, Split, UnitContext, share,
};
use schemas::{TokenizedSample, TrainingStep};
use tch::{Device, Kind, Tensor};

use crate::batch::Sample;
use crate::device::{check_threads, device, use_threads};
use crate::model::{self, Config, Qwen2};

pub use params::{Keep, Params, Shape};
use training::Training;

/// The operator.
pub struct Sft {
    params: Params,
}

const TOKENS: In<TokenizedSample> = In::new("tokens", "samples to train on");
const TOKENIZER: FilesIn = FilesIn::new("tokenizer", "tokenizer", "the tokenizer the samples were made with");
const BASE: FilesIn = FilesIn::new("base", "model", "a model to go on from").optional();
const MODEL: FilesOut = FilesOut::new("model", "model", "the trained model in Hugging Face layout");
const STEPS: Out<TrainingStep> = Out::new("steps", "what was measured at each step");

impl Operator for Sft {
    const NAME: &'static str = "sft";
    const VERSION: u32 = 2;
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
                return Err(ParamsError::at("model.hidden", "`hidden` must be a multiple of `heads`"));
            }
            if (shape.hidden.get() / shape.heads.get()) % 2 != 0 {
                return Err(ParamsError::at("model.hidden", "the width of a head, `hidden` / `heads`, must be even"));
            }
            if shape.heads.get() % shape.kv_heads.get() != 0 {
                return Err(ParamsError::at("model.heads", "`heads` must be a multiple of `kv_heads`"));
            }
        }
        if params.heldout.get() == 0.0 {
            let measured = [("keep", params.keep == Keep::Best), ("patience", params.patience.is_some())];
            if let Some((key, _)) = measured.into_iter().find(|(_, asked)| *asked) {
                return Err(ParamsError::at(key, "needs a held-out loss: give `heldout` a share above 0"));
            }
        }
        for (key, beta) in [("beta1", params.beta1), ("beta2", params.beta2)] {
            if beta.get() >= 1.0 {
                return Err(ParamsError::at(key, "must be below 1: with 1 the moment never moves"));
            }
        }
        check_threads(params.threads)?;
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
        while training.done() < steps && !training.is_out_of_patience() {
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
        training.check_finite()?;
        cx.append(&STEPS, &training.log)?;
        let (step, weights) = training.kept();
        cx.io.count("model_of_step", step);
        cx.io.count("skipped_steps", training.log.iter().filter(|step| step.skipped).count() as u64);
        export(cx, &weights, &config, &codec)
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

/// The model in Hugging Face layout.
fn export(
    cx: &UnitContext<'_>,
    weights: &[(String, Tensor)],
    config: &Config,
    codec: &Codec,
) -> Result<(), OperatorError> {
    let _no_grad = tch::no_grad_guard();
    let file = cx.scratch.join(model::WEIGHTS_FILE);
    let weights: Vec<(String, Tensor)> =
        weights.iter().map(|(name, tensor)| (name.clone(), tensor.to_kind(Kind::Float))).collect();
    model::write_tensors(&file, &weights)?;
    cx.put_file(&MODEL, model::WEIGHTS_FILE, &file)?;
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
