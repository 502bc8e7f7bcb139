PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
OUT ?= out/demo
SHELL = /bin/bash

.PHONY: demo test test-engines engines flink-demo check format bench bench-profile clean

# Made again when the dependencies change.
$(VENV)/.installed: pyproject.toml
	@echo "installing into $(VENV) (about two minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/beam-prep run examples/data/chat.jsonl -o $(OUT) -c configs/sft_chat.json --tokenizer_path examples/tokenizer
	@$(BIN)/beam-prep inspect $(OUT) --record 0

test: $(VENV)/.installed
	@$(BIN)/python -m pytest -n auto --ignore=tests/engines

# Job server, boot program, servers, environments of their own: into a cache outside git, once.
engines: $(VENV)/.installed
	@$(BIN)/python -m tests.engines.build

test-engines: engines
	@$(BIN)/python -m pytest tests/engines

flink-demo: engines
	@$(BIN)/python -m tests.engines.flink_demo

check: $(VENV)/.installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.installed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed
	@$(BIN)/python benchmarks/end_to_end.py

bench-profile: $(VENV)/.installed
	@$(BIN)/python benchmarks/profile_stages.py

clean:
	rm -rf $(VENV) out
