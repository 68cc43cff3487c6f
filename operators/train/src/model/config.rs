//! The shape of a model, as `config.json` tells it.

use serde_json::{Value, json};

/// The shape of a Qwen2 decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding; may be more than the tokenizer has ids.
    pub vocabulary: i64,
    /// Width of the residual stream.
    pub hidden: i64,
    /// Width of the feed-forward layers.
    pub intermediate: i64,
    /// Layers.
    pub layers: i64,
    /// Query heads.
    pub heads: i64,
    /// Key and value heads.
    pub kv_heads: i64,
    /// Width of a head.
    pub head: i64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square before its root is taken.
    pub norm_epsilon: f64,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Positions the model was made for.
    pub max_positions: i64,
}

/// A `config.json` that is not of a model this code can run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("config.json: {0}")]
pub struct ConfigError(String);

impl Config {
    /// Reads the settings of `transformers` 4 and 5; where both are given they must agree.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Value = serde_json::from_str(text).map_err(|error| ConfigError(format!("not JSON: {error}")))?;
        let kind = config["model_type"].as_str().unwrap_or_default();
        if kind != "qwen2" {
            return Err(ConfigError(format!("model_type `{kind}` is not supported, only `qwen2` is")));
        }
        let whole = |key: &str| {
            let found = config.get(key).and_then(Value::as_i64).filter(|number| *number > 0);
            found.ok_or_else(|| ConfigError(format!("`{key}` is missing or no positive whole number")))
        };
        if config["use_sliding_window"].as_bool() == Some(true) {
            return Err(ConfigError("sliding-window attention is not supported".into()));
        }
        let activation = config["hidden_act"].as_str().unwrap_or("silu");
        if activation != "silu" {
            return Err(ConfigError(format!("hidden_act `{activation}` is not supported")));
        }
        let (hidden, heads) = (whole("hidden_size")?, whole("num_attention_heads")?);
        let kv_heads = whole("num_key_value_heads").unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(ConfigError(format!("{heads} heads cannot share {kv_heads} key-value heads")));
        }
        let head = whole("head_dim").unwrap_or(hidden / heads);
        Ok(Self {
            vocabulary: whole("vocab_size")?,
            hidden,
            intermediate: whole("intermediate_size")?,
            layers: whole("num_hidden_layers")?,
            heads,
            kv_heads,
            head,
            rope_theta: theta(&config)?,
            norm_epsilon: config["rms_norm_eps"].as_f64().unwrap_or(1e-6),
            tied: config["tie_word_embeddings"].as_bool().unwrap_or(false),
            max_positions: whole("max_position_embeddings").unwrap_or(32_768),
        })
    }

    /// `config.json` for `transformers` 4 and 5.
    pub fn to_json(&self, end_of_turn: u32, pad: u32) -> String {
        let layer_types: Vec<&str> = (0..self.layers).map(|_| "full_attention").collect();
        let config = json!({
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "initializer_range": 0.02,
            "rms_norm_eps": self.norm_epsilon,
            "use_cache": true,
            "tie_word_embeddings": self.tied,
            "rope_theta": self.rope_theta,
            "rope_scaling": null,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "use_sliding_window": false,
            "sliding_window": null,
            "layer_types": layer_types,
            "attention_dropout": 0.0,
            "bos_token_id": null,
            "eos_token_id": end_of_turn,
            "pad_token_id": pad,
            "torch_dtype": "float32",
            "dtype": "float32",
        });
        serde_json::to_string_pretty(&config).expect("plain data")
    }

    /// Names and shapes of all weights, in the order of the layers.
    pub fn weights(&self) -> Vec<(String, Vec<i64>)> {
        let (queries, keys) = (self.heads * self.head, self.kv_heads * self.head);
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocabulary, self.hidden])];
        for layer in 0..self.layers {
            let mut add =
                |name: &str, shape: &[i64]| all.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
            add("input_layernorm.weight", &[self.hidden]);
            add("self_attn.q_proj.weight", &[queries, self.hidden]);
            add("self_attn.q_proj.bias", &[queries]);
            add("self_attn.k_proj.weight", &[keys, self.hidden]);
            add("self_attn.k_proj.bias", &[keys]);
            add("self_attn.v_proj.weight", &[keys, self.hidden]);
            add("self_attn.v_proj.bias", &[keys]);
            add("self_attn.o_proj.weight", &[self.hidden, queries]);
            add("post_attention_layernorm.weight", &[self.hidden]);
            add("mlp.gate_proj.weight", &[self.intermediate, self.hidden]);
            add("mlp.up_proj.weight", &[self.intermediate, self.hidden]);
            add("mlp.down_proj.weight", &[self.hidden, self.intermediate]);
        }
        all.push(("model.norm.weight".to_owned(), vec![self.hidden]));
        if !self.tied {
            all.push(("lm_head.weight".to_owned(), vec![self.vocabulary, self.hidden]));
        }
        all
    }

    /// Number of parameters.
    pub fn parameters(&self) -> i64 {
        self.weights().iter().map(|(_, shape)| shape.iter().product::<i64>()).sum()
    }
}

