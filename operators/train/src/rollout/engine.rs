//! Runs many rollouts on one model: a batch of places, each taken by the next rollout as soon as it is free.

use std::collections::VecDeque;

use operators::tokens::Codec;
use operators::{OperatorError, seed};
use schemas::{Finish, Question, Rollout};
use tools::{Observation, ToolError, Toolbox};

use super::agent::{Agent, Limits, Next};
use super::sampling::{Sampling, draw};
use crate::model::{Cache, Qwen2};

/// A rollout to be run.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is asked.
    pub question: Question,
    /// Which of the samples of this question.
    pub sample: i64,
}

/// Everything rollouts share.
pub struct Engine<'a> {
    /// The model.
    pub model: &'a Qwen2,
    /// Its digest, for the rows.
    pub digest: &'a str,
    /// Its tokenizer.
    pub codec: &'a Codec,
    /// What its calls are answered by.
    pub tools: &'a Toolbox,
    /// When a rollout is ended.
    pub limits: Limits,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What draws are seeded from.
    pub seed: u64,
    /// Rollouts in the batch at the same time.
    pub places: usize,
    /// Tool calls made at the same time.
    pub tool_threads: usize,
}

/// A rollout in a place of the batch.
struct Seat {
    agent: Agent,
    seed: u64,
    /// The id it reads next; its answer decides the one after.
    pending: i64,
}

