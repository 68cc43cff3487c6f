//! Drawing the next token.

use operators::seed;
use tch::{Kind, Tensor};

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the most likely token.
    pub temperature: f64,
    /// Ids from here on are never drawn: rows of the embedding that no token stands behind.
    pub vocabulary: i64,
}

/// The number in [0, 1) that decides a token: a function of the rollout and the token's place alone, so a rollout is the
/// same whatever shares its batch.
pub(super) fn draw(rollout_seed: u64, place: usize) -> f64 {
    let bits = seed(rollout_seed, &[&place.to_string()]);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

impl Sampling {
    /// Draws a token for each row of logits, of shape (rows, vocabulary). Returns ids and their log-probabilities under
    /// the distribution they were drawn from; greedy ids have that of temperature 1.
    pub fn sample(&self, logits: &Tensor, draws: &[f64]) -> (Vec<i64>, Vec<f32>) {
        let logits = logits.narrow(1, 0, self.vocabulary).to_kind(Kind::Float);
        let temperature = if self.temperature > 0.0 { self.temperature } else { 1.0 };
        let log_probs = (logits / temperature).log_softmax(-1, Kind::Float);
        let ids = if self.temperature > 0.0 {
            // The first id whose cumulative probability exceeds the draw. The total is not exactly 1 in floating point.
            let cumulative = log_probs.exp().cumsum(-1, Kind::Double);
            let total = cumulative.narrow(1, self.vocabulary - 1, 1);
            let wanted = Tensor::from_slice(draws).to_device(total.device()).unsqueeze(1) * total;
            cumulative.le_tensor(&wanted).sum_dim_intlist(&[-1_i64][..], false, Kind::Int64)
        } else {
            log_probs.argmax(-1, false)
        };
        let chosen = log_probs.gather(1, &ids.unsqueeze(1), false).squeeze_dim(1);
        (ids.try_into().expect("ids are whole numbers"), chosen.try_into().expect("log-probabilities are float32"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_distribution() {
        let probs = [0.1_f32, 0.2, 0.3, 0.4];
        let logits = Tensor::from_slice(&probs).log().unsqueeze(0);
        let sampling = Sampling { temperature: 1.0, vocabulary: 4 };
        for (at, expected) in [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.59, 2), (0.61, 3), (0.999_999, 3)] {
            let (ids, log_probs) = sampling.sample(&logits, &[at]);
            assert_eq!(ids, [expected], "{at}");
            assert!((log_probs[0] - probs[expected as usize].ln()).abs() < 1e-6);
        }
        let counts = (0..4000).fold([0; 4], |mut counts, place| {
            let (ids, _) = sampling.sample(&logits, &[draw(9, place)]);
            counts[ids[0] as usize] += 1;
            counts
        });
        for (count, p) in counts.iter().zip(probs) {
            let (expected, deviation) = (4000.0 * p, (4000.0 * p * (1.0 - p)).sqrt());
            assert!((*count as f32 - expected).abs() < 4.0 * deviation, "{counts:?}");
        }
    }

    #[test]
    fn temperature_sharpens_and_zero_takes_the_best() {
        let logits = Tensor::from_slice(&[2.0_f32, 1.0, 0.0]).unsqueeze(0);
        // Worked figures: at temperature 0.6 the probabilities are .8166, .1542, .0291.
        let warm = Sampling { temperature: 0.6, vocabulary: 3 };
        let (ids, log_probs) = warm.sample(&logits, &[0.81]);
        assert_eq!(ids, [0]);
        assert!((log_probs[0].exp() - 0.816_627).abs() < 1e-5);
        assert_eq!(warm.sample(&logits, &[0.82]).0, [1]);
        assert_eq!(Sampling { temperature: 0.0, vocabulary: 3 }.sample(&logits, &[0.999]).0, [0]);
    }

    #[test]
    fn ids_without_a_token_are_never_drawn() {
        let logits = Tensor::from_slice(&[0.0_f32, 0.0, 50.0]).unsqueeze(0);
        let sampling = Sampling { temperature: 1.0, vocabulary: 2 };
        assert!((0..100).all(|place| sampling.sample(&logits, &[draw(1, place)]).0[0] < 2));
    }
}
