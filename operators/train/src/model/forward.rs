//! The forward pass: whole sequences for training, and single steps on a cache for generation.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::cache::Cache;
use super::config::Config;

/// A Qwen2 decoder with its weights.
pub struct Qwen2 {
    /// Its shape.
    pub config: Config,
    weights: Vec<(String, Tensor)>,
    inverse_frequencies: Tensor,
}

/// Index of a layer's weights within the layer, in the order of [`Config::weights`].
#[derive(Clone, Copy)]
enum Part {
    InputNorm,
    Query,
    QueryBias,
    Key,
    KeyBias,
    Value,
    ValueBias,
    Output,
    FeedNorm,
    Gate,
    Up,
    Down,
}

const PARTS: usize = 12;

/// Sequences that stand one after the other: where one ends, and the rotation of each position within its own.
pub struct Sequences {
    lengths: Vec<i64>,
    rotation: (Tensor, Tensor),
}

impl Qwen2 {
    /// A model with these weights, which must have the names and shapes, in the order, of [`Config::weights`].
    pub fn new(config: Config, weights: Vec<(String, Tensor)>) -> Self {
        debug_assert!(
            weights.iter().map(|(name, tensor)| (name.clone(), tensor.size())).eq(config.weights()),
            "weights do not have the names and shapes of the configuration"
        );
        let device = weights[0].1.device();
        let steps = Tensor::arange_start_step(0, config.head, 2, (Kind::Float, device));
        // 1 / theta^(2i/d), computed in float32.
        let powers = Tensor::from(config.rope_theta as f32).to_device(device).pow(&(steps / config.head as f64));
        let inverse_frequencies = powers.reciprocal();
        Self { config, weights, inverse_frequencies }
    }

    /// Weights by name, in the order of the layers.
    pub fn weights(&self) -> &[(String, Tensor)] {
        &self.weights
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.weights[0].1.device()
    }

    fn embedding(&self) -> &Tensor {
        &self.weights[0].1
    }

    fn part(&self, layer: i64, part: Part) -> &Tensor {
        &self.weights[1 + layer as usize * PARTS + part as usize].1
    }

    fn final_norm(&self) -> &Tensor {
        &self.weights[1 + self.config.layers as usize * PARTS].1
    }

    /// The output head: the embedding where tied.
    pub fn head(&self) -> &Tensor {
        if self.config.tied { self.embedding() } else { &self.weights[self.weights.len() - 1].1 }
    }

    /// Final hidden states of whole sequences: ids of shape (batch, time) to (batch, time, hidden).
    ///
    /// Sequences begin at position 0. Shorter ones are filled up at their end; what stands there sees the sequence but is
    /// not seen by it.
    pub fn hidden(&self, ids: &Tensor) -> Tensor {
        let (_, time) = ids.size2().expect("ids have two dimensions");
        let positions = Tensor::arange(time, (Kind::Float, self.device()));
        let rotation = self.rotation(&positions.unsqueeze(0));
        let mut x = Tensor::embedding(self.embedding(), ids, -1, false, false);
        for layer in 0..self.config.layers {
            x = self.layer(layer, &x, &rotation, |q, k, v| {
                Tensor::scaled_dot_product_attention(q, k, v, None::<&Tensor>, 0.0, true, None, true)
            });
        }
        self.norm(&x, self.final_norm())
    }

    /// Final hidden states of sequences that stand one after the other: ids of shape (tokens) to (tokens, hidden).
    pub fn packed(&self, ids: &Tensor, lengths: &[i64]) -> Tensor {
        let sequences = self.sequences(lengths);
        let mut x = self.embed(ids);
        for layer in 0..self.config.layers {
            x = self.packed_layer(layer, &x, &sequences);
        }
        self.top(&x)
    }

    /// Sequences of these lengths, each from position 0.
    pub fn sequences(&self, lengths: &[i64]) -> Sequences {
        let options = (Kind::Float, self.device());
        let positions: Vec<Tensor> = lengths.iter().map(|length| Tensor::arange(*length, options)).collect();
        let rotation = self.rotation(&Tensor::cat(&positions, 0).unsqueeze(0));
        Sequences { lengths: lengths.to_vec(), rotation }
    }

