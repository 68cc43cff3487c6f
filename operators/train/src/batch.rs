//! Samples, the order they are trained in, and batches as tensors.

use operators::seed;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tch::{Device, Kind, Tensor};

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its id.
    pub id: String,
    /// Token ids.
    pub ids: Vec<i64>,
    /// Which of them are trained. The first is never predicted, so never trained.
    pub mask: Vec<bool>,
    /// How much each of its trained tokens counts.
    pub weight: f64,
}

impl Sample {
    /// Trained tokens.
    pub fn trained(&self) -> usize {
        self.mask.iter().skip(1).filter(|trained| **trained).count()
    }

    /// Weight of its trained tokens.
    pub fn trained_weight(&self) -> f64 {
        self.weight * self.trained() as f64
    }
}

/// Samples as tensors, one after the other.
pub struct Batch {
    /// Ids, of shape (tokens).
    pub ids: Tensor,
    /// Tokens of each sample.
    pub lengths: Vec<i64>,
    /// Positions in `ids` that predict a trained token.
    pub predicting: Tensor,
    /// The token each of them predicts.
    pub targets: Tensor,
    /// How much each counts.
    pub weights: Tensor,
}

impl Batch {
    /// The first token of a sample is no target, so nothing is predicted across samples.
    pub fn new(samples: &[&Sample], device: Device) -> Self {
        let mut ids: Vec<i64> = Vec::new();
        let (mut predicting, mut targets, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for sample in samples {
            let start = ids.len();
            ids.extend(&sample.ids);
            for at in 1..sample.ids.len() {
                if sample.mask[at] {
                    predicting.push((start + at - 1) as i64);
                    targets.push(sample.ids[at]);
                    weights.push(sample.weight as f32);
                }
            }
        }
        Self {
            ids: Tensor::from_slice(&ids).to_device(device),
            lengths: samples.iter().map(|sample| sample.ids.len() as i64).collect(),
            predicting: Tensor::from_slice(&predicting).to_kind(Kind::Int64).to_device(device),
            targets: Tensor::from_slice(&targets).to_kind(Kind::Int64).to_device(device),
            weights: Tensor::from_slice(&weights).to_kind(Kind::Float).to_device(device),
        }
    }

    /// Whether nothing in it is trained.
    pub fn is_idle(&self) -> bool {
        self.predicting.numel() == 0
    }
}

/// The order of training: every epoch a seeded shuffle, cut into steps of samples of like length.
///
/// A step is a function of the seed and its number alone, so going on after an interruption needs no cursor but the
/// number of steps done.
pub struct Order {
    seed: u64,
    lengths: Vec<usize>,
    per_step: usize,
    epoch: Option<(u64, Vec<Vec<usize>>)>,
}

/// Steps' worth of shuffled samples that are sorted by length together: more make lengths more alike and the shuffle
/// less free.
const BUCKET: usize = 16;

impl Order {
    /// Samples by number; lengths tell which are alike.
    pub fn new(seed: u64, lengths: Vec<usize>, per_step: usize) -> Self {
        let per_step = per_step.min(lengths.len()).max(1);
        Self { seed, lengths, per_step, epoch: None }
    }

    /// Steps in an epoch; what does not fill a step is left out of that epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.lengths.len() / self.per_step) as u64
    }

    /// The epoch and the samples of a step, counted from 0.
    pub fn step(&mut self, step: u64) -> (u64, &[usize]) {
        let epoch = step / self.steps_per_epoch();
        if self.epoch.as_ref().is_none_or(|(current, _)| *current != epoch) {
            self.epoch = Some((epoch, self.shuffle(epoch)));
        }
        let (_, steps) = self.epoch.as_ref().expect("just made");
        (epoch, &steps[(step % self.steps_per_epoch()) as usize])
    }

    fn shuffle(&self, epoch: u64) -> Vec<Vec<usize>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed(self.seed, &["shuffle", &epoch.to_string()]));
        let mut all: Vec<usize> = (0..self.lengths.len()).collect();
        all.shuffle(&mut rng);
        all.truncate(self.steps_per_epoch() as usize * self.per_step);
        let mut steps = Vec::new();
        for bucket in all.chunks_mut(self.per_step * BUCKET) {
            bucket.sort_by_key(|sample| (self.lengths[*sample], *sample));
            steps.extend(bucket.chunks(self.per_step).map(<[usize]>::to_vec));
        }
        steps.shuffle(&mut rng);
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_every_sample_once_and_like_lengths_together() {
        let lengths: Vec<usize> = (0..1000).map(|i| 10 + (i * 7919) % 200).collect();
        let mut order = Order::new(3, lengths.clone(), 10);
        assert_eq!(order.steps_per_epoch(), 100);
        let mut seen = vec![0; 1000];
        let mut spread = 0;
        for step in 0..100 {
            let (epoch, samples) = order.step(step);
            assert_eq!((epoch, samples.len()), (0, 10));
            samples.iter().for_each(|sample| seen[*sample] += 1);
            let of = |pick: fn(usize, usize) -> usize| samples.iter().map(|s| lengths[*s]).reduce(pick).unwrap();
            spread += of(usize::max) - of(usize::min);
        }
        assert!(seen.iter().all(|count| *count == 1));
        assert!(spread / 100 < 25, "mean spread {}", spread / 100);
    }

    #[test]
    fn a_step_depends_on_its_number_alone() {
        let lengths: Vec<usize> = (0..95).collect();
        let mut forwards = Order::new(1, lengths.clone(), 8);
        let mut jumping = Order::new(1, lengths.clone(), 8);
        for step in [25, 3, 11, 12, 0, 40] {
            let expected: Vec<Vec<usize>> = (0..=step).map(|s| forwards.step(s).1.to_vec()).collect();
            assert_eq!(jumping.step(step).1, expected[step as usize]);
        }
        assert_ne!(Order::new(2, lengths, 8).step(0).1, forwards.step(0).1);
    }

    #[test]
    fn samples_stand_one_after_the_other_and_predict_nothing_across() {
        let sample = |ids: &[i64], mask: &[bool], weight| Sample {
            id: String::new(),
            ids: ids.to_vec(),
            mask: mask.to_vec(),
            weight,
        };
        // A first token with a mask is not trained all the same.
        let samples = [
            sample(&[5, 6, 0], &[true, true, true], 1.0),
            sample(&[5, 0, 7, 8, 0], &[true, false, true, true, true], 0.5),
        ];
        let batch = Batch::new(&samples.iter().collect::<Vec<_>>(), Device::Cpu);
        assert_eq!(Vec::<i64>::try_from(&batch.ids).unwrap(), [5, 6, 0, 5, 0, 7, 8, 0]);
        assert_eq!(batch.lengths, [3, 5]);
        assert_eq!(Vec::<i64>::try_from(&batch.targets).unwrap(), [6, 0, 7, 8, 0]);
        assert_eq!(Vec::<i64>::try_from(&batch.predicting).unwrap(), [0, 1, 4, 5, 6]);
        assert_eq!(Vec::<f32>::try_from(&batch.weights).unwrap(), [1.0, 1.0, 0.5, 0.5, 0.5]);
    }
}
