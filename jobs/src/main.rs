//! `coa`, the command.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use jobs::commands::Cli;
use jobs::error::CommandError;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_new(cli.log()).unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tell(&CommandError::Io { what: "cannot start the runtime".to_owned(), source: error }),
    };
    let result = runtime.block_on(cli.execute());
    // Units that were told to stop and did not are left behind rather than waited for.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => tell(&error),
    }
}

#[expect(clippy::print_stderr, reason = "stderr is where talk goes")]
fn tell(error: &CommandError) -> ExitCode {
    match error {
        CommandError::Pipeline(diagnostics) => eprintln!("{}", diagnostics.render(std::io::stderr().is_terminal())),
        other => eprintln!("error: {other}"),
    }
    if let Some(hint) = error.hint() {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(error.exit_code())
}
