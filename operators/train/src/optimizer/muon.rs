//! Muon: momentum whose matrix is replaced by the nearest orthogonal one (Jordan and others, "Muon: An optimizer for
//! hidden layers in neural networks", 2024).
//!
//! ```text
//! b <- 0.95 b + g
//! u  = orthogonal(g + 0.95 b)              five Newton-Schulz steps
//! w <- w (1 - lr decay) - lr sqrt(max(1, rows / columns)) u
//! ```

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

const MOMENTUM: f64 = 0.95;
const ITERATIONS: usize = 5;
/// Coefficients of the quintic that is iterated; they drive singular values towards 1 fast, not exactly.
const QUINTIC: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);

/// Muon over named matrices.
pub struct Muon {
    momenta: BTreeMap<String, Tensor>,
}

impl Muon {
    /// Without memory.
    pub fn new(weights: &[&(String, Tensor)]) -> Self {
        Self { momenta: weights.iter().map(|(name, weight)| (name.clone(), weight.detach().zeros_like())).collect() }
    }

    /// Changes one matrix.
    pub fn step(&mut self, name: &str, weight: &Tensor, gradient: &Tensor, rate: f64, decay: f64) {
        let momentum = self.momenta.get_mut(name).expect("a weight the optimizer was made for");
        let _ = momentum.g_mul_scalar_(MOMENTUM);
        let _ = momentum.g_add_(gradient);
        let update = orthogonal(&(gradient + &*momentum * MOMENTUM));
        let (rows, columns) = weight.size2().expect("Muon changes matrices");
        let scale = (rows as f64 / columns as f64).max(1.0).sqrt();
        let mut weight = weight.detach();
        if decay != 0.0 {
            let _ = weight.g_mul_scalar_(1.0 - rate * decay);
        }
        let _ = weight.g_sub_(&(update * (rate * scale)));
    }

    /// Momenta by name.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        self.momenta.iter().map(|(name, momentum)| (format!("{name}.momentum"), momentum.shallow_clone())).collect()
    }
}

/// A matrix with the same singular vectors and singular values near 1.
fn orthogonal(matrix: &Tensor) -> Tensor {
    let (rows, columns) = matrix.size2().expect("a matrix");
    let tall = rows > columns;
    let mut x = if tall { matrix.transpose(0, 1) } else { matrix.shallow_clone() };
    x = &x / (x.square().sum(Kind::Float).sqrt() + 1e-7);
    let (a, b, c) = QUINTIC;
    for _ in 0..ITERATIONS {
        let square = x.matmul(&x.transpose(0, 1));
        let polynomial = &square * b + square.matmul(&square) * c;
        x = &x * a + polynomial.matmul(&x);
    }
    if tall { x.transpose(0, 1) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singular_values_come_near_one_and_directions_stay() {
        tch::manual_seed(1);
        for shape in [[8, 20], [20, 8], [12, 12]] {
            let matrix = Tensor::randn(shape, (Kind::Float, tch::Device::Cpu));
            let made = orthogonal(&matrix);
            assert_eq!(made.size(), shape);
            let (_, values, _) = made.svd(true, false);
            let (low, high) = (values.min().double_value(&[]), values.max().double_value(&[]));
            assert!(low > 0.4 && high < 1.3, "{shape:?}: {low} to {high}");
            // The product with the matrix is near its sum of singular values: the best an orthogonal matrix can do.
            let (_, values, _) = matrix.svd(true, false);
            let reached =
                (made * &matrix).sum(Kind::Float).double_value(&[]) / values.sum(Kind::Float).double_value(&[]);
            assert!((0.6..1.3).contains(&reached), "{reached}");
        }
    }
}
