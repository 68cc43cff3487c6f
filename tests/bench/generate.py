#!/usr/bin/env python3
"""Writes the inputs of `make bench-data`: recorded agent runs in the OAgents layout, JSON lines.

    generate.py FOLDER {S|M} {clean|dirty}

The same call writes the same bytes. S has about 64 MB, M about 576 MB, in files of about 72 MB; the mean run has 18 KB
and 2 to 12 actions, a few have megabytes. A tenth repeats the texts of an earlier run. `n_calls` and `correct` stand in
each record, as the filter of the benchmark wants them. `dirty` is `clean` with one bad line more among 200 good ones, of
the kinds in BAD; `manifest.json` says which bytes stand where.
"""

import hashlib
import itertools
import json
import pathlib
import random
import sys

ROWS = {"S": 3_400, "M": 30_400}
ROWS_PER_FILE = 3_800
# Row number to megabytes: at the start, in the middle and at a seam of two files.
LARGE = {"S": {1_700: 4}, "M": {7: 4, 3_799: 4, 15_000: 16, 27_001: 8}}
BAD = ["lone_surrogate", "nul", "duplicate_key", "truncated", "invalid_utf8", "blank", "nan", "huge_integer", "byte_order_mark"]
LETTERS = "etaoinshrdlucmfwypvbgk"


class Writer:
    """Draws texts and runs."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        words = set()
        while len(words) < 20_000:
            words.add("".join(self.rng.choices(LETTERS, k=self.rng.randint(2, 10))))
        self.words = sorted(words)
        self.rng.shuffle(self.words)
        self.words[40:45] = ['"quoted"', "naïve", "东京", "a\tb", "C:\\data"]
        self.weights = list(itertools.accumulate(1 / (rank + 2) for rank in range(len(self.words))))

    def text(self, size: int) -> str:
        """About `size` bytes: lines of Zipf words."""
        words = self.rng.choices(self.words, cum_weights=self.weights, k=max(1, size // 6))
        lines = [" ".join(words[at : at + 14]) for at in range(0, len(words), 14)]
        return "\n".join(lines)

    def size(self, mean: int) -> int:
        return min(int(self.rng.lognormvariate(0, 0.6) * mean / 1.2), 20 * mean)

    def run(self, number: int, large: int) -> dict:
        rng = self.rng
        question = self.text(90).replace("\n", " ") + "?"
        answer = self.text(20)
        correct = large > 0 or rng.random() < 0.68
        actions = 9 if large else rng.randint(2, 12)
        steps = [
            {"step_type": "task", "task": question},
            {"step_type": "planning", "facts": self.text(self.size(380)), "plan": self.text(self.size(300))},
        ]
        clock = 1_750_000_000 + number * 60
        for action in range(1, actions):
            observation = large * 1_000_000 if action == 5 else 0
            query = self.text(40).replace("\n", " ")
            steps.append(
                self.action(
                    action,
                    clock + action,
                    "python_interpreter",
                    f"found = web_search(query={query!r})\n# {self.text(self.size(90))!r}\nprint(found)",
                    self.text(self.size(370)),
                    self.text(observation or self.size(1_340)),
                )
            )
        last = json.dumps({"answer": answer}, ensure_ascii=False)
        steps.append(self.action(actions, clock + actions, "final_answer", last, self.text(self.size(230)), None))
        return {
            "task_id": f"task-{number:07}",
            "agent_name": "teacher",
            "question": question,
            "prediction": answer,
            "true_answer": answer if correct else self.text(20),
            "agent_error": None,
            "parsing_error": False,
            "iteration_limit_exceeded": False,
            "start_time": "2025-08-01T10:00:00Z",
            "end_time": "2025-08-01T10:01:00Z",
            "n_calls": actions - 1,
            "correct": correct,
            "intermediate_steps": steps,
        }

    @staticmethod
    def action(number: int, clock: int, tool: str, arguments: str, said: str, observed: str | None) -> dict:
        call = {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": arguments}}
        return {
            "step_type": "action",
            "step": number,
            "start_time": clock + 0.25,
            "end_time": clock + 0.75,
            "tool_calls": [call],
            "model_output": said,
            "observations": observed,
            "error": None,
        }


def encode(run: dict) -> bytes:
    return json.dumps(run, ensure_ascii=False, separators=(", ", ": ")).encode()


def spoil(kind: str, number: int, line: bytes) -> bytes:
    """A bad line made of a good one; its own `task_id`, and a filter would keep it: a reader that lets it pass shows."""
    run = json.loads(line)
    run |= {"task_id": f"bad-{number:05}-{kind}", "n_calls": 9, "correct": True}
    line = encode(run)
    said = b'"model_output": "'
    replaced = {
        "lone_surrogate": lambda: line.replace(said, said + rb"\ud83d ", 1),
        "nul": lambda: line.replace(said, said + b"\x00", 1),
        "duplicate_key": lambda: line.replace(b'"step": 1,', b'"step": 1, "step": 1,', 1),
        "truncated": lambda: line[: len(line) * 2 // 3].rsplit(b'": ', 1)[0],
        "invalid_utf8": lambda: line.replace(said, said + b"\xff\xfe", 1),
        "blank": lambda: b" \t ",
        "nan": lambda: line.replace(b'"n_calls": 9', b'"n_calls": NaN', 1),
        "huge_integer": lambda: line.replace(b'"n_calls": 9', b'"n_calls": ' + b"9" * 400, 1),
        "byte_order_mark": lambda: b"\xef\xbb\xbf" + line,
    }
    return replaced[kind]()


def main() -> None:
    folder, size, variant = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(7)
    spoiler = random.Random(11)
    earlier: list[dict] = []
    files, bad = [], []
    rows = kept = 0
    for start in range(0, ROWS[size], ROWS_PER_FILE):
        path = folder / f"runs-{start // ROWS_PER_FILE:02}.jsonl"
        digest = hashlib.sha256()
        at = 0
        with open(path, "wb") as out:

            def put(line: bytes) -> int:
                nonlocal at
                begin = at
                out.write(line + b"\n")
                digest.update(line + b"\n")
                at += len(line) + 1
                return begin

            for number in range(start, min(start + ROWS_PER_FILE, ROWS[size])):
                large = LARGE[size].get(number, 0)
                if earlier and not large and writer.rng.random() < 0.1:
                    run = writer.rng.choice(earlier) | {"task_id": f"task-{number:07}"}
                else:
                    run = writer.run(number, large)
                    if not large:
                        earlier = [*earlier[-499:], run]
                line = encode(run)
                put(line)
                rows += 1
                kept += run["n_calls"] >= 5 and run["correct"]
                if variant == "dirty" and number % 200 == 100:
                    kind = BAD[len(bad) % len(BAD)]
                    bad_line = spoil(kind, len(bad), encode(spoiler.choice(earlier[-20:])))
                    offset = put(bad_line)
                    facts = {"kind": kind, "file": path.name, "offset": offset, "bytes": len(bad_line)}
                    bad.append(facts | {"sha256": hashlib.sha256(bad_line).hexdigest()})
        files.append({"name": path.name, "bytes": at, "sha256": digest.hexdigest()})
        print(f"{digest.hexdigest()}  {path.name}  {at}")
    manifest = {"rows": rows, "kept": kept, "bytes": sum(file["bytes"] for file in files), "files": files, "bad": bad}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


if __name__ == "__main__":
    main()
