# The two commands of the README, and what they are made of. See infra/env.sh for where things are kept.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.PHONY: quickstart test bench-data coa tools clean-quickstart

SEED ?=
STORE := data/quickstart$(if $(SEED),-$(SEED))

# Gets libtorch, builds, runs the pipeline, prints the report. Interrupted, it goes on where it was.
quickstart: coa
	. infra/env.sh
	"$$COA" run pipelines/quickstart.toml --store $(STORE) $(if $(SEED),--seed $(SEED))
	"$$COA" report --store $(STORE)

# Everything a test needs, then all tests.
test: coa
	. infra/env.sh
	bash infra/test-tools.sh
	servers=$$(bash infra/s3-up.sh) || echo "tests on S3 servers are skipped" >&2
	eval "$$servers"
	cargo test --workspace --features jobs/train --quiet

# On demand: reading runs into Parquet beside Polars, DuckDB, PyArrow and datatrove, equality first.
bench-data:
	bash tests/bench/run.sh

# The binary: $COA_TARGET/debug/coa.
coa: tools
	. infra/env.sh
	cargo build --workspace --features jobs/train

tools:
	bash infra/compiler.sh
	bash infra/libtorch.sh

clean-quickstart:
	rm -rf $(STORE)