impl Engine<'_> {
    /// Runs the jobs; `done` is told of every rollout as it ends, and may stop the rest by an error.
    pub fn run(
        &self,
        jobs: Vec<Job>,
        mut done: impl FnMut(Rollout) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        let _no_grad = tch::no_grad_guard();
        let places = self.places.min(jobs.len()).max(1);
        let mut cache = Cache::new(&self.model.config, places as i64, self.limits.tokens as i64, self.model.device());
        let mut waiting: VecDeque<Job> = jobs.into();
        let mut seats: Vec<Seat> = Vec::new();
        loop {
            while seats.len() < places {
                let Some(job) = waiting.pop_front() else { break };
                let mut agent = Agent::new(self.codec, job.question, job.sample)?;
                let row = seats.len() as i64;
                cache.clear(row);
                let prompt: Vec<i64> = agent.ids().iter().map(|id| i64::from(*id)).collect();
                if prompt.len() >= self.limits.tokens {
                    done(agent.finish(Finish::Length, self.sampling.temperature, self.digest))?;
                    continue;
                }
                let rollout_seed = seed(self.seed, &[&agent.id()]);
                let next = self.read(&mut cache, row, &prompt, &mut agent, rollout_seed)?;
                let ended = self.settle(next, &mut cache, row, &mut agent, rollout_seed)?;
                match ended {
                    Some(finish) => done(agent.finish(finish, self.sampling.temperature, self.digest))?,
                    None => {
                        let pending = last(&agent);
                        seats.push(Seat { agent, seed: rollout_seed, pending });
                    }
                }
            }
            if seats.is_empty() {
                return Ok(());
            }
            let nexts = self.step(&mut cache, &mut seats)?;
            self.after(&mut cache, &mut seats, nexts, &mut done)?;
        }
    }

    /// One token for every seat.
    fn step(&self, cache: &mut Cache, seats: &mut [Seat]) -> Result<Vec<Next>, OperatorError> {
        let pending: Vec<i64> = seats.iter().map(|seat| seat.pending).collect();
        let hidden = self.model.step(cache, &pending);
        let draws: Vec<f64> = seats.iter().map(|seat| draw(seat.seed, seat.agent.ids().len())).collect();
        let (ids, log_probs) = self.sampling.sample(&self.model.logits(&hidden), &draws);
        let mut nexts = Vec::with_capacity(seats.len());
        for ((seat, id), log_prob) in seats.iter_mut().zip(ids).zip(log_probs) {
            nexts.push(seat.agent.wrote(self.codec, id as u32, log_prob, self.limits)?);
            seat.pending = id;
        }
        Ok(nexts)
    }

    /// Answers calls, lets finished rollouts go, and keeps the seats in use at the beginning of the cache.
    fn after(
        &self,
        cache: &mut Cache,
        seats: &mut Vec<Seat>,
        nexts: Vec<Next>,
        done: &mut impl FnMut(Rollout) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        let answers = self.answer(&nexts)?;
        let mut ended: Vec<(usize, Finish)> = Vec::new();
        for (row, (next, answer)) in nexts.into_iter().zip(answers).enumerate() {
            match (next, answer) {
                (Next::Call { tag, .. }, Some((observation, seconds))) => {
                    let seat = &mut seats[row];
                    let next =
                        self.observe(cache, row as i64, &mut seat.agent, seat.seed, tag, &observation, seconds)?;
                    match self.settle(next, cache, row as i64, &mut seat.agent, seat.seed)? {
                        Some(finish) => ended.push((row, finish)),
                        None => seat.pending = last(&seat.agent),
                    }
                }
                (Next::End(finish), _) => ended.push((row, finish)),
                _ => {}
            }
        }
        // From the back, so that what takes a freed place has been looked at.
        for (row, finish) in ended.into_iter().rev() {
            let back = seats.len() - 1;
            if row != back {
                cache.copy(back as i64, row as i64);
            }
            let seat = seats.swap_remove(row);
            done(seat.agent.finish(finish, self.sampling.temperature, self.digest))?;
        }
        Ok(())
    }

    /// Runs the tools of all calls, several at the same time.
    fn answer(&self, nexts: &[Next]) -> Result<Vec<Option<(Observation, f64)>>, OperatorError> {
        let calls: Vec<(usize, &str, &str)> = nexts
            .iter()
            .enumerate()
            .filter_map(|(row, next)| match next {
                Next::Call { tag, body } => Some((row, *tag, body.as_str())),
                _ => None,
            })
            .collect();
        let mut answers: Vec<Option<(Observation, f64)>> = nexts.iter().map(|_| None).collect();
        let share = calls.len().div_ceil(self.tool_threads.max(1)).max(1);
        let tools = self.tools;
        std::thread::scope(|scope| -> Result<(), OperatorError> {
            let threads: Vec<_> = calls
                .chunks(share)
                .map(|part| {
                    scope.spawn(move || {
                        part.iter()
                            .map(|(row, tag, body)| Ok((*row, Agent::use_tool(tools, tag, body)?)))
                            .collect::<Result<Vec<_>, ToolError>>()
                    })
                })
                .collect();
            for thread in threads {
                for (row, answer) in thread.join().expect("a tool does not panic")? {
                    answers[row] = Some(answer);
                }
            }
            Ok(())
        })?;
        Ok(answers)
    }

    /// Deals with calls of a rollout one after the other until it writes on or ends.
    fn settle(
        &self,
        mut next: Next,
        cache: &mut Cache,
        row: i64,
        agent: &mut Agent,
        rollout_seed: u64,
    ) -> Result<Option<Finish>, OperatorError> {
        loop {
            match next {
                Next::Write => return Ok(None),
                Next::End(finish) => return Ok(Some(finish)),
                Next::Call { tag, body } => {
                    let (observation, seconds) = Agent::use_tool(self.tools, tag, &body)?;
                    next = self.observe(cache, row, agent, rollout_seed, tag, &observation, seconds)?;
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one call site each, and every part is another thing")]
    fn observe(
        &self,
        cache: &mut Cache,
        row: i64,
        agent: &mut Agent,
        rollout_seed: u64,
        tag: &str,
        observation: &Observation,
        seconds: f64,
    ) -> Result<Next, OperatorError> {
        let last_written = last(agent);
        let Some(ids) = agent.observe(self.codec, tag, observation, seconds, self.limits)? else {
            return Ok(Next::End(Finish::Length));
        };
        // The last sampled id was not read yet.
        let unread: Vec<i64> = std::iter::once(last_written).chain(ids.into_iter().map(i64::from)).collect();
        self.read(cache, row, &unread, agent, rollout_seed)
    }

    /// Reads ids that are given, then draws the next one.
    fn read(
        &self,
        cache: &mut Cache,
        row: i64,
        ids: &[i64],
        agent: &mut Agent,
        rollout_seed: u64,
    ) -> Result<Next, OperatorError> {
        let hidden = self.model.extend(cache, row, ids);
        let (ids, log_probs) =
            self.sampling.sample(&self.model.logits(&hidden), &[draw(rollout_seed, agent.ids().len())]);
        agent.wrote(self.codec, ids[0] as u32, log_probs[0], self.limits)
    }
}

fn last(agent: &Agent) -> i64 {
    agent.ids().last().map_or(0, |id| i64::from(*id))
}

#[cfg(test)]
mod tests {
    use operators::toolbox::corpus_tools;
    use schemas::Page;
    use tch::Device;

    use super::*;
    use crate::fixture::{Fixture, fixture};
    use crate::model::{Config, Start};

    fn model(codec: &Codec) -> Qwen2 {
        let config = Config {
            vocabulary: codec.size() as i64 + 5,
            hidden: 32,
            intermediate: 48,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head: 8,
            rope_theta: 1e4,
            norm_epsilon: 1e-6,
            tied: true,
            max_positions: 256,
        };
        Start::Normal.model(config, 1, Device::Cpu)
    }

    fn tools() -> Option<Toolbox> {
        let page =
            |id: &str| Page { page_id: id.into(), title: id.into(), text: format!("{id} is deep"), snippet: None };
        match corpus_tools(vec![page("lake"), page("depth")], 2, 1) {
            Ok(tools) => Some(tools),
            Err(error) => {
                eprintln!("skipped: {}", error.message);
                None
            }
        }
    }

    fn rollouts(fixture: &Fixture, tools: &Toolbox, places: usize, questions: u64, temperature: f64) -> Vec<Rollout> {
        tch::set_num_threads(1);
        let codec = fixture.codec();
        let model = model(&codec);
        let engine = Engine {
            model: &model,
            digest: "d",
            codec: &codec,
            tools,
            limits: Limits { tokens: 120, calls: 3 },
            sampling: Sampling { temperature, vocabulary: codec.size() as i64 },
            seed: 5,
            places,
            tool_threads: 2,
        };
        let jobs = (0..questions).map(|number| Job { question: fixture.question(number), sample: 0 }).collect();
        let mut all = Vec::new();
        engine
            .run(jobs, |rollout| {
                all.push(rollout);
                Ok(())
            })
            .unwrap();
        all.sort_by(|a, b| a.rollout_id.cmp(&b.rollout_id));
        for rollout in &mut all {
            (rollout.seconds, rollout.tool_seconds) = (0.0, 0.0);
        }
        all
    }

    /// A rollout is the same alone and in any company: neither another's end nor another's tool disturbs it.
    #[test]
    fn a_rollout_does_not_depend_on_its_batch() {
        let fixture = fixture();
        let Some(tools) = tools() else { return };
        let alone = rollouts(&fixture, &tools, 1, 12, 1.0);
        assert_eq!(alone.len(), 12);
        // Untrained, it writes nonsense of all lengths, some of it calls.
        assert!(
            alone.iter().map(|rollout| rollout.input_ids.len()).collect::<std::collections::HashSet<_>>().len() > 1
        );
        for places in [3, 12] {
            let together = rollouts(&fixture, &tools, places, 12, 1.0);
            for (a, b) in alone.iter().zip(&together) {
                assert_eq!(a.input_ids, b.input_ids, "{} in a batch of {places}", a.rollout_id);
                assert_eq!((&a.segments, a.finish, a.tool_calls), (&b.segments, b.finish, b.tool_calls));
            }
        }
        assert_ne!(alone[0].input_ids, rollouts(&fixture, &tools, 1, 12, 0.0)[0].input_ids);
    }

    /// Recorded log-probabilities are those of the whole sequence read at once.
    #[test]
    fn log_probabilities_are_those_of_the_ids() {
        let fixture = fixture();
        let Some(tools) = tools() else { return };
        let codec = fixture.codec();
        let model = model(&codec);
        let sampling = Sampling { temperature: 1.0, vocabulary: codec.size() as i64 };
        let _no_grad = tch::no_grad_guard();
        for rollout in rollouts(&fixture, &tools, 4, 6, 1.0) {
            let ids: Vec<i64> = rollout.input_ids.iter().map(|id| i64::from(*id)).collect();
            let logits = model.logits(&model.hidden(&tch::Tensor::from_slice(&ids).unsqueeze(0))).squeeze_dim(0);
            let log_probs = logits.narrow(1, 0, sampling.vocabulary).log_softmax(-1, tch::Kind::Float);
            for (at, id) in ids.iter().enumerate().skip(1) {
                let recorded = f64::from(rollout.log_probs[at]);
                if rollout.sampled[at] {
                    let expected = log_probs.double_value(&[at as i64 - 1, *id]);
                    assert!((recorded - expected).abs() < 1e-5, "{recorded} {expected}");
                } else {
                    assert_eq!(recorded, 0.0);
                }
            }
            assert_eq!(rollout.sampled.iter().filter(|sampled| **sampled).count() as i64, rollout.sampled_tokens);
            assert!(rollout.input_ids.len() <= 120 && rollout.tool_calls <= 3);
        }
    }
}
