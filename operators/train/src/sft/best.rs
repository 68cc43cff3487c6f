//! The weights with the least held-out loss so far.

use std::path::Path;

use operators::OperatorError;
use schemas::TrainingStep;
use tch::Tensor;

use crate::model;

/// A copy of the best weights. Of equal losses the first counts; one that is not a number never does.
#[derive(Default)]
pub(super) struct Best {
    found: Option<Found>,
}

struct Found {
    step: u64,
    loss: f64,
    weights: Vec<(String, Tensor)>,
}

impl Best {
    /// Takes a copy of `weights` if the loss they have after `step` is less than any before.
    pub(super) fn offer(&mut self, step: u64, loss: f64, weights: &[(String, Tensor)]) {
        if loss.is_finite() && self.found.as_ref().is_none_or(|best| loss < best.loss) {
            let weights = weights.iter().map(|(name, weight)| (name.clone(), weight.detach().copy())).collect();
            self.found = Some(Found { step, loss, weights });
        }
    }

    /// The step and its weights.
    pub(super) fn get(&self) -> Option<(u64, Vec<(String, Tensor)>)> {
        let copy = |(name, weight): &(String, Tensor)| (name.clone(), weight.shallow_clone());
        self.found.as_ref().map(|best| (best.step, best.weights.iter().map(copy).collect()))
    }

    /// Puts back what a checkpoint has; which step it is of is in the log.
    pub(super) fn restore(&mut self, log: &[TrainingStep], file: &Path) -> Result<(), OperatorError> {
        let measured = log.iter().filter_map(|step| step.heldout_loss.map(|loss| (step, loss)));
        let least = measured.filter(|(_, loss)| loss.is_finite()).reduce(|a, b| if b.1 < a.1 { b } else { a });
        self.found = match least {
            None => None,
            Some((step, loss)) => {
                let weights = model::read_tensors(file)?.into_iter().collect();
                Some(Found { step: step.step as u64, loss, weights })
            }
        };
        Ok(())
    }
}
