//! First weights.

use operators::seed;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::config::Config;
use super::forward::Qwen2;

/// How a model that is trained from nothing begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Normal draws of standard deviation 0.02; norms 1, biases 0.
    Normal,
    /// As `normal`, but attention begins as a copying machine: values pass through unchanged, like attends to like, and
    /// the heads of the first layer look one, two, … tokens back. A small model learns to copy from its context many
    /// times faster so.
    Copying,
}

/// Width of normal draws.
const DEVIATION: f64 = 0.02;
/// Width of the embedding's draws where attention begins with copies: what is copied must not drown what is there.
const COPYING_EMBEDDING: f64 = 0.1;
/// How strongly heads of the first layer look back.
const LOOK_BACK: f64 = 2.5;
/// How much content counts against that.
const LOOK_BACK_CONTENT: f64 = 0.2;

impl Start {
    /// A model with first weights. Equal seeds give equal weights.
    pub fn model(self, config: Config, from: u64, device: Device) -> Qwen2 {
        let weights = config.weights().into_iter().map(|(name, shape)| {
            let draw = |deviation: f64| normal(seed(from, &[&name]), &shape, deviation);
            let tensor = match (self, name.as_str()) {
                (_, name) if name.ends_with("norm.weight") => Tensor::ones(&shape[..], (Kind::Float, Device::Cpu)),
                (_, name) if name.ends_with("bias") => Tensor::zeros(&shape[..], (Kind::Float, Device::Cpu)),
                (Self::Copying, "model.embed_tokens.weight") => draw(COPYING_EMBEDDING),
                _ => draw(DEVIATION),
            };
            (name, tensor)
        });
        let mut weights: Vec<(String, Tensor)> = weights.collect();
        if self == Self::Copying {
            copying(&config, from, &mut weights);
        }
        let weights = weights.into_iter().map(|(name, tensor)| (name, tensor.to_device(device))).collect();
        Qwen2::new(config, weights)
    }
}

