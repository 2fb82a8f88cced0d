# What a contributor types. Everything happens in .venv, made on first use.
PYTHON ?= python3
BIN := .venv/bin
# One thread per test process: the tests are small, and the processes would only get in each other's way.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint format docs bench clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[lab,dev,tensorboard,lightning,transformers]"
	touch $@

demo: .venv/installed  ## train on digits with wrong labels, compare, and write a report
	$(BIN)/rmd demo

test: lint  ## lint, types, tests
	$(BIN)/python -m pytest -n auto

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/installed  ## the reference, as HTML, in site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pdoc
	$(BIN)/pdoc --math -o site mirrordescent
	@echo "reference: site/mirrordescent.html"

bench: .venv/installed  ## what is timed and measured, on this machine
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/minimiser.py
	$(BIN)/python benchmarks/loop.py

clean:
	rm -rf .venv site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
