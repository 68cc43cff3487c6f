//! Cross-entropy over the tokens that are trained, and only those.
//!
//! ```text
//! L = sum over t of w_t (-log p(x_t | x_<t))  /  sum over t of w_t
//! ```
//!
//! (Chain-of-Agents, equation 7, with the normalisation of the common trainers.) Both sums run over the whole optimizer
//! step, so cutting a step into packs changes nothing. The logits of a position that predicts an untrained token are
//! never computed, and those of trained ones a few rows at a time, so a long pack over a large vocabulary takes no more
//! memory than a short one.

use tch::{Kind, Tensor};

use crate::batch::Batch;
use crate::model::Qwen2;

/// Logits that are in memory at once: 128 MiB of float32.
const LOGITS_AT_ONCE: i64 = 1 << 25;

/// A loss, with its gradients at the hidden states it was taken from and at the output head.
pub struct HeadGradient {
    /// In nats.
    pub loss: f64,
    /// Of the shape of the hidden states, (rows, hidden).
    pub hidden: Tensor,
    /// Of the shape of the head, (vocabulary, hidden), in float32.
    pub head: Tensor,
}

/// Weighted sum of the cross-entropies of a batch, in nats, divided by `denominator`. A batch without a trained token
/// gives 0.
pub fn cross_entropy(model: &Qwen2, batch: &Batch, denominator: f64) -> f64 {
    let _no_grad = tch::no_grad_guard();
    if batch.is_idle() {
        return 0.0;
    }
    let hidden = model.packed(&batch.ids, &batch.lengths).index_select(0, &batch.predicting);
    chunks(model, &hidden, batch, LOGITS_AT_ONCE).map(|chunk| chunk.loss(model)).sum::<f64>() / denominator
}

/// [`cross_entropy`] of the hidden states of `batch.predicting`, and its gradients.
///
/// ```text
/// dL/d logits_tv = w_t (p_tv - [v = x_t]) / denominator
/// ```
pub fn cross_entropy_gradient(model: &Qwen2, hidden: &Tensor, batch: &Batch, denominator: f64) -> HeadGradient {
    gradient_by_chunks(model, hidden, batch, denominator, LOGITS_AT_ONCE)
}

fn gradient_by_chunks(model: &Qwen2, hidden: &Tensor, batch: &Batch, denominator: f64, at_once: i64) -> HeadGradient {
    let _no_grad = tch::no_grad_guard();
    let mut loss = 0.0;
    let mut by_hidden = Vec::new();
    let mut by_head = model.head().zeros_like().to_kind(Kind::Float);
    for chunk in chunks(model, hidden, batch, at_once) {
        let (value, by_logits) = chunk.gradient(model, denominator);
        loss += value;
        let by_logits = by_logits.to_kind(model.head().kind());
        by_hidden.push(by_logits.matmul(model.head()));
        // Summed in float32: rounding every chunk's product would bias the sum.
        by_head += by_logits.tr().matmul(&chunk.hidden);
    }
    HeadGradient { loss: loss / denominator, hidden: Tensor::cat(&by_hidden, 0), head: by_head }
}

/// Some rows of hidden states with what they predict.
struct Chunk {
    hidden: Tensor,
    targets: Tensor,
    weights: Tensor,
}

fn chunks<'a>(model: &Qwen2, hidden: &'a Tensor, batch: &'a Batch, at_once: i64) -> impl Iterator<Item = Chunk> + 'a {
    let (rows, step) = (hidden.size()[0], (at_once / model.config.vocabulary).max(1));
    (0..rows).step_by(step as usize).map(move |start| {
        let part = |tensor: &Tensor| tensor.narrow(0, start, step.min(rows - start));
        Chunk { hidden: part(hidden), targets: part(&batch.targets).unsqueeze(1), weights: part(&batch.weights) }
    })
}

impl Chunk {
    /// Logits in float32, and the weighted sum of the losses in float64.
    fn forward(&self, model: &Qwen2) -> (Tensor, Tensor, f64) {
        let logits = model.logits(&self.hidden).to_kind(Kind::Float);
        let normaliser = logits.logsumexp(&[1_i64][..], true);
        let losses = (&normaliser - logits.gather(1, &self.targets, false)).squeeze_dim(1);
        let loss = (losses * &self.weights).sum(Kind::Double).double_value(&[]);
        (logits, normaliser, loss)
    }

    fn loss(&self, model: &Qwen2) -> f64 {
        self.forward(model).2
    }

