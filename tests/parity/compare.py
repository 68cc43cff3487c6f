"""Compares an exported model with transformers. See run.sh.

Checks, all on a CPU in float32 with one thread:
1. logits of whole rollouts: this product's against transformers' (largest difference at most 1e-5);
2. log-probabilities that rollouts recorded when they sampled, on a cache and in a batch (at most 1e-4);
3. greedy text: every turn of a greedy rollout is what transformers generates from the same ids.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROLLOUTS = 24

store, coa, parity_logits = sys.argv[1:]
torch.set_num_threads(1)


def sql(query):
    command = [coa, "sql", query, "--store", store, "--format", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


record = json.load(open(sorted(glob.glob(f"{store}/units/sft/*/*.json"))[-1]))
files = {file["name"]: file["path"] for file in record["files"][0]["files"]}
folder = os.path.join(store, os.path.dirname(files["model.safetensors"]))
tokenizer = AutoTokenizer.from_pretrained(folder)
model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
assert not any(loading.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
model.eval()
print(f"model     {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters, from {folder}")

columns = "rollout_id, question, input_ids, sampled, log_probs, prompt_tokens, temperature"
rollouts = {
    stage: sql(f"select {columns} from {stage}.rollouts order by rollout_id limit {ROLLOUTS}")
    for stage in ("sampled", "greedy")
}

# The tokenizer: the prompt and the decoded text are the same there.
for rollout in rollouts["greedy"]:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": rollout["question"]}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert ids == rollout["input_ids"][: rollout["prompt_tokens"]], rollout["rollout_id"]
print(f"prompts   {len(rollouts['greedy'])} of {len(rollouts['greedy'])} have the same ids")

everything = rollouts["sampled"] + rollouts["greedy"]
with tempfile.TemporaryDirectory() as scratch:
    ids_file, logits_file = f"{scratch}/ids.json", f"{scratch}/logits.safetensors"
    json.dump([rollout["input_ids"] for rollout in everything], open(ids_file, "w"))
    subprocess.run([parity_logits, folder, ids_file, logits_file], check=True)
    ours = load_file(logits_file)

worst, equal, worst_log_prob = 0.0, 0, 0.0
with torch.no_grad():
    for number, rollout in enumerate(everything):
        ids = torch.tensor([rollout["input_ids"]])
        theirs = model(ids, use_cache=False).logits[0]
        mine = ours[str(number)]
        worst = max(worst, (mine - theirs).abs().max().item())
        equal += torch.equal(mine, theirs)
        if rollout["temperature"] == 1.0:
            log_probs = theirs[:, : len(tokenizer)].log_softmax(-1)
            for at in range(1, ids.shape[1]):
                if rollout["sampled"][at]:
                    expected = log_probs[at - 1, rollout["input_ids"][at]].item()
                    worst_log_prob = max(worst_log_prob, abs(expected - rollout["log_probs"][at]))
print(f"logits    largest difference {worst:.2e} over {len(everything)} sequences, {equal} of them bit for bit equal")
print(f"sampling  largest difference of a recorded log-probability {worst_log_prob:.2e}")
assert worst <= 1e-5 and worst_log_prob <= 1e-4

turns = 0
with torch.no_grad():
    for rollout in rollouts["greedy"]:
        ids, sampled = rollout["input_ids"], rollout["sampled"]
        at = rollout["prompt_tokens"]
        while at < len(ids):
            end = at
            while end < len(ids) and sampled[end]:
                end += 1
            if end > at:
                prefix = torch.tensor([ids[:at]])
                made = model.generate(
                    prefix, attention_mask=torch.ones_like(prefix), max_new_tokens=end - at, do_sample=False
                )
                assert made[0, at:].tolist() == ids[at:end], (rollout["rollout_id"], tokenizer.decode(made[0, at:]))
                turns += 1
            at = max(end, at + 1)
print(f"greedy    {turns} of {turns} turns are the same ids")
print("parity holds")
