//! From a loss at the hidden states to the gradients of all weights.
//!
//! A loss says what it wants of the hidden states it looked at ([`HeadGradient`]); what it is, cross-entropy or a
//! policy's, does not matter here.
//!
//! With *activation checkpointing* (Chen et al., "Training deep nets with sublinear memory cost", 2016) only the input of
//! each layer is kept, and the layer is run once more when its turn comes: one more forward pass, and memory for one
//! layer instead of all. The gradients are the same, bit for bit.

use tch::{Kind, Tensor};

use crate::batch::Batch;
use crate::loss::HeadGradient;
use crate::model::{Qwen2, Sequences};

/// Sum of the gradients of packs, in float32, in the order of the model's weights.
pub struct Gradients {
    sums: Vec<Tensor>,
}

impl Gradients {
    /// All 0.
    pub fn new(model: &Qwen2) -> Self {
        let _no_grad = tch::no_grad_guard();
        Self { sums: model.weights().iter().map(|(_, weight)| weight.zeros_like().to_kind(Kind::Float)).collect() }
    }

    /// The sums, in the order of the model's weights.
    pub fn into_sums(self) -> Vec<Tensor> {
        self.sums
    }

    /// Adds a pack's gradients and returns its loss. `head` is given the hidden states of `batch.predicting`, of shape
    /// (rows, hidden). A pack that trains nothing adds nothing.
    pub fn add(
        &mut self,
        model: &Qwen2,
        batch: &Batch,
        activation_checkpointing: bool,
        head: impl FnOnce(&Tensor) -> HeadGradient,
    ) -> f64 {
        if batch.is_idle() {
            return 0.0;
        }
        let sequences = model.sequences(&batch.lengths);
        if activation_checkpointing {
            self.add_by_layers(model, batch, &sequences, head)
        } else {
            self.add_at_once(model, batch, &sequences, head)
        }
    }

    fn add_at_once(
        &mut self,
        model: &Qwen2,
        batch: &Batch,
        sequences: &Sequences,
        head: impl FnOnce(&Tensor) -> HeadGradient,
    ) -> f64 {
        let mut x = model.embed(&batch.ids);
        for layer in 0..model.config.layers {
            x = model.packed_layer(layer, &x, sequences);
        }
        let rows = model.top(&x).index_select(0, &batch.predicting);
        let wanted = head(&rows.detach());
        // The head has its gradient already, unless it is the embedding, which has this one beside.
        let inputs = model.weights().len() - usize::from(!model.config.tied);
        let inputs: Vec<&Tensor> = model.weights()[..inputs].iter().map(|(_, weight)| weight).collect();
        let found = Tensor::run_backward(&[&rows * &wanted.hidden], &inputs, false, false);
        self.add_to(0, &found);
        self.add_head(model, &wanted.head);
        wanted.loss
    }

    fn add_by_layers(
        &mut self,
        model: &Qwen2,
        batch: &Batch,
        sequences: &Sequences,
        head: impl FnOnce(&Tensor) -> HeadGradient,
    ) -> f64 {
        let mut entered = Vec::new();
        let last = {
            let _no_grad = tch::no_grad_guard();
            let mut x = model.embed(&batch.ids);
            for layer in 0..model.config.layers {
                entered.push(x.shallow_clone());
                x = model.packed_layer(layer, &x, sequences);
            }
            x
        };
        let layers = model.config.layers as usize;
        let of_layer = |layer: usize| model.layer_weights(layer as i64);
        let norm = of_layer(layers - 1).end;

        let last = last.set_requires_grad(true);
        let rows = model.top(&last).index_select(0, &batch.predicting);
        let wanted = head(&rows.detach());
        let root = &rows * &wanted.hidden;
        let mut found = Tensor::run_backward(&[root], &[&last, &model.weights()[norm].1], false, false);
        self.add_to(norm, &found[1..]);
        let mut above = found.swap_remove(0);
        for layer in (0..layers).rev() {
            let x = entered.pop().expect("one for each layer").set_requires_grad(true);
            let y = model.packed_layer(layer as i64, &x, sequences);
            let weights = of_layer(layer);
            let mut inputs = vec![&x];
            inputs.extend(model.weights()[weights.clone()].iter().map(|(_, weight)| weight));
            // The root's own value does not matter: its derivative at `y` is `above`.
            let mut found = Tensor::run_backward(&[&y * &above], &inputs, false, false);
            self.add_to(weights.start, &found[1..]);
            above = found.swap_remove(0);
        }
        let embedded = model.embed(&batch.ids);
        let found = Tensor::run_backward(&[&embedded * &above], &[&model.weights()[0].1], false, false);
        self.add_to(0, &found);
        self.add_head(model, &wanted.head);
        wanted.loss
    }

