//! Runs many rollouts on one model: a batch of places, each taken by the next rollout as soon as it is free.

use std::collections::VecDeque;

use operators::tokens::Codec;
use operators::{OperatorError, seed};
use schemas::{Finish, Question, Rollout};
use tools::{Observation, Toolbox};

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
        let answers = self.answer(&nexts);
        let mut ended: Vec<(usize, Finish)> = Vec::new();
        for (row, (next, answer)) in nexts.into_iter().zip(answers).enumerate() {
            match (next, answer) {
                (Next::Call { tag, .. }, Some((observation, seconds))) => {
                    let seat = &mut seats[row];
                    let next = self.observe(cache, row as i64, &mut seat.agent, seat.seed, tag, &observation, seconds)?;
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
    fn answer(&self, nexts: &[Next]) -> Vec<Option<(Observation, f64)>> {
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
        std::thread::scope(|scope| {
            let threads: Vec<_> = calls
                .chunks(share)
                .map(|part| {
                    scope.spawn(move || {
                        part.iter()
                            .map(|(row, tag, body)| (*row, Agent::use_tool(tools, tag, body)))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            for thread in threads {
                for (row, answer) in thread.join().expect("a tool does not panic") {
                    answers[row] = Some(answer);
                }
            }
        });
        answers
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
                    let (observation, seconds) = Agent::use_tool(self.tools, tag, &body);
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
