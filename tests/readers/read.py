"""Reads every table of stores with DuckDB, Polars, deltalake, pandas and datasets. See run.sh.

    read.py COA STORE...

Of every table, from every reader:
1. by the reader's own counting: the rows, the rows of one partition, the sum of the first whole-number column;
2. the type of every column: the one in schemas/golden, in whatever layout a reader keeps texts and lists;
3. every value of every row: the same as `coa sql` gives.
All stores must hold the same rows: they come from one pipeline.

All readers go to the store themselves, S3 included. What differs between them, and is no difference here:
- JSON is text marked with Arrow's extension `arrow.json`. DuckDB's delta_scan gives text. Polars keeps the mark, and
  its functions of text want `.ext.storage()` first; pyarrow, and pandas with Arrow types, keep it too and want a cast
  to text. pandas by itself gives text, `datasets` by itself the parsed object.
- `datasets` knows no Delta tables. It is told a table's files, and does not see the column `partition`, whose values
  stand in the log and in the files' paths only. Of a table without files it sees nothing.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import datasets
import duckdb
import duckdb_extension_delta
import duckdb_extension_httpfs
import numpy
import pandas
import polars
import pyarrow
import pyarrow.compute
import s3fs
from deltalake import DeltaTable

GOLDEN = Path(__file__).parents[2] / "schemas/golden"
PARTITION = "partition"
ENDPOINT = os.environ["AWS_ENDPOINT_URL"]
# What an object store over plain HTTP takes beside the `AWS_` variables.
STORAGE = {"AWS_ENDPOINT_URL": ENDPOINT, "AWS_ALLOW_HTTP": "true"}


class Table:
    """A table of a store, and what `coa sql` says of it."""

    def __init__(self, coa, store, folder):
        self.stage, self.port, version = folder.split("/")[-3:]
        self.name = f"{self.stage}.{self.port}"
        self.url = f"{store}/tables/{self.stage}/{self.port}/{version}"
        self.storage = STORAGE if store.startswith("s3://") else None
        self.types = golden(version)
        self.summed = next((name for name, type in self.types.items() if type == pyarrow.int64()), None)
        total = f"sum({self.summed})" if self.summed else "0"
        # `count(*)` alone is what the log says of the files; a count by partition is of what is in them.
        counts = f"select {PARTITION}, count(*) as n, {total} as total, (select count(*) from {self.name}) as rows"
        partitions = sql(coa, store, f"{counts} from {self.name} group by 1")
        # Where there are no rows, no partition has any.
        some = partitions[-1] if partitions else {PARTITION: "none", "n": 0, "rows": 0}
        self.partition = some[PARTITION]
        self.counts = {
            "rows": some["rows"],
            "rows of a partition": some["n"],
            f"sum of {self.summed}": sum(partition["total"] or 0 for partition in partitions),
        }
        rows = sql(coa, store, f"select * from {self.name}")
        self.rows = texts(rows, self.types)
        self.rows_alone = texts(rows, without_partition(self.types))
        self.delta = DeltaTable(self.url, storage_options=self.storage)


def sql(coa, store, query):
    command = [coa, "sql", query, "--store", store, "--format", "json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


SIMPLE = {
    "Utf8": pyarrow.string(),
    "Binary": pyarrow.binary(),
    "Boolean": pyarrow.bool_(),
    "Int8": pyarrow.int8(),
    "Int32": pyarrow.int32(),
    "Int64": pyarrow.int64(),
    "Float32": pyarrow.float32(),
    "Float64": pyarrow.float64(),
    'Timestamp(µs, "UTC")': pyarrow.timestamp("us", "UTC"),
}


def golden(version):
    """The types of a table's columns as its golden file has them, and `partition`."""
    types = {}
    for line in (GOLDEN / f"{version}.txt").read_text().splitlines()[1:]:
        if not line.startswith("    "):
            name, type = line.split(": ", 1)
            if fields := re.match(r"List\(non-null Struct\((.*)\), field: 'element'\)", type):
                fields = re.findall(r'"(\w+)": (?:non-null )?(\w+)(, metadata: {[^}]*"arrow\.json")?', fields[1])
                fields = [(field, pyarrow.json_() if is_json else SIMPLE[type]) for field, type, is_json in fields]
                types[name] = pyarrow.list_(pyarrow.struct(fields))
            elif item := re.match(r"List\(non-null (\w+), field: 'element'\)", type):
                types[name] = pyarrow.list_(SIMPLE[item[1]])
            else:
                types[name] = pyarrow.json_() if type.endswith("arrow.json") else SIMPLE[type.removesuffix(" null")]
    return types | {PARTITION: pyarrow.string()}


