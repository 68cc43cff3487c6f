#!/usr/bin/env python3
"""One peer doing the job of `make bench-data`: read the runs, keep those with at least 5 calls that are correct, write
them as Parquet with zstd at level 3.

    peers.py TOOL INPUT_FOLDER OUTPUT_FOLDER ROWS_PER_ROW_GROUP {strict|lenient}

Each is written as its documentation would have it, with the schema given so that none has to guess it, on two threads.
`lenient` turns on what a peer has for damaged input.
"""

import glob
import os
import pathlib
import sys

os.environ["POLARS_MAX_THREADS"] = os.environ["OMP_NUM_THREADS"] = "2"

# Field name to type, in the words of Arrow; a list has one element, which is the type of its items.
CALL = {"id": "string", "type": "string", "function": {"name": "string", "arguments": "string"}}
STEP = {
    "step_type": "string",
    "task": "string",
    "facts": "string",
    "plan": "string",
    "step": "int64",
    "start_time": "float64",
    "end_time": "float64",
    "tool_calls": [CALL],
    "model_output": "string",
    "observations": "string",
    "error": "string",
}
RUN = {
    "task_id": "string",
    "agent_name": "string",
    "question": "string",
    "prediction": "string",
    "true_answer": "string",
    "agent_error": "string",
    "parsing_error": "bool",
    "iteration_limit_exceeded": "bool",
    "start_time": "string",
    "end_time": "string",
    "n_calls": "int64",
    "correct": "bool",
    "intermediate_steps": [STEP],
}


def polars(files: list[str], out: pathlib.Path, group: int, lenient: bool) -> None:
    import polars as pl

    names = {"string": pl.String, "int64": pl.Int64, "float64": pl.Float64, "bool": pl.Boolean}

    def typed(shape):
        if isinstance(shape, dict):
            return pl.Struct({name: typed(inner) for name, inner in shape.items()})
        return pl.List(typed(shape[0])) if isinstance(shape, list) else names[shape]

    runs = pl.scan_ndjson(files, schema={name: typed(shape) for name, shape in RUN.items()}, ignore_errors=lenient)
    kept = runs.filter((pl.col("n_calls") >= 5) & pl.col("correct"))
    kept.sink_parquet(out / "kept.parquet", compression="zstd", compression_level=3, row_group_size=group)


def duckdb(files: list[str], out: pathlib.Path, group: int, lenient: bool) -> None:
    import duckdb

    names = {"string": "VARCHAR", "int64": "BIGINT", "float64": "DOUBLE", "bool": "BOOLEAN"}

    def typed(shape):
        if isinstance(shape, dict):
            return "STRUCT(" + ", ".join(f'"{name}" {typed(inner)}' for name, inner in shape.items()) + ")"
        return typed(shape[0]) + "[]" if isinstance(shape, list) else names[shape]

    columns = "{" + ", ".join(f"'{name}': '{typed(shape)}'" for name, shape in RUN.items()) + "}"
    connection = duckdb.connect()
    connection.execute("SET threads = 2")
    connection.execute(
        f"""COPY (SELECT * FROM read_json({files!r}, format = 'newline_delimited', columns = {columns},
                                          maximum_object_size = {64 << 20}, ignore_errors = {lenient})
                  WHERE n_calls >= 5 AND correct)
            TO '{out}/kept.parquet' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3, ROW_GROUP_SIZE {group})"""
    )


def arrow_schema():
    import pyarrow as pa

    def typed(shape):
        if isinstance(shape, dict):
            return pa.struct([(name, typed(inner)) for name, inner in shape.items()])
        return pa.list_(typed(shape[0])) if isinstance(shape, list) else pa.type_for_alias(shape)

    return pa.schema([(name, typed(shape)) for name, shape in RUN.items()])


def pyarrow(files: list[str], out: pathlib.Path, group: int, lenient: bool) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json
    import pyarrow.parquet

    pa.set_cpu_count(2)
    schema = arrow_schema()
    read = pyarrow.json.ReadOptions(block_size=32 << 20)
    parse = pyarrow.json.ParseOptions(explicit_schema=schema)
    writer = pyarrow.parquet.ParquetWriter(out / "kept.parquet", schema, compression="zstd", compression_level=3)
    with writer:
        for file in files:
            runs = pyarrow.json.read_json(file, read, parse)
            keep = pc.and_(pc.greater_equal(runs["n_calls"], 5), runs["correct"])
            writer.write_table(runs.filter(keep), row_group_size=group)


def orjson(files: list[str], out: pathlib.Path, group: int, lenient: bool) -> None:
    import orjson
    import pyarrow as pa
    import pyarrow.parquet

    schema = arrow_schema()
    writer = pyarrow.parquet.ParquetWriter(out / "kept.parquet", schema, compression="zstd", compression_level=3)
    with writer:
        waiting = []
        for file in files:
            with open(file, "rb") as lines:
                for line in lines:
                    try:
                        run = orjson.loads(line)
                    except orjson.JSONDecodeError:
                        if lenient:
                            continue
                        raise
                    if run["n_calls"] >= 5 and run["correct"]:
                        waiting.append(run)
                        if len(waiting) == group:
                            writer.write_batch(pa.RecordBatch.from_pylist(waiting, schema), row_group_size=group)
                            waiting = []
        writer.write_batch(pa.RecordBatch.from_pylist(waiting, schema), row_group_size=group)


def datatrove(files: list[str], out: pathlib.Path, group: int, lenient: bool) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.filters import LambdaFilter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import ParquetWriter

    pipeline = [
        JsonlReader(os.path.dirname(files[0]), glob_pattern="*.jsonl", text_key="question", id_key="task_id"),
        LambdaFilter(lambda run: run.metadata["n_calls"] >= 5 and run.metadata["correct"]),
        ParquetWriter(str(out), compression="zstd", batch_size=1000),
    ]
    LocalPipelineExecutor(pipeline=pipeline, tasks=1, workers=1, logging_dir=str(out / "logs")).run()


if __name__ == "__main__":
    tool, source, target, group, mode = sys.argv[1:]
    names = sorted(glob.glob(f"{glob.escape(source)}/*.jsonl"))
    {"polars": polars, "duckdb": duckdb, "pyarrow": pyarrow, "orjson": orjson, "datatrove": datatrove}[tool](
        names, pathlib.Path(target), int(group), mode == "lenient"
    )
