PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
OUT ?= out/demo
SHELL = /bin/bash

.PHONY: demo docs pictures config-page screenshots test test-long test-nightly test-faults faults soak coverage test-engines engines test-trainers test-browser flink-demo template requirements check format bench-shapes release clean

# setuptools warns of every editable installation.
INSTALL = PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

# Made again when the dependencies change.
$(VENV)/.installed: pyproject.toml
	@echo "installing into $(VENV) (about two minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(INSTALL) '.[dev]'
	@touch $@

# What the tests on real engines need besides.
$(VENV)/.engines: $(VENV)/.installed
	@$(INSTALL) '.[dev,engines]'
	@touch $@

# What the tests of pages need besides, and a Chromium of this machine (Debian: apt-get install chromium).
$(VENV)/.browser: $(VENV)/.installed
	@$(INSTALL) '.[dev,browser]'
	@touch $@

SAMPLE = examples/data/chat.jsonl -c configs/sft_conversation.json --tokenizer_path examples/tokenizer
demo: $(VENV)/.installed
	@$(BIN)/beam-prep run -o $(OUT) $(SAMPLE)
	@$(BIN)/beam-prep report $(OUT)
	@$(BIN)/beam-prep inspect $(OUT) --record 14
	@printf '%s\n' 'Trained are the answers and their end tokens; no header, no question. What to do next:' \
		'  more rows      $(BIN)/beam-prep inspect $(OUT)' \
		'  a training step, in ten minutes: docs/quickstart.md' \
		'  your own data  docs/which_config.md has a config for each kind of records' \
		'  pictures       docs/pictures.md shows what each config trains'

APART = --ignore=tests/engines --ignore=tests/trainers --ignore=tests/faults --ignore=tests/browser
# TESTS=... runs the long ones among them, too.
test: $(VENV)/.installed
	@$(BIN)/python -m pytest -n auto $(APART) $(or $(TESTS),-m "not long")

test-long: $(VENV)/.installed
	@$(BIN)/python -m pytest -n auto $(APART) -m long

# The properties, with 500 cases of each where `make test` tries 40.
test-nightly: $(VENV)/.installed
	@$(BIN)/python -m pytest -n auto --hypothesis-profile=nightly $(APART) $(or $(TESTS),-m hypothesis)

# Kills, full disks, I/O errors: some, drawn by the commit. `make faults` tries them at every change of a file (an hour).
test-faults: engines
	@$(BIN)/python -m pytest -n auto --dist loadgroup $(or $(TESTS),tests/faults)

faults: engines
	@FAULTS=all $(BIN)/python -m pytest -n auto --dist loadgroup tests/faults

# 200 nightly refreshes, a third of them killed, into docs/soak.md (half an hour each).
SEED ?= 16
soak: $(VENV)/.installed
	@$(BIN)/python benchmarks/soak.py --seed $(SEED) --markdown docs/soak.md
	@$(BIN)/python benchmarks/soak.py --seed $(SEED) --keep_versions 3 --markdown docs/soak.md

# Of the package, by the same tests; `coverage html` in place of `coverage report` shows the lines.
coverage: $(VENV)/.installed
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -n auto $(APART) $(TESTS); status=$$?; \
		$(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$status

# Job server, boot program, servers, environments of their own: into a cache outside git, once.
engines: $(VENV)/.engines
	@$(BIN)/python -m tests.engines.build

test-engines: engines
	@$(BIN)/python -m pytest -n auto --dist loadgroup tests/engines

# Outputs in TRL, Megatron, mosaicml-streaming and a loop of your own. Their environments, of 7 GB, go into the cache, once.
test-trainers: $(VENV)/.engines
	@python=$$($(BIN)/python -m tests.trainers.build) && HF_HUB_OFFLINE=1 $$python -m pytest -n auto tests/trainers

# The pages of `beam-prep inspect --html` in a browser. Skipped without one; REQUIRE_BROWSER=1 makes that a failure.
test-browser: $(VENV)/.browser
	@$(BIN)/python -m pytest tests/browser

flink-demo: engines
	@REQUIRE_ENGINES=1 $(BIN)/python -m pytest -v tests/engines/test_table.py -k 'chat and EXTERNAL'

# The docs as a site, in build/site. Warnings, links that lead nowhere and files of other hosts are errors.
$(VENV)/.docs: $(VENV)/.installed
	@$(INSTALL) '.[dev,docs]'
	@touch $@

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@$(BIN)/python -m tools.site build/site

# The pictures in the docs and what the notebook gave, from the sample data.
pictures: $(VENV)/.installed
	@$(BIN)/python -m tools.pictures
	@$(BIN)/python -m tools.notebook

# The tables of the docs that are made from the code.
config-page: $(VENV)/.installed
	@$(BIN)/python -m tools.config_page

# Needs Chromium: see test-browser.
screenshots: $(VENV)/.browser
	@$(BIN)/python -m tools.screenshots

# What is made from beam_prep/options.py: the form of the Dataflow template, its Terraform variables, the table in the docs.
template: $(VENV)/.installed
	@$(BIN)/python -m pipelines.dataflow.template

# The versions in the Dataflow image, with hashes; after every change of the dependencies in pyproject.toml.
IMAGE = pipelines/dataflow
PIN = $(BIN)/uv pip compile --quiet --generate-hashes --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28 --custom-compile-command 'make requirements'
requirements: $(VENV)/.engines
	@$(PIN) pyproject.toml --extra array_record --extra fast --extra gcp --extra hdf5 -o $(IMAGE)/requirements.txt
	@$(PIN) $(IMAGE)/build-requirements.in -c $(IMAGE)/requirements.txt -o $(IMAGE)/build-requirements.txt
	@$(PIN) --no-generate-hashes --no-annotate pyproject.toml --extra trainers -o tests/trainers/requirements.txt

check: $(VENV)/.installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.installed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# What a MB of each shape of records costs, beside datasets.map.
bench-shapes: $(VENV)/.installed
	@$(BIN)/python benchmarks/marginal.py $(ARGS)

# sdist and wheel into dist/, and the demo with the wheel, in an environment and a folder of its own.
release: $(VENV)/.installed
	@rm -rf build dist
	@$(BIN)/python -m build --outdir dist .
	@folder=$$(mktemp -d) && trap "rm -rf $$folder" EXIT && cp -r examples configs $$folder && cd $$folder && \
		$(PYTHON) -m venv venv && \
		venv/bin/python -m pip install --quiet --disable-pip-version-check $(CURDIR)/dist/*.whl && \
		venv/bin/beam-prep run -o out $(SAMPLE) && venv/bin/beam-prep verify out && \
		venv/bin/python -Ic "from pathlib import Path; import beam_prep; home = Path(beam_prep.__file__).resolve().parent; \
			assert Path.cwd() in home.parents and (home / 'py.typed').is_file(), home"
	@ls dist

clean:
	rm -rf $(VENV) out build dist