    /// Ids of shape (tokens) to what the first layer reads, of shape (1, tokens, hidden).
    pub fn embed(&self, ids: &Tensor) -> Tensor {
        Tensor::embedding(self.embedding(), &ids.unsqueeze(0), -1, false, false)
    }

    /// One layer over sequences of which none sees another; (1, tokens, hidden) to the same shape.
    pub fn packed_layer(&self, layer: i64, x: &Tensor, sequences: &Sequences) -> Tensor {
        self.layer(layer, x, &sequences.rotation, |q, k, v| {
            // Split and not narrowed: the backward pass of all pieces is one concatenation.
            let [q, k, v] = [q, k, v].map(|all| all.split_with_sizes(&sequences.lengths[..], 2));
            let attended: Vec<Tensor> = q
                .iter()
                .zip(k.iter().zip(&v))
                .map(|(q, (k, v))| {
                    Tensor::scaled_dot_product_attention(q, k, v, None::<&Tensor>, 0.0, true, None, true)
                })
                .collect();
            Tensor::cat(&attended, 2)
        })
    }

    /// The final norm: what the last layer gave, of shape (1, tokens, hidden), to (tokens, hidden).
    pub fn top(&self, x: &Tensor) -> Tensor {
        self.norm(x, self.final_norm()).squeeze_dim(0)
    }

    /// Where the weights of a layer stand in [`Self::weights`]. The final norm stands behind those of the last layer.
    pub fn layer_weights(&self, layer: i64) -> Range<usize> {
        let first = 1 + layer as usize * PARTS;
        first..first + PARTS
    }

