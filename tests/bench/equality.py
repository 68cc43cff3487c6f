#!/usr/bin/env python3
"""Whether a tool of `make bench-data` has written what it should have: the same runs, with the same texts.

    equality.py TOOL INPUT_FOLDER OUTPUT_FOLDER        prints a JSON object

The expected runs are read from the input line by line, leaving out the lines that the generator says are bad. Of each run
its id and a hash over its texts in order are compared: question, answers, what was planned, said, called and observed.
"""

import glob
import hashlib
import json
import pathlib
import sys

import pyarrow.parquet as parquet


def digest(parts: list[str]) -> str:
    return hashlib.blake2b("\x1f".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def of_record(run: dict) -> str:
    """Of a run as it is recorded, and as the peers keep it."""
    parts = [run["question"], run["prediction"], run["true_answer"]]
    for step in run["intermediate_steps"]:
        if step["step_type"] == "task":
            parts.append(step["task"])
        elif step["step_type"] == "planning":
            parts += [step["facts"], step["plan"]]
        else:
            function = step["tool_calls"][0]["function"]
            parts.append(step["model_output"])
            if function["name"] == "final_answer":
                parts.append(json.loads(function["arguments"])["answer"])
            else:
                parts += [function["arguments"], step["observations"]]
    return digest(parts)


def rows(pattern: str, columns: list[str] | None = None):
    for path in sorted(glob.glob(pattern)):
        for batch in parquet.ParquetFile(path).iter_batches(256, columns=columns):
            yield from batch.to_pylist()


def of_product(folder: str) -> list[tuple[str, str]]:
    texts: dict[str, list[str]] = {}
    for step in rows(f"{folder}/steps-*.parquet", ["trace_id", "kind", "text", "arguments", "observation"]):
        parts = texts.setdefault(step["trace_id"], [])
        if step["kind"] == "call":
            parts += [json.loads(step["arguments"])["code"], step["observation"]]
        else:
            parts.append(step["text"])
    found = []
    for trace in rows(f"{folder}/traces-*.parquet"):
        head = [trace["question"], trace["prediction"], trace["golden_answers"][0]]
        found.append((trace["task_id"], digest(head + texts.pop(trace["trace_id"], []))))
    return found + [(f"steps of no trace: {trace}", "") for trace in texts]


def of_peer(tool: str, folder: str) -> list[tuple[str, str]]:
    found = []
    for row in rows(f"{folder}/*.parquet"):
        if tool == "datatrove":
            row = row["metadata"] | {"question": row["text"], "task_id": row["id"]}
        try:
            found.append((row["task_id"], of_record(row)))
        except (TypeError, KeyError, AttributeError, IndexError):
            found.append((str(row["task_id"]), "not a whole run"))
    return found


def main() -> None:
    tool, source, target = sys.argv[1:]
    manifest = json.loads(pathlib.Path(source, "manifest.json").read_text())
    bad = {(line["file"], line["offset"]): line for line in manifest["bad"]}
    expected = {}
    for file in manifest["files"]:
        offset = 0
        with open(pathlib.Path(source, file["name"]), "rb") as lines:
            for line in lines:
                if (file["name"], offset) not in bad:
                    run = json.loads(line)
                    if run["n_calls"] >= 5 and run["correct"]:
                        expected[run["task_id"]] = of_record(run)
                offset += len(line)
    assert len(expected) == manifest["kept"], "the input is not what its manifest says"

    found = of_product(target) if tool == "coa" else of_peer(tool, target)
    by_id = dict(found)
    report = {
        "expected": len(expected),
        "rows": len(found),
        "twice": len(found) - len(by_id),
        "lost": sum(name not in by_id for name in expected),
        "different": sum(by_id.get(name, text) != text for name, text in expected.items()),
        "unexpected": sum(name not in expected for name in by_id),
        "bad": sum(line["kind"] != "blank" for line in manifest["bad"]),
        "bad_kept": 0,
    }
    for row in rows(f"{target}/quarantine-*.parquet") if tool == "coa" else []:
        line = bad.get((pathlib.Path(row["source"]).name, row["byte_offset"]))
        report["bad_kept"] += line is not None and hashlib.sha256(row["raw"]).hexdigest() == line["sha256"]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