    /// The loss and its gradient at the logits, which takes their place in memory.
    fn gradient(&self, model: &Qwen2, denominator: f64) -> (f64, Tensor) {
        let (mut logits, normaliser, loss) = self.forward(model);
        let mut gradient = logits.g_sub_(&normaliser).exp_();
        let ones = Tensor::full_like(&normaliser, -1.0);
        let _ = gradient.scatter_add_(1, &self.targets, &ones);
        let _ = gradient.g_mul_(&(&self.weights / denominator).unsqueeze(1));
        (loss, gradient)
    }
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
    fn the_loss_is_the_weighted_mean_over_trained_tokens_however_they_are_packed() {
        let model = model();
        let samples = [
            sample(&[1, 2, 3, 4, 5], &[false, false, true, true, false], 1.0),
            sample(&[6, 7, 8], &[false, true, true], 2.0),
        ];
        let all: Vec<&Sample> = samples.iter().collect();
        let weight: f64 = all.iter().map(|sample| sample.trained_weight()).sum();
        assert_eq!(weight, 6.0);
        let together = cross_entropy(&model, &Batch::new(&all, Device::Cpu), weight);
        let apart: f64 =
            all.iter().map(|sample| cross_entropy(&model, &Batch::new(&[sample], Device::Cpu), weight)).sum();
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

    /// Four rows with 60, 48, 24 and 4 trained tokens: the mean over all tokens, not the mean of the rows' means.
    #[test]
    fn the_mean_is_over_tokens_and_not_over_packs() {
        let model = model();
        let samples: Vec<Sample> = [60_i64, 48, 24, 4]
            .iter()
            .map(|trained| {
                let ids: Vec<i64> = (0..=*trained).map(|at| (at * at + trained) % 20).collect();
                let mask: Vec<bool> = (0..=*trained).map(|at| at > 0).collect();
                sample(&ids, &mask, 1.0)
            })
            .collect();
        let of = |samples: &[&Sample], count| cross_entropy(&model, &Batch::new(samples, Device::Cpu), count);
        let together = of(&samples.iter().collect::<Vec<_>>(), 136.0);
        let packs: f64 = samples.iter().map(|sample| of(&[sample], 136.0)).sum();
        let means: f64 = samples.iter().map(|sample| of(&[sample], sample.trained_weight())).sum::<f64>() / 4.0;
        assert!((together - packs).abs() < 1e-6);
        assert!((together - means).abs() > 1e-4, "{together} {means}");
    }

    /// 64 rows, half of them trained, over 500 ids: in one piece, by chunks, and by libtorch's own backward.
    #[test]
    fn chunks_give_the_gradients_of_the_whole() {
        tch::manual_seed(5);
        let config = Config { vocabulary: 500, ..model().config };
        let model = Start::Normal.model(config, 2, Device::Cpu);
        let ids: Vec<i64> = (0..65).map(|at| (at * 37) % 500).collect();
        let mask: Vec<bool> = (0..65).map(|at| at % 2 == 1).collect();
        let batch = Batch::new(&[&sample(&ids, &mask, 1.5)], Device::Cpu);
        let rows = batch.predicting.numel() as i64;
        let hidden = Tensor::randn([rows, 16], (Kind::Float, Device::Cpu));
        let whole = gradient_by_chunks(&model, &hidden, &batch, 48.0, i64::MAX);
        let chunked = gradient_by_chunks(&model, &hidden, &batch, 48.0, 500 * 5);

        let hidden = hidden.set_requires_grad(true);
        let head = model.head().detach().set_requires_grad(true);
        let log_probs = hidden.linear(&head, None::<&Tensor>).log_softmax(-1, Kind::Float);
        let chosen = log_probs.gather(1, &batch.targets.unsqueeze(1), false).squeeze_dim(1);
        let loss = -(chosen * &batch.weights).sum(Kind::Float) / 48.0;
        let expected = Tensor::run_backward(&[&loss], &[&hidden, &head], false, false);
        for found in [whole, chunked] {
            assert!((found.loss - loss.double_value(&[])).abs() < 1e-6);
            for (found, expected) in [(&found.hidden, &expected[0]), (&found.head, &expected[1])] {
                let difference = (found - expected).abs().max().double_value(&[]);
                assert!(difference < 1e-7, "{difference}");
            }
        }
    }

    #[test]
    fn nothing_to_train_is_zero_and_no_nan() {
        let model = model();
        let only = sample(&[1, 2, 3], &[true, false, false], 1.0);
        // The first token of a sample is never predicted.
        assert_eq!(only.trained_weight(), 0.0);
        assert_eq!(cross_entropy(&model, &Batch::new(&[&only], Device::Cpu), 1.0), 0.0);
    }
}
