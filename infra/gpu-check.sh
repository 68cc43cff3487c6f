#!/usr/bin/env bash
# Checks on a machine with a GPU and PyTorch 2.11 (CUDA): the binary built for CPUs finds CUDA, trains, and answers as it
# does on a CPU. Needs a built `coa` and no network. Prints one line a check and exits with the number that failed.
#   infra/gpu-check.sh [COA] [SMALL_PIPELINE.toml]
set -uo pipefail
cd "$(dirname "$0")/.."
. infra/env.sh
coa=${1:-$COA}
pipeline=${2:-pipelines/quickstart.toml}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
check() {
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok      $name"
    else
        echo "FAILED  $name"
        tail -n 15 "$work/log"
        failed=$((failed + 1))
    fi
}

# The real libtorch.so, which brings CUDA, in front of the empty one the binary was linked with.
torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')
export LD_LIBRARY_PATH="$torch/lib:${LD_LIBRARY_PATH:-}"

check "a GPU is there" nvidia-smi
check "PyTorch is 2.11 with CUDA" python3 -c 'import torch; assert torch.__version__.startswith("2.11"), torch.__version__; assert torch.cuda.is_available()'
check "the binary starts on that libtorch" "$coa" operators
check "the pipeline runs" "$coa" run "$pipeline" --store "$work/store" --quiet
check "training ran on the GPU" bash -c "'$coa' sql \"select device from (select counts from units where stage = 'sft') t, (select 'cuda' as device) d where t.counts like '%\\\"cuda\\\":1%'\" --store '$work/store' --format csv | grep -q cuda"
check "the report" "$coa" report --store "$work/store"
"$coa" report --store "$work/store" | grep -E "^(training|agent)" || true
exit "$failed"
