#!/usr/bin/env bash
# Reads every table of a store with DuckDB, Polars, deltalake, pandas and datasets, and compares what they find with
# `coa sql`: from a folder, and straight from S3, where the run was killed with SIGKILL and resumed.
#   tests/readers/run.sh
#
# On demand, not part of `make test`: the first run installs the readers (pinned, some 900 MB) into a virtual
# environment under COA_CACHE, and infra/s3-up.sh brings S3. Exit code 75: that cannot be installed here. What is
# compared stands in read.py. What stages `publish` leave is loaded as people load data sets: see published.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/env.sh

# DuckDB is the newest whose extensions are packaged on PyPI: it otherwise fetches them from a host of its own.
venv="$COA_CACHE/readers-venv"
if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check \
        duckdb==1.5.5 duckdb-extension-delta==1.5.5 duckdb-extension-httpfs==1.5.5 polars==2.1.0 deltalake==1.6.6 \
        pandas==3.1.1 datasets==5.2.0 pyarrow==26.0.1 s3fs==2026.9.0
    touch "$venv/complete"
fi
cargo build --quiet --workspace --features jobs/train
servers=$(bash infra/s3-up.sh)
eval "$servers"
export AWS_ENDPOINT_URL="$COA_TEST_RGW"

scratch=$(mktemp -d)
bucket="readers-$$"
clear_up() {
    "$venv/bin/python" tests/readers/bucket.py remove "$bucket" || true
    rm -rf "$scratch"
}
trap clear_up EXIT

# The quickstart up to its model, with a tenth of the questions, and a source with what it has none of: times, one of
# them before 1970, text beyond ASCII, and a record that is no text.
pipeline="$scratch/pipeline.toml"
sed -e '/^\[stages\.sft\]/,$d' -e 's/train = 4000, heldout = 256, last = 512/train = 400, heldout = 32, last = 32/' \
    pipelines/quickstart.toml >"$pipeline"
cat >>"$pipeline" <<TOML
[stages.odd]
operator = "ingest_traces"
params = { format = "oagents", source = "$scratch/odd.jsonl" }
[stages.published]
operator = "publish"
inputs = { rows = "convert.trajectories" }
params = { validation = 0.2, max_shard_bytes = 200000, license = "cc0-1.0", pretty_name = "Runs: \"world\"" }
[stages.published_tokens]
operator = "publish"
inputs = { rows = "tokens.tokens" }
params = { validation = 0.2 }
[stages.published_steps]
operator = "publish"
inputs = { rows = "ingest.steps" }
[stages.published_nothing]
operator = "publish"
inputs = { rows = "odd.rejected" }
params = { validation = 0.5 }
TOML
printf '%s\n' '{"agent_name": "team", "task_id": "t", "question": "Wie tief ist der Vällsee? 🚢 \u0000",
    "prediction": "84", "true_answer": "84", "agent_error": null, "search_agent_actions": {},
    "start_time": "2025-08-01T10:00:00.123456+08:00", "end_time": 1754013600.5, "intermediate_steps": [
    {"step_type": "action", "step": 1, "start_time": -1.5, "end_time": 0, "model_output": "look", "observations": "",
     "tool_calls": [{"id": "c", "type": "function", "function": {"name": "web_search", "arguments":
     {"query": "Väll \"see\" 🚢", "deep": {"er": [1.5, null, 12345678901234567890]}}}}], "error": null}]}' |
    tr -d '\n' >"$scratch/odd.jsonl"
printf '\n{"agent_name": "team", \xff}\n' >>"$scratch/odd.jsonl"

folder="$scratch/store"
"$COA" run --quiet "$pipeline" --store "$folder"
times=$("$COA" sql "select started_at, ended_at from odd.traces" --store "$folder" --format csv | tail -1)
[ "$times" = 2025-08-01T02:00:00.123456Z,2025-08-01T02:00:00.500Z ] || { echo "the times are $times" >&2; exit 1; }

"$venv/bin/python" tests/readers/published.py "$COA" "$folder" published=convert.trajectories \
    published_tokens=tokens.tokens published_steps=ingest.steps published_nothing=odd.rejected

store="s3://$bucket/some/prefix"
"$COA" doctor --store "$store" --mend
"$venv/bin/python" tests/readers/bucket.py kill-at "$store/units/ingest" "$COA" run --quiet "$pipeline" --store "$store"
"$COA" status --store "$store"
"$COA" resume --quiet --store "$store"
shares=$("$COA" sql "select run, count(*) from units where stage = 'ingest' group by run" --store "$store" --format csv)
[ "$(wc -l <<<"$shares")" = 3 ] || { echo "the run was not killed amid its work: $shares" >&2; exit 1; }

"$venv/bin/python" tests/readers/read.py "$COA" "$folder" "$store"
