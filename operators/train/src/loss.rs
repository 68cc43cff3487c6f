//! Cross-entropy over the tokens that are trained, and only those.
//!
//! ```text
//! L = sum over t of w_t (-log p(x_t | x_<t))  /  sum over t of w_t
//! ```
//!
//! (Chain-of-Agents, equation 7, with the normalisation of the common trainers.) Both sums run over the whole optimizer
//! step, so cutting a step into batches changes nothing. The logits of a position that predicts an untrained token are
//! never computed.

use tch::{Kind, Tensor};

use crate::batch::Batch;
use crate::model::Qwen2;

/// Weighted sum of the cross-entropies of a batch, in nats, divided by `denominator`.
///
/// A batch without a trained token gives 0, with a gradient of 0.
pub fn cross_entropy(model: &Qwen2, batch: &Batch, denominator: f64) -> Tensor {
    let hidden = model.hidden(&batch.ids);
    let width = model.config.hidden;
    let rows = hidden.view([-1, width]).index_select(0, &batch.predicting);
    let logits = model.logits(&rows).to_kind(Kind::Float);
    let chosen = logits.gather(1, &batch.targets.unsqueeze(1), false).squeeze_dim(1);
    let losses = logits.logsumexp(&[1_i64][..], false) - chosen;
    (losses * &batch.weights).sum(Kind::Float) / denominator
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Sample;
    use crate::model::{Config, Start};
    use tch::Device;

    fn model() -> Qwen2 {
        let config = Config {
            vocabulary: 20,
            hidden: 16,
            intermediate: 24,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head: 8,
            rope_theta: 1e4,
            norm_epsilon: 1e-6,
            tied: true,
            max_positions: 64,
        };
        Start::Normal.model(config, 1, Device::Cpu)
    }

    fn sample(ids: &[i64], mask: &[bool], weight: f64) -> Sample {
        Sample { id: String::new(), ids: ids.to_vec(), mask: mask.to_vec(), weight }
    }

    #[test]
    fn the_loss_is_the_weighted_mean_over_trained_tokens_however_they_are_batched() {
        let model = model();
        let samples = [
            sample(&[1, 2, 3, 4, 5], &[false, false, true, true, false], 1.0),
            sample(&[6, 7, 8], &[false, true, true], 2.0),
        ];
        let all: Vec<&Sample> = samples.iter().collect();
        let weight: f64 = all.iter().map(|sample| sample.trained_weight()).sum();
        assert_eq!(weight, 6.0);
        let together = cross_entropy(&model, &Batch::new(&all, 0, Device::Cpu), weight).double_value(&[]);
        let apart: f64 = all
            .iter()
            .map(|sample| cross_entropy(&model, &Batch::new(&[sample], 0, Device::Cpu), weight).double_value(&[]))
            .sum();
        assert!((together - apart).abs() < 1e-6);
        // By hand: a full soft-max at every position.
        let mut by_hand = 0.0;
        for sample in &samples {
            let ids = Tensor::from_slice(&sample.ids).unsqueeze(0);
            let log_probs = model.logits(&model.hidden(&ids)).log_softmax(-1, Kind::Float);
            for t in 1..sample.ids.len() {
                if sample.mask[t] {
                    by_hand -= sample.weight * log_probs.double_value(&[0, t as i64 - 1, sample.ids[t]]);
                }
            }
        }
        assert!((together - by_hand / 6.0).abs() < 1e-6, "{together} {}", by_hand / 6.0);
    }

    #[test]
    fn nothing_to_train_is_zero_and_no_nan() {
        let model = model();
        let only = sample(&[1, 2, 3], &[true, false, false], 1.0);
        // The first token of a sample is never predicted.
        assert_eq!(only.trained_weight(), 0.0);
        let loss = cross_entropy(&model, &Batch::new(&[&only], 0, Device::Cpu), 1.0);
        assert_eq!(loss.double_value(&[]), 0.0);
    }
}
