#!/usr/bin/env bash
# Compares the exported model of a store with Hugging Face transformers: logits, log-probabilities recorded by rollouts,
# and greedy text.   tests/parity/run.sh [STORE]
#
# On demand, not part of `make test`: the first run installs PyTorch and transformers (pinned, some 3 GB) into a virtual
# environment under COA_CACHE.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/env.sh
store=${1:-data/quickstart}

venv="$COA_CACHE/parity-venv"
if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.11.0 transformers==5.24.0 safetensors numpy
    touch "$venv/complete"
fi
cargo build --quiet --workspace --features jobs/train
"$venv/bin/python" tests/parity/compare.py "$store" "$COA" "$CARGO_TARGET_DIR/debug/parity-logits"
