//! Waking workers that have nothing to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use apalis_core::backend::ext::poll_strategy::{IntervalStrategy, PollSnapshot, PollStrategy};
use futures::task::AtomicWaker;
use operators::Queue as Kind;

/// Wakes one worker.
#[derive(Default)]
pub(super) struct Waking {
    due: AtomicBool,
    waker: AtomicWaker,
}

impl Waking {
    pub(super) fn wake(&self) {
        self.due.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Wakes the workers of this process.
#[derive(Default)]
pub(super) struct Wakings(Mutex<Vec<(Kind, Arc<Waking>)>>);

impl Wakings {
    pub(super) fn add(&self, kind: Kind) -> Arc<Waking> {
        let waking = Arc::<Waking>::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((kind, Arc::clone(&waking)));
        waking
    }

    pub(super) fn wake(&self, kind: Kind) {
        for (of, waking) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if *of == kind {
                waking.wake();
            }
        }
    }
}

/// When a worker looks for a job: when woken, and every so often.
#[derive(Clone)]
pub(super) struct Woken {
    waking: Arc<Waking>,
    every: Duration,
    interval: IntervalStrategy,
}

impl Woken {
    pub(super) fn new(waking: Arc<Waking>, every: Duration) -> Self {
        Self { waking, every, interval: IntervalStrategy::new(every) }
    }
}

impl std::fmt::Debug for Woken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Woken").field("every", &self.every).finish_non_exhaustive()
    }
}

impl PollStrategy for Woken {
    fn poll_drive(&mut self, cx: &mut Context<'_>, snapshot: &PollSnapshot) -> Poll<Option<()>> {
        self.waking.waker.register(cx.waker());
        let due = self.waking.due.swap(false, Ordering::AcqRel);
        let elapsed = self.interval.poll_drive(cx, snapshot).is_ready();
        if due || elapsed {
            // Asked again, so that a wake-up between now and the end of this look is not lost.
            cx.waker().wake_by_ref();
            return Poll::Ready(Some(()));
        }
        Poll::Pending
    }
}
