//! The Chain-of-Agents sequence: its tags, its canonical text, its grammar, and when an answer is right.
//!
//! A trajectory is a list of typed segments; text with tags is a rendering of it, made for the model. One rendering is
//! used for supervised training, rollouts and evaluation, so what the model was trained on is what it will see.

pub mod answer;
pub mod grammar;
pub mod render;
pub mod tags;
