PYTHON ?= python3
BIN := .venv/bin
# Two processes with one thread each: torch threads that compete for busy cores are many times slower than one.
export OMP_NUM_THREADS := 1
# Modules are compiled when they are first imported, and kept: most never are, and to compile them all takes half of the
# install.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt

.PHONY: install demo test lint bench docs clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch numpy
	$(PIP) --editable '.[dev]'
	touch $@

# All cores, and threads that sleep while they wait: on busy cores those that spin take many times as long.
demo: install
	env -u OMP_NUM_THREADS OMP_WAIT_POLICY=passive $(BIN)/bespoke demo

test: install lint
	$(BIN)/pytest -n 2

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(BIN)/python -m bench.frontier toy:digits --nfe 5 8 10 --samples 1024 --store out/bench
	$(BIN)/python -m bench.tables --store out/bench

# The site of the documentation, in out/site; nothing of it is needed to install or to test.
docs: .venv/installed-docs
	$(BIN)/python docs/stage.py out/docs
	$(BIN)/zensical build --clean --strict

.venv/installed-docs: .venv/installed
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf .cache .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist out
