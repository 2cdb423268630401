# `make` lists the targets. On a fresh machine `make demo` and `make test` do all they need.

BIN := .venv/bin
.DEFAULT_GOAL := help
# Where it is set, each process of the tests compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=
.PHONY: help setup demo test check unit spark fuzz soak matrix minimum docs bench bench-quick lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## .venv from requirements.lock, and Java 17+; at once when nothing changed
	@bash scripts/setup.sh

demo: setup  ## the tour: run Headgate on this machine and write a report
	@$(BIN)/headgate demo

# Spark tests wait for other processes half of their time, which unit tests use. Each of the two tells
# all it has to tell when it is done.
test: check  ## everything that must hold: check, then unit tests and Spark tests side by side
	@echo "== unit tests and Spark tests, side by side"
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target unit spark

check: setup  ## lint, format, types and the arrows between the rooms
	@echo "== ruff check";   $(BIN)/ruff check .
	@echo "== ruff format";  $(BIN)/ruff format --check .
	@echo "== mypy";         $(BIN)/mypy --strict src lab/src
	@echo "== lint-imports"; $(BIN)/lint-imports

unit: setup
	@echo "== unit tests (no JVM)"
	@$(BIN)/pytest -n auto --dist worksteal --ignore=tests/spark -m "not spark and not cluster" --cov --cov-report= $(PYTEST_ARGS)
	@$(BIN)/python scripts/coverage_by_room.py

spark: setup
	@echo "== Spark tests"
	@$(BIN)/python tests/spark/jvm.py
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder tests/spark tests/lab/cluster -m "spark or cluster" $(PYTEST_ARGS)

fuzz: setup  ## the property tests with other draws each time and more of them, and all seeds
	@$(BIN)/pytest -n auto --dist worksteal --ignore=tests/spark --hypothesis-profile=fuzz --run-slow $(PYTEST_ARGS)

soak: setup  ## thousands of epochs on Spark: memory, descriptors and files must not grow
	@HEADGATE_SOAK_EPOCHS=$${HEADGATE_SOAK_EPOCHS:-2400} $(BIN)/pytest -s tests/spark/test_soak.py $(PYTEST_ARGS)

matrix: setup  ## unit tests and a Spark test with each claimed Python that is installed
	@$(BIN)/python scripts/matrix.py -- $(PYTEST_ARGS)

minimum: setup  ## the same with the lowest versions of all dependencies
	@$(BIN)/python scripts/matrix.py minimum -- $(PYTEST_ARGS)

docs: setup  ## the API reference from the docstrings, as HTML in build/docs
	@$(BIN)/python scripts/reference.py build/docs

bench: setup  ## the two-operator chain against plain Spark, on this machine
	@$(BIN)/headgate-lab bench chain

bench-quick: setup  ## hot paths of this tree against the last tag, in minutes; ratios in build/bench-quick.json
	@mkdir -p build
	@$(BIN)/headgate-lab bench regression --json build/bench-quick.json

lock:  ## pin the newest fitting versions for what pyproject.toml newly asks (needs the network)
	@bash scripts/lock.sh

clean:  ## remove what runs and tools leave behind; .venv stays
	@rm -rf build dist src/*.egg-info lab/build lab/dist lab/src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	    .import_linter_cache spark-warehouse metastore_db derby.log artifacts headgate-report.html
	@find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +
