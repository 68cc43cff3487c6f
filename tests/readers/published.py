"""Reads what `publish` stages left in a store in a folder with datasets, DuckDB and Polars. See run.sh.

    published.py COA STORE STAGE=TABLE...

For each data set, against the rows that `coa sql` finds in TABLE:
1. `datasets.load_dataset(FOLDER)`: its splits, the columns that the card promises, every value of every row; the
   folder loads with `split=` and by `load_dataset("parquet", data_dir=FOLDER)` too;
2. DuckDB `read_parquet('FOLDER/data/SPLIT-*.parquet')` and Polars, the same values;
   (a table without rows: the last two only, `datasets` knows no data set without rows);
3. the splits share no group, and rows, bytes and SHA-256 of every file are those in manifest.json.
"""

import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import datasets
import duckdb
import polars


def sql(coa, store, query):
    command = [coa, "sql", query, "--store", store, "--format", "json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def plain(value):
    """A value in the form that JSON has for it."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def texts(rows):
    return Counter(json.dumps(plain(row), sort_keys=True) for row in rows)


def check(folder, expected):
    """Differences between a published folder and the rows of its table."""
    manifest = json.loads((folder / "manifest.json").read_text())
    splits = [split["name"] for split in manifest["splits"]]
    shards = [file for file in manifest["files"] if file["rows"] is not None]
    for file in manifest["files"]:
        content = (folder / file["name"]).read_bytes()
        if (len(content), hashlib.sha256(content).hexdigest()) != (file["bytes"], file["sha256"]):
            yield f"{file['name']} is not as the manifest says"
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    if found != {file["name"] for file in manifest["files"]} | {"manifest.json"}:
        yield f"there are other files than the manifest's: {sorted(found)}"

    columns = [column["name"] for column in manifest["columns"]]
    readers = {
        "duckdb": {split: duckdb_rows(folder, split) for split in splits},
        "polars": {split: polars.read_parquet(folder / f"data/{split}-*.parquet").to_dicts() for split in splits},
    }
    if expected:
        readers["datasets"] = {}
        with tempfile.TemporaryDirectory() as cache:
            loaded = datasets.load_dataset(str(folder), cache_dir=cache)
            if list(loaded) != splits:
                yield f"datasets: the splits are {list(loaded)}, expected {splits}"
            inferred = datasets.load_dataset("parquet", data_dir=str(folder), cache_dir=cache)
            for split in splits:
                alone = datasets.load_dataset(str(folder), split=split, cache_dir=cache)
                if (alone.features, alone.num_rows) != (loaded[split].features, loaded[split].num_rows):
                    yield f"datasets: {split} alone is another one"
                if list(alone.features) != columns or inferred[split].features != alone.features:
                    yield f"datasets: the card promises {alone.features}, the files hold {inferred[split].features}"
                readers["datasets"][split] = loaded[split].to_list()
    for reader, rows in readers.items():
        counted = {split["name"]: split["rows"] for split in manifest["splits"]}
        if {split: len(rows[split]) for split in splits} != counted:
            yield f"{reader}: {[len(rows[split]) for split in splits]} rows, the manifest says {counted}"
        all_rows = [row for split in splits for row in rows[split]]
        if texts(all_rows) != texts(expected):
            odd = (texts(all_rows) - texts(expected)) + (texts(expected) - texts(all_rows))
            yield f"{reader}: {odd.total()} rows are not the table's, such as {next(iter(odd))[:600]}"
        groups = [{group(row, manifest["grouped_by"]) for row in rows[split]} for split in splits]
        if len(splits) > 1 and groups[0] & groups[1]:
            yield f"{reader}: {len(groups[0] & groups[1])} groups are in both splits"
    counts = ", ".join(f"{split} {len(readers['duckdb'][split])}" for split in splits)
    print(f"{folder.parts[-4]:<14} | {manifest['input']['table']:<12} | {counts}, {len(shards)} shards", flush=True)


def duckdb_rows(folder, split):
    found = duckdb.sql(f"select * from read_parquet('{folder}/data/{split}-*.parquet')")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def group(row, columns):
    return next((row[column] for column in columns if row[column] is not None), "")


class Ignored(logging.Handler):
    """What `datasets` says of a card that it does not take as it stands."""

    def emit(self, record):
        if "Ignoring part of dataset_info" in record.getMessage():
            differences.append(record.getMessage())


coa, store, *stages = sys.argv[1:]
datasets.disable_progress_bars()
differences = []
logging.getLogger("datasets").addHandler(Ignored())
for stage, table in (pair.split("=") for pair in stages):
    [folder] = Path(store).glob(f"files/{stage}/dataset/all/*")
    rows = sql(coa, store, f"select * from {table}")
    rows = [{name: value for name, value in row.items() if name != "partition"} for row in rows]
    differences += [f"{stage}: {text}" for text in check(folder, rows)]

if differences:
    sys.exit("\n".join([*differences, f"{len(differences)} differences"]))
print("datasets, DuckDB, Polars: every row as in the tables")