    /// Logits of hidden states, over the whole vocabulary.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        hidden.linear(self.head(), None::<&Tensor>)
    }

    /// Reads more ids of one row of a cache. Returns the final hidden state of the last of them, of shape (1, hidden).
    pub fn extend(&self, cache: &mut Cache, row: i64, ids: &[i64]) -> Tensor {
        let (start, count) = (cache.length(row), ids.len() as i64);
        let ids = Tensor::from_slice(ids).to_device(self.device()).unsqueeze(0);
        let positions = Tensor::arange_start(start, start + count, (Kind::Float, self.device()));
        let rotation = self.rotation(&positions.unsqueeze(0));
        // Query i of this part stands at `start + i` and sees everything up to itself. `is_causal` would align the
        // other way round once something is cached.
        let seen = Tensor::arange(start + count, (Kind::Float, self.device())).unsqueeze(0);
        let mask = seen.le_tensor(&positions.unsqueeze(1)).unsqueeze(0).unsqueeze(0);
        let mut x = Tensor::embedding(self.embedding(), &ids, -1, false, false);
        for layer in 0..self.config.layers {
            x = self.layer(layer, &x, &rotation, |q, k, v| {
                let (k, v) = cache.write_row(layer, row, start, k, v);
                Tensor::scaled_dot_product_attention(q, &k, &v, Some(&mask), 0.0, false, None, true)
            });
        }
        cache.advance(row, count);
        let last = x.narrow(1, count - 1, 1).squeeze_dim(1);
        self.norm(&last, self.final_norm())
    }

    /// Reads one id for each of the first rows of a cache. Returns their final hidden states, of shape (rows, hidden).
    pub fn step(&self, cache: &mut Cache, ids: &[i64]) -> Tensor {
        let rows = ids.len() as i64;
        let lengths: Vec<i64> = (0..rows).map(|row| cache.length(row)).collect();
        let longest = lengths.iter().max().copied().unwrap_or(0) + 1;
        let ids = Tensor::from_slice(ids).to_device(self.device()).unsqueeze(1);
        let places = Tensor::from_slice(&lengths).to_device(self.device());
        let rotation = self.rotation(&places.to_kind(Kind::Float).unsqueeze(1));
        let seen = Tensor::arange(longest, (Kind::Int64, self.device())).unsqueeze(0);
        let mask = seen.le_tensor(&places.unsqueeze(1)).unsqueeze(1).unsqueeze(1);
        let mut x = Tensor::embedding(self.embedding(), &ids, -1, false, false);
        for layer in 0..self.config.layers {
            x = self.layer(layer, &x, &rotation, |q, k, v| {
                let (k, v) = cache.write_step(layer, &places, longest, k, v);
                Tensor::scaled_dot_product_attention(q, &k, &v, Some(&mask), 0.0, false, None, true)
            });
        }
        for row in 0..rows {
            cache.advance(row, 1);
        }
        self.norm(&x.squeeze_dim(1), self.final_norm())
    }

    fn layer(
        &self,
        layer: i64,
        x: &Tensor,
        rotation: &(Tensor, Tensor),
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let part = |part| self.part(layer, part);
        let (batch, time, _) = x.size3().expect("activations have three dimensions");
        let heads = |x: Tensor, heads: i64| x.view([batch, time, heads, self.config.head]).transpose(1, 2);
        let h = self.norm(x, part(Part::InputNorm));
        let q = heads(h.linear(part(Part::Query), Some(part(Part::QueryBias))), self.config.heads);
        let k = heads(h.linear(part(Part::Key), Some(part(Part::KeyBias))), self.config.kv_heads);
        let v = heads(h.linear(part(Part::Value), Some(part(Part::ValueBias))), self.config.kv_heads);
        let attended = attend(&rotate(&q, rotation), &rotate(&k, rotation), &v);
        let attended = attended.transpose(1, 2).reshape([batch, time, self.config.heads * self.config.head]);
        let x = x + attended.linear(part(Part::Output), None::<&Tensor>);
        let h = self.norm(&x, part(Part::FeedNorm));
        let fed = h.linear(part(Part::Gate), None::<&Tensor>).silu() * h.linear(part(Part::Up), None::<&Tensor>);
        &x + fed.linear(part(Part::Down), None::<&Tensor>)
    }

    /// Normalises in float32, casts back, then scales: the order matters in bfloat16.
    fn norm(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let kind = x.kind();
        let x = x.to_kind(Kind::Float);
        let variance = x.square().mean_dim(&[-1_i64][..], true, Kind::Float);
        weight * (x * (variance + self.config.norm_epsilon).rsqrt()).to_kind(kind)
    }

    /// Cosines and sines of positions of shape (rows, time), for all heads.
    fn rotation(&self, positions: &Tensor) -> (Tensor, Tensor) {
        let angles = positions.unsqueeze(-1) * &self.inverse_frequencies;
        let angles = Tensor::cat(&[&angles, &angles], -1).unsqueeze(1);
        let kind = self.weights[0].1.kind();
        (angles.cos().to_kind(kind), angles.sin().to_kind(kind))
    }
}

