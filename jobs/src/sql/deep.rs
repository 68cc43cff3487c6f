//! A place with a deep stack: the engine walks through expressions by recursion, and so do the values it makes when they
//! are dropped. A stack that overflows ends the process without a word.

use std::future::Future;
use std::thread::Builder;

use crate::error::CommandError;

/// Memory is taken as it is touched, so the size costs nothing until a query needs it.
const STACK: usize = 512 << 20;

/// Does work on a thread with a deep stack, and what it spawns on others with the same.
pub fn on_deep_stack<F, T>(work: impl FnOnce() -> F + Send) -> Result<T, CommandError>
where
    F: Future<Output = Result<T, CommandError>>,
    T: Send,
{
    let failed = |source| CommandError::Io { what: "cannot start a thread for queries".to_owned(), source };
    // What damaged bytes make a reader panic with is told in the error of the query.
    std::panic::set_hook(Box::new(|panic| tracing::debug!(%panic, "a panic")));
    let begin = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_stack_size(STACK)
            .enable_all()
            .build()
            .map_err(failed)?;
        let result = runtime.block_on(work());
        runtime.shutdown_background();
        result
    };
    std::thread::scope(|scope| {
        let thread = Builder::new().name("queries".to_owned()).stack_size(STACK).spawn_scoped(scope, begin);
        match thread.map_err(failed)?.join() {
            Ok(result) => result,
            Err(_) => Err(CommandError::Query("the query engine failed; `--log debug` tells where".to_owned())),
        }
    })
}
