//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2).
//!
//! ```text
//! w <- w (1 - lr decay)
//! m <- b1 m + (1 - b1) g
//! v <- b2 v + (1 - b2) g^2
//! w <- w - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//! ```

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

const EPSILON: f64 = 1e-8;

/// AdamW over named weights.
pub struct AdamW {
    betas: (f64, f64),
    steps: Tensor,
    step: f64,
    moments: BTreeMap<String, (Tensor, Tensor)>,
}

impl AdamW {
    /// Without memory.
    pub fn new(weights: &[&(String, Tensor)], betas: (f64, f64)) -> Self {
        let moments = weights.iter().map(|(name, weight)| {
            let zeros = || weight.detach().zeros_like();
            (name.clone(), (zeros(), zeros()))
        });
        Self {
            betas,
            steps: Tensor::zeros([1], (Kind::Float, tch::Device::Cpu)),
            step: 0.0,
            moments: moments.collect(),
        }
    }

    /// Must be called once before the weights of a step are changed.
    pub fn begin_step(&mut self) {
        self.step += 1.0;
        let _ = self.steps.fill_(self.step);
    }

    /// Changes one weight.
    pub fn step(&mut self, name: &str, weight: &Tensor, gradient: &Tensor, rate: f64, decay: f64) {
        let (b1, b2) = self.betas;
        let (m, v) = self.moments.get_mut(name).expect("a weight the optimizer was made for");
        let mut weight = weight.detach();
        if decay != 0.0 {
            let _ = weight.g_mul_scalar_(1.0 - rate * decay);
        }
        let _ = m.lerp_(gradient, 1.0 - b1);
        let _ = v.g_mul_scalar_(b2);
        let _ = v.addcmul_(&(gradient * (1.0 - b2)), gradient);
        let (c1, c2) = (1.0 - b1.powf(self.step), 1.0 - b2.powf(self.step));
        let denominator = v.sqrt() / c2.sqrt() + EPSILON;
        let _ = weight.addcdiv_(&(&*m * (-rate / c1)), &denominator);
    }

    /// Moments and the count of steps, by name.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let mut state = vec![("adamw.steps".to_owned(), self.steps.shallow_clone())];
        for (name, (m, v)) in &self.moments {
            state.push((format!("{name}.exp_avg"), m.shallow_clone()));
            state.push((format!("{name}.exp_avg_sq"), v.shallow_clone()));
        }
        state
    }

    /// Takes the count of steps from the restored state.
    pub fn count_steps(&mut self) {
        self.step = self.steps.double_value(&[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three steps against the formula in plain float64.
    #[test]
    fn steps_follow_the_formula() {
        let name = "w".to_owned();
        let weights = [(name.clone(), Tensor::from_slice(&[1.0_f64, -2.0]))];
        let gradients = [[0.1, -0.3], [0.2, 0.5], [-0.05, 1.0]];
        let (rate, decay, b1, b2) = (0.01, 0.1, 0.9, 0.999);
        let mut optimizer = AdamW::new(&[&weights[0]], (b1, b2));
        let (mut w, mut m, mut v) = ([1.0_f64, -2.0], [0.0; 2], [0.0; 2]);
        for (t, g) in gradients.iter().enumerate() {
            optimizer.begin_step();
            optimizer.step("w", &weights[0].1, &Tensor::from_slice(g), rate, decay);
            let t = t as i32 + 1;
            for i in 0..2 {
                w[i] *= 1.0 - rate * decay;
                m[i] = b1 * m[i] + (1.0 - b1) * g[i];
                v[i] = b2 * v[i] + (1.0 - b2) * g[i] * g[i];
                let (m_hat, v_hat) = (m[i] / (1.0 - b1.powi(t)), v[i] / (1.0 - b2.powi(t)));
                w[i] -= rate * m_hat / (v_hat.sqrt() + 1e-8);
            }
        }
        for (i, expected) in w.iter().enumerate() {
            assert!((weights[0].1.double_value(&[i as i64]) - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn the_first_step_has_the_size_of_the_learning_rate() {
        let weights = [("w".to_owned(), Tensor::from_slice(&[0.0_f64, 0.0]))];
        let mut optimizer = AdamW::new(&[&weights[0]], (0.9, 0.999));
        optimizer.begin_step();
        optimizer.step("w", &weights[0].1, &Tensor::from_slice(&[1e-3, -50.0]), 0.1, 0.0);
        assert!((weights[0].1.double_value(&[0]) + 0.1).abs() < 1e-5);
        assert!((weights[0].1.double_value(&[1]) - 0.1).abs() < 1e-5);
    }
}