/// The base of the rotary frequencies. There is no default: models of one architecture differ by a factor of 100, and a
/// wrong one runs.
fn theta(config: &Value) -> Result<f64, ConfigError> {
    let new = &config["rope_parameters"];
    let kinds = [new.get("rope_type"), config["rope_scaling"].get("rope_type"), config["rope_scaling"].get("type")];
    if let Some(kind) = kinds.into_iter().flatten().filter_map(Value::as_str).find(|kind| *kind != "default") {
        return Err(ConfigError(format!("rotary scaling `{kind}` is not supported")));
    }
    match (config["rope_theta"].as_f64(), new["rope_theta"].as_f64()) {
        (Some(a), Some(b)) if a != b => {
            Err(ConfigError(format!("`rope_theta` is {a} in one place and {b} in another")))
        }
        (Some(theta), _) | (None, Some(theta)) => Ok(theta),
        (None, None) => Err(ConfigError("`rope_theta` is missing".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qwen(
        hidden: i64,
        intermediate: i64,
        layers: i64,
        heads: i64,
        kv_heads: i64,
        vocabulary: i64,
        tied: bool,
    ) -> Config {
        Config {
            vocabulary,
            hidden,
            intermediate,
            layers,
            heads,
            kv_heads,
            head: hidden / heads,
            rope_theta: 1e6,
            norm_epsilon: 1e-6,
            tied,
            max_positions: 32_768,
        }
    }

    /// Parameter and tensor counts of the published sizes.
    #[test]
    fn the_published_sizes() {
        for (config, parameters, tensors) in [
            (qwen(896, 4864, 24, 14, 2, 151_936, true), 494_032_768, 290),
            (qwen(1536, 8960, 28, 12, 2, 151_936, true), 1_543_714_304, 338),
            (qwen(2048, 11_008, 36, 16, 2, 151_936, true), 3_085_938_688, 434),
            (qwen(3584, 18_944, 28, 28, 4, 152_064, false), 7_615_616_512, 339),
            (qwen(5120, 27_648, 64, 40, 8, 152_064, false), 32_763_876_352, 771),
        ] {
            assert_eq!((config.parameters(), config.weights().len()), (parameters, tensors));
        }
    }

    #[test]
    fn a_written_config_is_read_back() {
        let config = qwen(64, 128, 2, 4, 2, 300, true);
        assert_eq!(Config::parse(&config.to_json(2, 0)), Ok(config));
    }

    #[test]
    fn what_cannot_be_run_is_refused_by_name() {
        let good = qwen(64, 128, 2, 4, 2, 300, true).to_json(2, 0);
        let refused = |from: &str, to: &str| {
            let text = good.replace(from, to);
            assert_ne!(text, good);
            Config::parse(&text).unwrap_err().to_string()
        };
        assert!(refused("\"model_type\": \"qwen2\"", "\"model_type\": \"qwen3_moe\"").contains("qwen3_moe"));
        assert!(refused("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"").contains("yarn"));
        assert!(
            refused("\"rope_theta\": 1000000.0,\n  \"rope_scaling\"", "\"rope_theta\": 10000.0,\n  \"rope_scaling\"")
                .contains("10000")
        );
        assert!(refused("rope_theta", "theta").contains("`rope_theta` is missing"));
        assert!(refused("\"use_sliding_window\": false", "\"use_sliding_window\": true").contains("sliding"));
    }
}
