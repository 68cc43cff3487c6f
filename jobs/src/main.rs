//! `coa`, the command.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use jobs::commands::Cli;
use jobs::error::CommandError;
use jobs::telemetry::{Telemetry, complain};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tell(&CommandError::Io { what: "cannot start the runtime".to_owned(), source: error }),
    };
    let telemetry = Telemetry::start(cli.log(), cli.log_format(), cli.does_units().then_some(runtime.handle()));
    let result = runtime.block_on(cli.execute());
    let code = match &result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => tell(error),
    };
    telemetry.finish();
    // Units that were told to stop and did not are left behind rather than waited for.
    runtime.shutdown_background();
    code
}

fn tell(error: &CommandError) -> ExitCode {
    match error {
        CommandError::Pipeline(diagnostics) => complain(&diagnostics.render(std::io::stderr().is_terminal())),
        other => complain(&format!("error: {other}")),
    }
    if let Some(hint) = error.hint() {
        complain(&format!("hint: {hint}"));
    }
    ExitCode::from(error.exit_code())
}
