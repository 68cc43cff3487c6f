//! Optimizers with state that can be saved and restored: every moment is a tensor with a name.

mod adamw;
mod muon;
mod schedule;

pub use adamw::AdamW;
pub use muon::Muon;
pub use schedule::Schedule;

use std::collections::BTreeMap;

use operators::OperatorError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

/// How weights are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// AdamW for every weight.
    Adamw,
    /// Muon for the matrices of the layers, AdamW for embeddings, norms and biases.
    Muon,
}

/// Learning rates and the like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// How weights are changed.
    pub method: Method,
    /// Learning rate of AdamW.
    pub learning_rate: f64,
    /// Learning rate of Muon.
    pub muon_learning_rate: f64,
    /// AdamW's decay rates of the first and second moment.
    pub betas: (f64, f64),
    /// Decoupled decay of matrices per unit of learning rate; norms, biases and embeddings do not decay.
    pub weight_decay: f64,
}

/// Changes a model's weights by their gradients.
pub struct Optimizer {
    adamw: AdamW,
    muon: Muon,
    by_muon: Vec<bool>,
    decays: Vec<bool>,
    settings: Settings,
}

impl Optimizer {
    /// An optimizer for these weights, without memory.
    pub fn new(weights: &[(String, Tensor)], settings: Settings) -> Self {
        let is_layer_matrix = |name: &str, tensor: &Tensor| tensor.dim() == 2 && name.contains(".layers.");
        let by_muon: Vec<bool> = weights
            .iter()
            .map(|(name, tensor)| settings.method == Method::Muon && is_layer_matrix(name, tensor))
            .collect();
        let decays = weights.iter().map(|(name, tensor)| is_layer_matrix(name, tensor)).collect();
        let share = |muon: bool| -> Vec<&(String, Tensor)> {
            weights.iter().zip(&by_muon).filter(|(_, by)| **by == muon).map(|(weight, _)| weight).collect()
        };
        let (adamw, muon) = (AdamW::new(&share(false), settings.betas), Muon::new(&share(true)));
        Self { adamw, muon, by_muon, decays, settings }
    }

    /// One step. `factor` scales both learning rates; gradients stand in the order of the weights.
    pub fn step(&mut self, weights: &[(String, Tensor)], gradients: &[Tensor], factor: f64) {
        let _no_grad = tch::no_grad_guard();
        self.adamw.begin_step();
        for (index, ((name, weight), gradient)) in weights.iter().zip(gradients).enumerate() {
            let decay = if self.decays[index] { self.settings.weight_decay } else { 0.0 };
            if self.by_muon[index] {
                self.muon.step(name, weight, gradient, self.settings.muon_learning_rate * factor, decay);
            } else {
                self.adamw.step(name, weight, gradient, self.settings.learning_rate * factor, decay);
            }
        }
    }

    /// Everything that is remembered between steps.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        self.adamw.state().into_iter().chain(self.muon.state()).collect()
    }

    /// Puts back what [`Self::state`] gave. Every moment must be there with its shape.
    pub fn restore(&mut self, mut state: BTreeMap<String, Tensor>) -> Result<(), OperatorError> {
        let expected = self.state();
        for (name, tensor) in &expected {
            let found = state.remove(name);
            match found {
                Some(found) if found.size() == tensor.size() => tensor.shallow_clone().copy_(&found),
                Some(found) => return Err(misfit(format!("`{name}` has shape {:?}", found.size()))),
                None => return Err(misfit(format!("`{name}` is missing"))),
            }
        }
        match state.keys().next() {
            Some(name) => Err(misfit(format!("`{name}` belongs to another optimizer"))),
            None => {
                self.adamw.count_steps();
                Ok(())
            }
        }
    }
}

fn misfit(why: String) -> OperatorError {
    OperatorError::input(format!("the checkpoint does not fit this training: {why}"))
        .hint("run the stage with `--force` to train anew")
}

/// L2 norm over all gradients, in float64.
pub fn norm(gradients: &[Tensor]) -> f64 {
    let squares: f64 = gradients.iter().map(|gradient| gradient.square().sum(Kind::Double).double_value(&[])).sum();
    squares.sqrt()
}

/// Scales gradients down so that their norm is at most `limit`: by min(1, limit / (norm + 1e-6)).
pub fn clip(gradients: &mut [Tensor], norm: f64, limit: f64) {
    let factor = limit / (norm + 1e-6);
    if factor < 1.0 {
        for gradient in gradients {
            let _ = gradient.g_mul_scalar_(factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked figures: norm 5, limit 1.
    #[test]
    fn gradients_are_clipped_by_their_common_norm() {
        let mut gradients = [Tensor::from_slice(&[3.0_f64]), Tensor::from_slice(&[4.0_f64])];
        let length = norm(&gradients);
        assert_eq!(length, 5.0);
        clip(&mut gradients, length, 1.0);
        assert!((gradients[0].double_value(&[0]) - 0.599_999_88).abs() < 1e-8);
        assert!((gradients[1].double_value(&[0]) - 0.799_999_84).abs() < 1e-8);
        let before = gradients[0].copy();
        clip(&mut gradients, 1.0, 10.0);
        assert!(gradients[0] == before, "a short gradient stays as it is");
    }
}