def without_partition(types):
    return {name: type for name, type in types.items() if name != PARTITION}


def fits(found, type):
    """Whether a reader's type is this one, in whatever layout."""
    of = pyarrow.types
    if of.is_struct(type):
        same = of.is_struct(found) and [field.name for field in found] == [field.name for field in type]
        return same and all(fits(theirs.type, ours.type) for theirs, ours in zip(found, type, strict=True))
    if of.is_list(type):
        return (of.is_list(found) or of.is_large_list(found)) and fits(found.value_type, type.value_type)
    if type == pyarrow.json_():
        return isinstance(found, pyarrow.JsonType) or fits(found, pyarrow.string())
    if of.is_string(type):
        return of.is_string(found) or of.is_large_string(found) or of.is_string_view(found)
    if of.is_binary(type):
        return of.is_binary(found) or of.is_large_binary(found) or of.is_binary_view(found)
    return found == type


def canonical(value, type):
    """A value, of a reader or of the JSON that `coa sql` writes, in one form."""
    if value is None:
        return None
    if pyarrow.types.is_list(type):
        return [canonical(item, type.value_type) for item in value]
    if pyarrow.types.is_struct(type):
        return {field.name: canonical(value[field.name], field.type) for field in type}
    if pyarrow.types.is_timestamp(type):
        value = datetime.fromisoformat(value) if isinstance(value, str) else value
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if pyarrow.types.is_binary(type):
        return value if isinstance(value, str) else value.hex()
    if type == pyarrow.json_():
        assert isinstance(json.loads(value), dict), f"{value!r} is no JSON object"
    if pyarrow.types.is_float32(type):
        return float(numpy.float32(value))
    return value


def texts(rows, types):
    """Every row as one text, with how often it occurs."""
    rows = ({name: canonical(row[name], type) for name, type in types.items()} for row in rows)
    return Counter(json.dumps(row, ensure_ascii=False) for row in rows)


@cache
def duck():
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    for package in (duckdb_extension_httpfs, duckdb_extension_delta):
        [extension] = Path(package.__file__).parent.glob("extensions/*/*.duckdb_extension")
        connection.load_extension(str(extension))
    secret = {
        "key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
        "region": os.environ["AWS_REGION"],
        "endpoint": urlsplit(ENDPOINT).netloc,
        "url_style": "path",
        "use_ssl": "false",
    }
    secret = ", ".join(f"{name} '{value}'" for name, value in secret.items())
    connection.sql(f"create secret (type s3, {secret})")
    connection.sql("set timezone = 'UTC'")
    return connection


# Each gives the rows, the rows of `table.partition`, the sum of `table.summed`, and everything as an Arrow table.


def by_duckdb(table):
    duck().sql(f"create or replace view it as from delta_scan('{table.url}')")
    total = f"coalesce(sum({table.summed}), 0)" if table.summed else "0"
    rows, total = duck().sql(f"select count(*), {total} from it").fetchone()
    [in_partition] = duck().sql(f"select count(*) from it where {PARTITION} = '{table.partition}'").fetchone()
    return rows, in_partition, int(total), duck().sql("from it").to_arrow_table()


def by_polars(table):
    it = polars.scan_delta(table.url, storage_options=table.storage)
    total = polars.col(table.summed).sum() if table.summed else polars.lit(0)
    rows, total = it.select(polars.len(), total.alias("total")).collect().row(0)
    in_partition = it.filter(polars.col(PARTITION) == table.partition).select(polars.len()).collect().item()
    return rows, in_partition, total, it.collect().to_arrow()


def by_deltalake(table):
    it = table.delta.to_pyarrow_dataset()
    in_partition = it.count_rows(filter=pyarrow.compute.field(PARTITION) == table.partition)
    column = it.to_table(columns=[table.summed])[table.summed] if table.summed else pyarrow.array([0])
    return it.count_rows(), in_partition, pyarrow.compute.sum(column, min_count=0).as_py(), it.to_table()


