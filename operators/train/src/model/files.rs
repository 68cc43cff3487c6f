//! Models as files in Hugging Face layout.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use memmap2::Mmap;
use operators::OperatorError;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::config::Config;
use super::forward::Qwen2;

/// The shape.
pub const CONFIG_FILE: &str = "config.json";
/// When generation ends.
pub const GENERATION_FILE: &str = "generation_config.json";
/// The weights.
pub const WEIGHTS_FILE: &str = "model.safetensors";

/// `generation_config.json`.
pub fn generation_config(end_of_turn: u32, pad: u32) -> String {
    let config = json!({"eos_token_id": [end_of_turn, pad], "pad_token_id": pad, "do_sample": false});
    serde_json::to_string_pretty(&config).expect("plain data")
}

/// Writes named float32 tensors as one safetensors file, in the order of their names.
pub fn write_tensors(path: &Path, tensors: &[(String, Tensor)]) -> Result<(), OperatorError> {
    let mut bytes: BTreeMap<&str, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (name, tensor) in tensors {
        let tensor = tensor.to_device(Device::Cpu).to_kind(Kind::Float).contiguous();
        let mut raw = vec![0_u8; tensor.numel() * 4];
        tensor.copy_data_u8(&mut raw, tensor.numel());
        bytes.insert(name, (tensor.size().iter().map(|size| *size as usize).collect(), raw));
    }
    let views = bytes.iter().map(|(name, (shape, raw))| {
        let view = TensorView::new(Dtype::F32, shape.clone(), raw).expect("shape and bytes belong together");
        ((*name).to_owned(), view)
    });
    // Readers ask for the format; without this entry some refuse the file.
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    serialize_to_file(views, metadata, path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(error) => error.into(),
        other => OperatorError::internal("tensors cannot be written").because(other),
    })
}

/// Reads all tensors of a safetensors file as float32.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor>, OperatorError> {
    let damaged = |why: String| {
        OperatorError::input(format!("`{}` is no usable safetensors file: {why}", path.display()))
            .hint("restore it from a copy, or make it again")
    };
    let file = File::open(path)?;
    // SAFETY: the file is one of a committed unit or of this attempt's own folder: nobody writes to it while it is read.
    let mapped = unsafe { Mmap::map(&file)? };
    let tensors = SafeTensors::deserialize(&mapped).map_err(|error| damaged(error.to_string()))?;
    let mut found = BTreeMap::new();
    for (name, view) in tensors.tensors() {
        let kind = match view.dtype() {
            Dtype::F32 => Kind::Float,
            Dtype::F16 => Kind::Half,
            Dtype::BF16 => Kind::BFloat16,
            other => return Err(damaged(format!("`{name}` is of type {other:?}"))),
        };
        let shape: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
        let tensor = Tensor::f_from_data_size(view.data(), &shape, kind).map_err(|error| damaged(error.to_string()))?;
        found.insert(name, tensor.to_kind(Kind::Float));
    }
    Ok(found)
}

/// Loads a model. Every expected weight must be there with its shape, and no other.
pub fn load(config: &Path, weights: &Path, device: Device) -> Result<Qwen2, OperatorError> {
    let config = Config::parse(&std::fs::read_to_string(config)?)
        .map_err(|error| OperatorError::input(error.to_string()).because(error))?;
    let mut found = read_tensors(weights)?;
    let wrong = |why: String| {
        OperatorError::input(format!("`{}` does not fit its config.json: {why}", weights.display()))
            .hint("use the weights and the configuration of one model")
    };
    let mut tensors = Vec::new();
    for (name, shape) in config.weights() {
        let tensor = found.remove(&name).ok_or_else(|| wrong(format!("`{name}` is missing")))?;
        if tensor.size() != shape {
            return Err(wrong(format!("`{name}` has shape {:?}, expected {shape:?}", tensor.size())));
        }
        tensors.push((name, tensor.to_device(device)));
    }
    // A tied head may be stored once more; it must be the embedding.
    if let Some(head) = found.remove("lm_head.weight")
        && head.to_device(device) != tensors[0].1
    {
        return Err(wrong("it is tied, but `lm_head.weight` differs from the embedding".into()));
    }
    if let Some(name) = found.keys().next() {
        return Err(wrong(format!("`{name}` is not part of a Qwen2 model")));
    }
    Ok(Qwen2::new(config, tensors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Start;

    #[test]
    fn a_model_is_read_back_bit_for_bit_and_a_damaged_one_is_refused() {
        let config = Config {
            vocabulary: 30,
            hidden: 16,
            intermediate: 24,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head: 8,
            rope_theta: 1e4,
            norm_epsilon: 1e-6,
            tied: true,
            max_positions: 64,
        };
        let folder = tempfile::tempdir().unwrap();
        let [shape, weights] = [CONFIG_FILE, WEIGHTS_FILE].map(|name| folder.path().join(name));
        let model = Start::Normal.model(config.clone(), 1, Device::Cpu);
        write_tensors(&weights, model.weights()).unwrap();
        std::fs::write(&shape, config.to_json(2, 0)).unwrap();
        let back = load(&shape, &weights, Device::Cpu).unwrap();
        for ((name, a), (_, b)) in model.weights().iter().zip(back.weights()) {
            assert!(a == b, "{name}");
        }
        let mut bytes = std::fs::read(&weights).unwrap();
        bytes.truncate(bytes.len() / 2);
        std::fs::write(&weights, &bytes).unwrap();
        let error = load(&shape, &weights, Device::Cpu).err().unwrap();
        assert!(error.message.contains("no usable safetensors file"), "{}", error.message);
        let mut fewer = model.weights()[1..].iter().map(|(n, t)| (n.clone(), t.shallow_clone())).collect::<Vec<_>>();
        write_tensors(&weights, &fewer).unwrap();
        assert!(load(&shape, &weights, Device::Cpu).err().unwrap().message.contains("embed_tokens.weight` is missing"));
        fewer.push(("model.embed_tokens.weight".into(), Tensor::zeros([3, 3], (Kind::Float, Device::Cpu))));
        write_tensors(&weights, &fewer).unwrap();
        assert!(
            load(&shape, &weights, Device::Cpu).err().unwrap().message.contains("has shape [3, 3], expected [30, 16]")
        );
    }
}