/// Rotates by halves: (a, b) becomes (a cos - b sin, b cos + a sin).
fn rotate(x: &Tensor, (cos, sin): &(Tensor, Tensor)) -> Tensor {
    let half = x.size()[3] / 2;
    let turned = Tensor::cat(&[&x.narrow(3, half, half).neg(), &x.narrow(3, 0, half)], 3);
    x * cos + turned * sin
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Start;

    fn model() -> Qwen2 {
        let config = Config {
            vocabulary: 50,
            hidden: 32,
            intermediate: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head: 8,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-6,
            tied: true,
            max_positions: 64,
        };
        Start::Normal.model(config, 3, Device::Cpu)
    }

    /// Worked figures: rotation of (1, 2, 3, 4) at position 1 with base 10,000.
    #[test]
    fn the_rotation_is_by_halves() {
        let model = Qwen2 { inverse_frequencies: Tensor::from_slice(&[1.0_f32, 0.01]), ..model() };
        let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0]).view([1, 1, 1, 4]);
        let rotated = rotate(&x, &model.rotation(&Tensor::from_slice(&[1.0_f32]).unsqueeze(0)));
        let expected = Tensor::from_slice(&[-1.984_111_f32, 1.959_901, 2.462_378, 4.019_8]);
        assert!((rotated.view([-1]) - expected).abs().max().double_value(&[]) < 1e-6);
    }

    /// Worked figures: (3, 4) has root mean square 3.5355.
    #[test]
    fn the_norm_divides_by_the_root_mean_square() {
        let model = model();
        let x = Tensor::from_slice(&[3.0_f32, 4.0]).view([1, 2]);
        let normed = model.norm(&x, &Tensor::ones([2], (Kind::Float, Device::Cpu)));
        let expected = Tensor::from_slice(&[0.848_528_1_f32, 1.131_370_8]);
        assert!((normed.view([-1]) - expected).abs().max().double_value(&[]) < 1e-6);
    }

    #[test]
    fn reading_on_a_cache_gives_what_reading_at_once_gives() {
        let _no_grad = tch::no_grad_guard();
        let model = model();
        let rows: [Vec<i64>; 3] = [(0..20).collect(), (5..17).collect(), vec![7; 9]];
        let mut cache = Cache::new(&model.config, 3, 64, Device::Cpu);
        let mut on_cache = Vec::new();
        for (row, ids) in rows.iter().enumerate() {
            // In two parts, then one id at a time.
            let _ = model.extend(&mut cache, row as i64, &ids[..3]);
            let _ = model.extend(&mut cache, row as i64, &ids[3..6]);
            on_cache.push(ids[6..].to_vec());
        }
        let shortest = on_cache.iter().map(Vec::len).min().unwrap();
        let mut last = Tensor::new();
        for step in 0..shortest {
            let ids: Vec<i64> = on_cache.iter().map(|ids| ids[step]).collect();
            last = model.step(&mut cache, &ids);
        }
        for (row, ids) in rows.iter().enumerate() {
            let at_once = model.hidden(&Tensor::from_slice(&ids[..6 + shortest]).unsqueeze(0));
            let expected = at_once.select(1, at_once.size()[1] - 1);
            let difference = (last.select(0, row as i64) - expected.squeeze_dim(0)).abs().max().double_value(&[]);
            assert!(difference < 1e-5, "row {row}: {difference}");
        }
    }

    #[test]
    fn what_fills_up_a_sequence_is_not_seen_by_it() {
        let _no_grad = tch::no_grad_guard();
        let model = model();
        let ids: Vec<i64> = (1..11).collect();
        let alone = model.hidden(&Tensor::from_slice(&ids).unsqueeze(0));
        let filled: Vec<i64> = ids.iter().copied().chain([0; 6]).collect();
        let beside = model.hidden(&Tensor::from_slice(&filled).unsqueeze(0)).narrow(1, 0, 10);
        assert!((alone - beside).abs().max().double_value(&[]) < 1e-6);
    }

    /// A pack gives what its samples give apart, in any order; and one does not see another.
    #[test]
    fn packed_sequences_are_as_if_apart() {
        let _no_grad = tch::no_grad_guard();
        let model = model();
        let rows: [Vec<i64>; 3] = [(0..20).collect(), (5..17).collect(), vec![7; 9]];
        let pack = |order: &[usize]| {
            let ids: Vec<i64> = order.iter().flat_map(|row| rows[*row].clone()).collect();
            let lengths: Vec<i64> = order.iter().map(|row| rows[*row].len() as i64).collect();
            model.logits(&model.packed(&Tensor::from_slice(&ids), &lengths)).split_with_sizes(&lengths[..], 0)
        };
        let largest = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
        let (one, other) = (pack(&[0, 1, 2]), pack(&[2, 0, 1]));
        for (row, ids) in rows.iter().enumerate() {
            let apart = model.logits(&model.hidden(&Tensor::from_slice(ids).unsqueeze(0))).squeeze_dim(0);
            assert!(largest(&one[row], &apart) <= 1e-6);
            assert!(largest(&one[row], &other[(row + 1) % 3]) <= 1e-6);
        }
        let ids: Vec<i64> = rows.concat();
        let changed: Vec<i64> = [&[49], &ids[1..]].concat();
        let [before, after] = [ids, changed].map(|ids| model.packed(&Tensor::from_slice(&ids), &[20, 12, 9]));
        assert!(before.narrow(0, 0, 20) != after.narrow(0, 0, 20));
        assert!(before.narrow(0, 20, 21) == after.narrow(0, 20, 21), "bit for bit");
    }
}