def by_pandas(table):
    it = table.delta.to_pandas(types_mapper=pandas.ArrowDtype)
    total = int(it[table.summed].sum()) if table.summed else 0
    in_partition = int((it[PARTITION] == table.partition).sum())
    return len(it), in_partition, total, pyarrow.Table.from_pandas(it, preserve_index=False)


def by_datasets(table):
    files = table.delta.file_uris()
    if not files:
        return None
    options = {"storage_options": {"endpoint_url": ENDPOINT}} if table.storage else {}
    with tempfile.TemporaryDirectory() as cache_dir:
        it = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache_dir, **options)
        total = sum(value for value in it[table.summed] if value is not None) if table.summed else 0
        return len(it), None, total, it.with_format("arrow")[:]


READERS = {
    "duckdb": by_duckdb,
    "polars": by_polars,
    "deltalake": by_deltalake,
    "pandas": by_pandas,
    "datasets": by_datasets,
}


def check(table, reader):
    """What a reader finds that it should not; `None` where there is nothing to read."""
    try:
        found = READERS[reader](table)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    if found is None:
        return None
    *counts, content = found
    types, ours = table.types, table.rows
    if counts[1] is None:
        types, ours = without_partition(types), table.rows_alone
    wrong = []
    for (what, expected), count in zip(table.counts.items(), counts, strict=True):
        if count is not None and count != expected:
            wrong.append(f"{what}: {count}, and {expected} in coa sql")
    if sorted(content.column_names) != sorted(types):
        return [*wrong, f"its columns are {content.column_names}"]
    for name, type_ in types.items():
        if not fits(content[name].type, type_):
            wrong.append(f"{name} is {content[name].type} and not {type_}")
    if wrong:
        return wrong
    theirs = texts(content.to_pylist(), types)
    for whose, more in (("it", theirs - ours), ("coa sql", ours - theirs)):
        if more:
            wrong.append(f"{more.total()} rows are in {whose} only, such as {next(iter(more))}")
    return wrong


def tables_of(coa, store):
    """All tables of a store, by their folders; `coa sql` must know the same ones."""
    if store.startswith("s3://"):
        folders = s3fs.S3FileSystem().glob(f"{store}/tables/*/*/*.v*")
    else:
        folders = [str(folder) for folder in Path(store).glob("tables/*/*/*.v*")]
    tables = [Table(coa, store, folder) for folder in sorted(folders)]
    known = "select table_schema, table_name from information_schema.tables"
    known = sql(coa, store, known + " where table_type = 'BASE TABLE' and table_schema <> 'public'")
    known = {f"{table['table_schema']}.{table['table_name']}" for table in known}
    assert known == {table.name for table in tables}, f"`coa sql` knows {known}"
    return tables


coa, *stores = sys.argv[1:]
datasets.disable_progress_bars()
differences, digests = [], {}
for store in stores:
    print(f"\n{store}\n")
    print(f"{'table':<22} | {'rows':>5} | {'coa':<8} | " + " | ".join(f"{reader:<9}" for reader in READERS))
    tables = tables_of(coa, store)
    for table in tables:
        digest = hashlib.sha256(json.dumps(sorted(table.rows.items())).encode()).hexdigest()[:8]
        cells = []
        for reader in READERS:
            wrong = check(table, reader)
            cells.append("no files" if wrong is None else "DIFFERENT" if wrong else "same")
            differences += [f"{table.url}: {reader}: {text}" for text in wrong or []]
        line = f"{table.name:<22} | {table.counts['rows']:>5} | {digest} | "
        print(line + " | ".join(f"{cell:<9}" for cell in cells), flush=True)
        digests.setdefault(table.name, set()).add(digest)
    if {table.name for table in tables} != set(digests):
        differences.append(f"{store}: other tables than {stores[0]}")
differences += [f"{name}: the stores hold different rows" for name, found in digests.items() if len(found) > 1]

print()
if differences:
    sys.exit("\n".join([*differences, f"{len(differences)} differences"]))
print(f"{', '.join(READERS)}: no difference")
