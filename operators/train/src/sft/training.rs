//! A training on its way: its steps, what it saves of itself, and when it is given up.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use arrow::error::ArrowError;
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::FileWriter;
use operators::{OperatorError, UnitContext};
use schemas::{TrainingStep, decode, encode};
use tch::{Device, Tensor};

use super::best::Best;
use super::{Data, Keep, Params};
use crate::backward::Gradients;
use crate::batch::{Batch, Order, Sample};
use crate::loss::{cross_entropy, cross_entropy_gradient};
use crate::model::{self, Qwen2};
use crate::optimizer::{self, Optimizer, Settings};
use crate::packing::best_fit;

/// Files of a checkpoint.
const WEIGHTS: &str = "weights.safetensors";
const MOMENTS: &str = "moments.safetensors";
const PROGRESS: &str = "progress.arrow";
const BEST: &str = "best.safetensors";

/// A training on its way.
pub(super) struct Training<'a> {
    params: &'a Params,
    model: &'a Qwen2,
    weights: Vec<(String, Tensor)>,
    optimizer: Optimizer,
    order: Order,
    best: Option<Best>,
    pub(super) log: Vec<TrainingStep>,
}

impl<'a> Training<'a> {
    pub(super) fn new(params: &'a Params, model: &'a Qwen2, seed: u64, data: &Data) -> Self {
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
        let best = (params.keep == Keep::Best).then(Best::default);
        Self { params, model, weights, optimizer, order, best, log: Vec::new() }
    }

    /// Steps done.
    pub(super) fn done(&self) -> u64 {
        self.log.len() as u64
    }

    pub(super) fn step(&mut self, data: &Data, device: Device) -> &TrainingStep {
        let began = Instant::now();
        let step = self.done();
        let steps = u64::from(self.params.steps.get());
        let (epoch, numbers) = self.order.step(step);
        let samples: Vec<&Sample> = numbers.iter().map(|number| &data.train[*number]).collect();
        let weight: f64 = samples.iter().map(|sample| sample.trained_weight()).sum();
        let (mut loss, mut length, mut skipped) = (0.0, 0.0, true);
        let factor = self.params.schedule.factor(step, u64::from(self.params.warm_up), steps);
        if weight > 0.0 {
            let mut gradients = Gradients::new(self.model);
            for batch in self.packs(&samples, device) {
                loss += gradients.add(self.model, &batch, self.params.activation_checkpointing, |rows| {
                    cross_entropy_gradient(self.model, rows, &batch, weight)
                });
            }
            let mut gradients = gradients.into_sums();
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
        if let (Some(best), Some(loss)) = (&mut self.best, heldout_loss) {
            best.offer(step + 1, loss, &self.weights);
        }
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

    /// The samples in packs, each made when its turn comes.
    fn packs<'s>(&self, samples: &'s [&'s Sample], device: Device) -> impl Iterator<Item = Batch> + use<'s> {
        let lengths: Vec<usize> = samples.iter().map(|sample| sample.ids.len()).collect();
        best_fit(&lengths, self.params.pack.get() as usize).into_iter().map(move |pack| {
            let pack: Vec<&Sample> = pack.into_iter().map(|number| samples[number]).collect();
            Batch::new(&pack, device)
        })
    }

    /// Mean cross-entropy over the trained tokens of the held-out samples.
    fn heldout(&self, data: &Data, device: Device) -> Option<f64> {
        let weight: f64 = data.heldout.iter().map(Sample::trained_weight).sum();
        if weight == 0.0 {
            return None;
        }
        let samples: Vec<&Sample> = data.heldout.iter().collect();
        Some(self.packs(&samples, device).map(|batch| cross_entropy(self.model, &batch, weight)).sum())
    }

    /// Whether the held-out loss has not fallen for as many measurements as the training has patience for.
    pub(super) fn is_out_of_patience(&self) -> bool {
        let Some(patience) = self.params.patience else { return false };
        let measured: Vec<f64> = self.log.iter().filter_map(|step| step.heldout_loss).collect();
        let least =
            measured.iter().copied().enumerate().reduce(|least, next| if next.1 < least.1 { next } else { least });
        least.is_some_and(|(at, _)| measured.len() - 1 - at >= patience.get() as usize)
    }

    /// The weights to hand on, and the step they are from: the last ones, or the best.
    pub(super) fn kept(&self) -> (u64, Vec<(String, Tensor)>) {
        let last = || self.weights.iter().map(|(name, weight)| (name.clone(), weight.detach())).collect();
        self.best.as_ref().and_then(Best::get).unwrap_or_else(|| (self.done(), last()))
    }

    /// Saves everything the next step depends on: weights, moments, and the log, whose length is the number of steps.
    pub(super) fn checkpoint(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        if self.log.is_empty() {
            return Ok(());
        }
        self.check_finite()?;
        let folder = tempfile::tempdir_in(cx.scratch)?;
        model::write_tensors(&folder.path().join(WEIGHTS), &self.weights)?;
        model::write_tensors(&folder.path().join(MOMENTS), &self.optimizer.state())?;
        write_log(&self.log, &folder.path().join(PROGRESS))?;
        if let Some((_, weights)) = self.best.as_ref().and_then(Best::get) {
            model::write_tensors(&folder.path().join(BEST), &weights)?;
        }
        cx.io.save_checkpoint(self.done(), folder.path())
    }

    pub(super) fn restore(&mut self, folder: &Path) -> Result<(), OperatorError> {
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
        if let Some(best) = &mut self.best {
            best.restore(&self.log, &folder.join(BEST))?;
        }
        Ok(())
    }

    /// Fails where no step has changed anything for a while: what made one loss infinite makes the next one so.
    pub(super) fn check_moving(&self) -> Result<(), OperatorError> {
        let idle = self.log.iter().rev().take_while(|step| step.skipped && step.trained_tokens > 0).count();
        if idle < IDLE_STEPS {
            return Ok(());
        }
        let step = self.done();
        Err(OperatorError::input(format!("no step had a finite loss and gradient from {} on", step + 1 - idle as u64))
            .hint("lower `learning_rate` or `clip`, or look for damaged weights in `base`"))
    }

    /// Fails where a weight is no number any more: such weights are neither saved nor handed on.
    pub(super) fn check_finite(&self) -> Result<(), OperatorError> {
        let _no_grad = tch::no_grad_guard();
        let broken = self.weights.iter().find(|(_, weight)| weight.isfinite().all().int64_value(&[]) == 0);
        let Some((name, _)) = broken else { return Ok(()) };
        Err(OperatorError::input(format!("after step {} the weights of `{name}` are not all finite", self.done()))
            .hint("lower `learning_rate`, and look at `gradient_norm` in the table `steps` of an earlier run"))
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