    fn add_to(&mut self, first: usize, found: &[Tensor]) {
        let _no_grad = tch::no_grad_guard();
        for (sum, gradient) in self.sums[first..].iter_mut().zip(found) {
            *sum += gradient;
        }
    }

    fn add_head(&mut self, model: &Qwen2, gradient: &Tensor) {
        let head = if model.config.tied { 0 } else { self.sums.len() - 1 };
        self.add_to(head, std::slice::from_ref(gradient));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Sample;
    use crate::loss::{cross_entropy, cross_entropy_gradient};
    use crate::model::{Config, Start};
    use tch::Device;

    fn model(tied: bool) -> Qwen2 {
        let config = Config {
            vocabulary: 40,
            hidden: 32,
            intermediate: 48,
            layers: 3,
            heads: 4,
            kv_heads: 2,
            head: 8,
            rope_theta: 1e4,
            norm_epsilon: 1e-6,
            tied,
            max_positions: 64,
        };
        let model = Start::Normal.model(config, 3, Device::Cpu);
        model.weights().iter().for_each(|(_, weight)| drop(weight.set_requires_grad(true)));
        model
    }

    fn samples() -> Vec<Sample> {
        let sample = |length: i64, weight| Sample {
            id: String::new(),
            ids: (0..length).map(|at| (at * 7 + length) % 40).collect(),
            mask: (0..length).map(|at| at % 3 != 0).collect(),
            weight,
        };
        vec![sample(12, 1.0), sample(5, 2.0), sample(17, 0.5)]
    }

    fn gradients(model: &Qwen2, packs: &[&[&Sample]], checkpointing: bool) -> (f64, Vec<Tensor>) {
        let mut gradients = Gradients::new(model);
        let mut loss = 0.0;
        for pack in packs {
            let batch = Batch::new(pack, Device::Cpu);
            loss +=
                gradients.add(model, &batch, checkpointing, |rows| cross_entropy_gradient(model, rows, &batch, 9.0));
        }
        (loss, gradients.into_sums())
    }

    fn largest_difference(a: &[Tensor], b: &[Tensor]) -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - b).abs().max().double_value(&[])).fold(0.0, f64::max)
    }

    #[test]
    fn with_checkpointing_they_are_the_same_bits() {
        for tied in [true, false] {
            let (model, samples) = (model(tied), samples());
            let all: Vec<&Sample> = samples.iter().collect();
            let (loss, plain) = gradients(&model, &[&all], false);
            let (again, checkpointed) = gradients(&model, &[&all], true);
            assert_eq!(loss, again);
            assert!(plain.iter().all(|gradient| gradient.abs().max().double_value(&[]) > 0.0));
            assert_eq!(largest_difference(&plain, &checkpointed), 0.0, "tied: {tied}");
        }
    }

    #[test]
    fn packs_add_up_and_an_idle_one_adds_nothing() {
        let (model, samples) = (model(true), samples());
        let [a, b, c] = &samples[..] else { unreachable!() };
        let idle = Sample { mask: vec![false; a.ids.len()], ..a.clone() };
        let (loss, together) = gradients(&model, &[&[a, b, c]], false);
        let (apart_loss, apart) = gradients(&model, &[&[c], &[&idle], &[b], &[a]], false);
        assert!((loss - apart_loss).abs() < 1e-6);
        assert!(largest_difference(&together, &apart) < 1e-6);
    }

    /// Along the gradient the loss changes by its squared length.
    #[test]
    fn they_are_what_finite_differences_give() {
        let (model, samples) = (model(true), samples());
        let all: Vec<&Sample> = samples.iter().collect();
        let batch = Batch::new(&all, Device::Cpu);
        let (_, gradients) = gradients(&model, &[&all], false);
        let squared: f64 = gradients.iter().map(|g| g.square().sum(Kind::Double).double_value(&[])).sum();
        let moved = |by: f64| {
            let weights = model.weights().iter().zip(&gradients);
            let weights = weights.map(|((name, weight), g)| (name.clone(), weight.detach() + g * by)).collect();
            cross_entropy(&Qwen2::new(model.config.clone(), weights), &batch, 9.0)
        };
        let step = 2e-3 / squared.sqrt();
        let slope = (moved(step) - moved(-step)) / (2.0 * step);
        assert!((slope / squared - 1.0).abs() < 1e-3, "{slope} {squared}");
    }
}
