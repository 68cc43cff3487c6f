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

use super::{Data, Params};
use crate::batch::{Batch, Order, Sample};
use crate::loss::cross_entropy;
use crate::model::{self, Qwen2};
use crate::optimizer::{self, Optimizer, Settings};

/// Files of a checkpoint.
const WEIGHTS: &str = "weights.safetensors";
const MOMENTS: &str = "moments.safetensors";
const PROGRESS: &str = "progress.arrow";

/// A training on its way.
pub(super) struct Training<'a> {
    params: &'a Params,
    model: &'a Qwen2,
    weights: Vec<(String, Tensor)>,
    optimizer: Optimizer,
    order: Order,
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
        Self { params, model, weights, optimizer, order, log: Vec::new() }
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
    pub(super) fn checkpoint(&self, cx: &UnitContext<'_>) -> Result<(), OperatorError> {
        if self.log.is_empty() {
            return Ok(());
        }
        self.check_finite()?;
        let folder = tempfile::tempdir_in(cx.scratch)?;
        model::write_tensors(&folder.path().join(WEIGHTS), &self.weights)?;
        model::write_tensors(&folder.path().join(MOMENTS), &self.optimizer.state())?;
        write_log(&self.log, &folder.path().join(PROGRESS))?;
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
