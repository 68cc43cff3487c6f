//! Writes the logits of a model for given ids: `parity-logits MODEL_FOLDER IDS.json LOGITS.safetensors`.
//!
//! `IDS.json` is a list of lists of ids. The file gets a tensor for each, named by its number. For parity/compare.py.

use std::path::Path;
use std::process::ExitCode;

use operators_train::model::{CONFIG_FILE, WEIGHTS_FILE, load, write_tensors};
use tch::{Device, Tensor};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, ids, target] = &arguments[..] else {
        return fail("usage: parity-logits MODEL_FOLDER IDS.json LOGITS.safetensors");
    };
    let written = (|| {
        let folder = Path::new(folder);
        let model = load(&folder.join(CONFIG_FILE), &folder.join(WEIGHTS_FILE), Device::Cpu)?;
        let lists: Vec<Vec<i64>> = serde_json::from_slice(&std::fs::read(ids)?).map_err(std::io::Error::other)?;
        let _no_grad = tch::no_grad_guard();
        tch::set_num_threads(1);
        let logits: Vec<(String, Tensor)> = lists
            .iter()
            .enumerate()
            .map(|(number, ids)| {
                let hidden = model.hidden(&Tensor::from_slice(ids).unsqueeze(0));
                (number.to_string(), model.logits(&hidden).squeeze_dim(0))
            })
            .collect();
        write_tensors(Path::new(target), &logits)
    })();
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.chain()),
    }
}

#[expect(clippy::print_stderr, reason = "stderr is where talk goes")]
fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}
