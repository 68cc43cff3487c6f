#!/usr/bin/env bash
# `make bench-data`: the product's way from recorded runs to Parquet beside its peers'.   tests/bench/run.sh [RUNS]
#
# On demand, not part of `make test`: the first run installs the peers (pinned) into a virtual environment, writes 1.2 GB of
# input and builds the product's side optimised, into a target folder of its own; all under COA_CACHE.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/env.sh

venv="$COA_CACHE/bench-venv"
if ! cmp -s tests/bench/requirements.txt "$venv/requirements.txt"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/bench/requirements.txt
    cp tests/bench/requirements.txt "$venv/"
fi
data="$COA_CACHE/bench-data"
for variant in clean dirty; do
    if ! cmp -s tests/bench/generate.py "$data/M-$variant/generate.py"; then
        rm -rf "$data/M-$variant"
        python3 tests/bench/generate.py "$data/M-$variant" M "$variant"
        cp tests/bench/generate.py "$data/M-$variant/"
    fi
done
target="$COA_CACHE/bench-target"
CARGO_TARGET_DIR="$target" cargo build --quiet --release -p bench
"$venv/bin/python" tests/bench/bench.py "$data" "$target/release/bench-ingest" "$venv/bin/python" "$@"
