#!/usr/bin/env python3
"""Runs `make bench-data`: the product beside its peers at one job, equality first, speed after.

    bench.py DATA_FOLDER BENCH_INGEST VENV_PYTHON [RUNS]

The job: read recorded runs, keep those with at least 5 calls that are correct, write them as Parquet with zstd at level 3
in row groups of about 128 MiB. Each tool runs once unmeasured; what it wrote is compared with the input. Then all run in
turns, so that a busy moment of the machine hits them alike. CPU is user and system time of the process and its children.

On damaged input each runs once, the peers as lenient as they can be: what counts there is which rows are lost or changed
and which bad bytes are kept.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

PEERS = ["polars", "duckdb", "pyarrow", "orjson", "datatrove"]
CONDITIONS = ["n_calls >= 5", "correct"]
# Of about 20 KB each: row groups of about 128 MiB.
ROWS_PER_GROUP = "6144"
HERE = pathlib.Path(__file__).parent


def run(command: list[str], log: pathlib.Path) -> dict:
    """Runs a command. This process stays small: a child begins with the peak memory of its parent."""
    with open(log, "wb") as out:
        start = time.monotonic()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    return {"rc": child.returncode, "cpu": usage.ru_utime + usage.ru_stime, "wall": wall, "rss": usage.ru_maxrss / 1024}


class Bench:
    def __init__(self, data: pathlib.Path, ingest: str, python: str):
        self.data, self.ingest, self.python = data, ingest, python

    def measure(self, tool: str, source: pathlib.Path, mode: str = "strict") -> dict:
        out = self.data / f"out-{tool}"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        command = [self.python, str(HERE / "peers.py"), tool, str(source), str(out), ROWS_PER_GROUP, mode]
        if tool == "coa":
            command = [self.ingest, str(source), str(out), "3", *CONDITIONS]
        facts = run(command, out / "log.txt")
        facts["mb"] = sum(path.stat().st_size for path in out.rglob("*.parquet")) / 1e6
        return facts

    def equality(self, tool: str, source: pathlib.Path) -> dict:
        command = [self.python, str(HERE / "equality.py"), tool, str(source), str(self.data / f"out-{tool}")]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def last_words(self, tool: str) -> str:
        lines = (self.data / f"out-{tool}" / "log.txt").read_text(errors="replace").strip().splitlines()
        return lines[-1][:90] if lines else ""

    def versions(self) -> dict:
        code = "import importlib.metadata as m, sys; print(*[m.version(p) for p in sys.argv[1:]])"
        found = subprocess.run([self.python, "-c", code, *PEERS], check=True, capture_output=True, text=True).stdout
        return dict(zip(PEERS, found.split())) | {"coa": "-"}


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def main() -> int:
    bench = Bench(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    turns = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    clean, dirty = bench.data / "M-clean", bench.data / "M-dirty"
    versions = bench.versions()
    failed = False

    rows = {}
    for tool in ["coa", *PEERS]:
        facts = bench.measure(tool, clean)
        same = bench.equality(tool, clean) if facts["rc"] == 0 else {}
        rows[tool] = same.get("rows")
        wrong = {key: same[key] for key in ["twice", "lost", "different", "unexpected"] if same.get(key)}
        if facts["rc"] != 0 or wrong:
            print(f"{tool}: not equal: {wrong or bench.last_words(tool)}")
            failed = True
    if failed:
        return 1
    print(f"equal: {rows['coa']} runs, same ids, same texts\n")

    measured = {tool: [] for tool in rows}
    for _ in range(turns):
        for tool, runs in measured.items():
            runs.append(bench.measure(tool, clean))
    ours = statistics.median(facts["cpu"] for facts in measured["coa"])
    print("| tool | version | CPU s | wall s | peak RSS MiB | MB out | rows | CPU, coa = 1 |\n|---|---|---|---|---|---|---|---|")
    for tool, runs in measured.items():
        cpu = [facts["cpu"] for facts in runs]
        cells = [spread(cpu, 2), spread([facts["wall"] for facts in runs], 1), f"{max(facts['rss'] for facts in runs):.0f}"]
        ratio = statistics.median(cpu) / ours
        print(f"| {tool} | {versions[tool]} | {' | '.join(cells)} | {runs[0]['mb']:.0f} | {rows[tool]} | {ratio:.2f} |")

    print("\n| on damaged input | rows | good rows lost | changed | bad rows let in | bad lines kept | |\n|---|---|---|---|---|---|---|")
    for tool in rows:
        facts = bench.measure(tool, dirty, "lenient")
        if facts["rc"] != 0:
            print(f"| {tool} | 0 | all | | | 0 | fails: {bench.last_words(tool)} |")
            failed |= tool == "coa"
            continue
        seen = bench.equality(tool, dirty)
        cells = [seen["rows"], seen["lost"], seen["different"], seen["unexpected"], f"{seen['bad_kept']} of {seen['bad']}", ""]
        print(f"| {tool} | {' | '.join(map(str, cells))} |")
        whole = not (seen["lost"] or seen["different"] or seen["unexpected"] or seen["twice"])
        failed |= tool == "coa" and not (whole and seen["bad_kept"] == seen["bad"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
