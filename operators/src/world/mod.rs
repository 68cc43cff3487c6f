//! The quickstart's world: facts of countries, questions about them, and a team of agents that answers them with tools.
//!
//! - The *facts* come from the World Factbook, public domain; they are compiled in, so nothing has to be fetched.
//! - *Pages* tell them as text; what a search result shows of a page is rounded, so an agent that does not open the page
//!   answers most questions wrong.
//! - *Questions* need two to four steps; their answers are computed from the facts. Two questions of different sets
//!   never ask about the same pair of countries.
//! - The *team* is a multi-agent teacher: planner, searcher, reader, coder, critic and verifier. It works on real tools
//!   and has bad habits, so that every filter has something to do.

mod facts;
pub mod pages;
pub mod questions;
mod task;
pub mod teacher;
mod team;