fn copying(config: &Config, from: u64, weights: &mut [(String, Tensor)]) {
    let mut set = |name: String, tensor: Tensor| {
        let (_, weight) = weights.iter_mut().find(|(other, _)| *other == name).expect("the name of a weight");
        weight.copy_(&tensor);
    };
    let (group, head) = (config.heads / config.kv_heads, config.head);
    let frequencies = (0..head / 2).map(|i| config.rope_theta.powf(-2.0 * i as f64 / head as f64));
    let frequencies: Vec<f64> = frequencies.collect();
    for layer in 0..config.layers {
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let content = if layer == 0 { LOOK_BACK_CONTENT } else { 1.0 };
        let draw =
            |part: &str, rows: i64, columns: i64| normal(seed(from, &[&name(part), "copying"]), &[rows, columns], 1.0);
        let (mut queries, mut keys, mut values, mut outputs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for kv in 0..config.kv_heads {
            let passed = orthonormal_rows(&draw(&format!("value {kv}"), head, config.hidden));
            let matched = orthonormal_rows(&draw(&format!("key {kv}"), head, config.hidden)) * content;
            for _ in 0..group {
                outputs.push(passed.transpose(0, 1) * (0.5 / (group as f64).sqrt()));
                queries.push(matched.shallow_clone());
            }
            keys.push(matched);
            values.push(passed);
        }
        set(name("q_proj.weight"), Tensor::cat(&queries, 0));
        set(name("k_proj.weight"), Tensor::cat(&keys, 0));
        set(name("v_proj.weight"), Tensor::cat(&values, 0));
        let noise = draw("noise", config.hidden, config.heads * head) * (DEVIATION / 4.0);
        set(name("o_proj.weight"), Tensor::cat(&outputs, 1) + noise);
        if layer == 0 {
            // A score of q and k under rotation depends on their distance: with q = k turned back by n, it is largest
            // where the key stands n tokens before the query.
            let turned = |back: f64| -> Vec<f64> {
                let (mut first, mut second) = (Vec::new(), Vec::new());
                for frequency in &frequencies {
                    let angle = -back * frequency;
                    first.push(LOOK_BACK * (angle.cos() - angle.sin()) / 2_f64.sqrt());
                    second.push(LOOK_BACK * (angle.cos() + angle.sin()) / 2_f64.sqrt());
                }
                first.into_iter().chain(second).collect()
            };
            let query: Vec<f64> = (0..config.heads).flat_map(|h| turned(1.0 + h as f64)).collect();
            let key: Vec<f64> = (0..config.kv_heads).flat_map(|_| turned(0.0)).collect();
            set(name("q_proj.bias"), Tensor::from_slice(&query).to_kind(Kind::Float));
            set(name("k_proj.bias"), Tensor::from_slice(&key).to_kind(Kind::Float));
        }
    }
}

/// Normal draws by Box and Muller, from a generator of our own: the same on every device and in every version.
fn normal(from: u64, shape: &[i64], deviation: f64) -> Tensor {
    let mut rng = ChaCha8Rng::seed_from_u64(from);
    let count: i64 = shape.iter().product();
    let mut draws: Vec<f32> = Vec::with_capacity(count as usize + 1);
    while draws.len() < count as usize {
        let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
        let (radius, angle) = ((-2.0 * u.ln()).sqrt() * deviation, std::f64::consts::TAU * v);
        draws.push((radius * angle.cos()) as f32);
        draws.push((radius * angle.sin()) as f32);
    }
    draws.truncate(count as usize);
    Tensor::from_slice(&draws).view(shape)
}

/// Rows of the same span that are orthogonal and of length 1.
fn orthonormal_rows(rows: &Tensor) -> Tensor {
    let (q, _) = Tensor::linalg_qr(&rows.transpose(0, 1).to_kind(Kind::Double), "reduced");
    q.transpose(0, 1).to_kind(Kind::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            vocabulary: 40,
            hidden: 64,
            intermediate: 96,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head: 16,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-6,
            tied: true,
            max_positions: 64,
        }
    }

    #[test]
    fn equal_seeds_give_equal_weights() {
        for start in [Start::Normal, Start::Copying] {
            let [a, b, c] = [1, 1, 2].map(|seed| start.model(config(), seed, Device::Cpu));
            let equal = |x: &Qwen2, y: &Qwen2| x.weights().iter().zip(y.weights()).all(|(x, y)| x.1 == y.1);
            assert!(equal(&a, &b) && !equal(&a, &c));
        }
    }

    #[test]
    fn normal_draws_have_their_width() {
        let draws = normal(7, &[100, 100], 0.5);
        assert!((draws.std(true).double_value(&[]) - 0.5).abs() < 0.02);
        assert!(draws.mean(Kind::Float).double_value(&[]).abs() < 0.02);
    }

    /// Scores of the first layer's heads, content left out: head h looks 1 + h tokens back.
    #[test]
    fn heads_of_the_first_layer_look_back() {
        let model = Start::Copying.model(config(), 1, Device::Cpu);
        let weight = |name: &str| &model.weights().iter().find(|(n, _)| n == name).unwrap().1;
        let q: Vec<f64> = weight("model.layers.0.self_attn.q_proj.bias").to_kind(Kind::Double).try_into().unwrap();
        let k: Vec<f64> = weight("model.layers.0.self_attn.k_proj.bias").to_kind(Kind::Double).try_into().unwrap();
        for head in 0..4_usize {
            let (q, k) = (&q[head * 16..(head + 1) * 16], &k[..16]);
            let score = |back: i32| -> f64 {
                (0..8)
                    .map(|i| {
                        let angle = f64::from(-back) * 10_000_f64.powf(-2.0 * i as f64 / 16.0);
                        let (a, b) =
                            (k[i] * angle.cos() - k[i + 8] * angle.sin(), k[i + 8] * angle.cos() + k[i] * angle.sin());
                        q[i] * a + q[i + 8] * b
                    })
                    .sum()
            };
            let best = (0..12).max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap();
            assert_eq!(best, 1 + head as i32);
        }
    }
}
