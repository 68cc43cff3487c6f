#!/usr/bin/env bash
# Large data in little memory: COPIES times (18: 10.4 GB) the benchmark's clean input from JSON lines to filtered
# trajectories, in a control group that allows 1 GiB.   tests/bench/memory.sh [COPIES]
#
# On demand, as root on Linux: it needs the input that `make bench-data` makes, and 6 GB of disk for the store. Prints how
# it ended, the peak of the resident set, and the rows. Exit code 75: no control group can be made here.
set -euo pipefail
cd "$(dirname "$0")/../.."
. infra/env.sh

limit=$((1 << 30))
data="$COA_CACHE/bench-data/M-clean"
[ -d "$data" ] || { echo "run \`make bench-data\` first: it makes the input" >&2; exit 1; }
cargo build --quiet --workspace --features jobs/train

scratch=$(mktemp -d -p "$COA_CACHE")
group=""
clear_up() {
    rm -rf "$scratch"
    [ -z "$group" ] || rmdir "$group"
}
trap clear_up EXIT
for attempt in /sys/fs/cgroup/memory:memory.limit_in_bytes /sys/fs/cgroup:memory.max; do
    group="${attempt%%:*}/coa-memory-$$"
    if mkdir "$group" 2>/dev/null && echo $limit 2>/dev/null >"$group/${attempt##*:}"; then
        break
    fi
    rmdir "$group" 2>/dev/null || true
    group=""
done
[ -n "$group" ] || { echo "no control group can be made here" >&2; exit 75; }

mkdir "$scratch/in"
for copy in $(seq -w 1 "${1:-18}"); do
    for file in "$data"/runs-*.jsonl; do
        ln "$file" "$scratch/in/$copy-$(basename "$file")"
    done
done
cat >"$scratch/p.toml" <<'TOML'
name = "memory"
[stages.ingest]
operator = "ingest_traces"
params = { format = "oagents", source = "in/*.jsonl" }
[stages.convert]
operator = "convert_coa"
inputs = { traces = "ingest.traces", steps = "ingest.steps" }
[stages.complexity]
operator = "complexity_filter"
inputs = { rows = "convert.trajectories" }
TOML

cd "$scratch"
python3 - "$group" "$COA" run p.toml --store store <<'PYTHON'
import os, pathlib, sys, time
group, *command = sys.argv[1:]
began = time.monotonic()
child = os.fork()
if child == 0:
    pathlib.Path(group, "cgroup.procs").write_text(str(os.getpid()))
    os.execv(command[0], command)
_, status, usage = os.wait4(child, 0)
seconds, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
print(f"exit code {os.waitstatus_to_exitcode(status)}, {seconds:.0f} s, {cpu:.0f} CPU s, peak {usage.ru_maxrss / 1024:.0f} MiB")
PYTHON
"$COA" sql "select stage, sum(rows_in) as rows_in, sum(rows_out) as rows_out from units where current group by stage order by 1" \
    --store store
