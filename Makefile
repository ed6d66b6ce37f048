# `make run` and `make test` need Python 3.11 or newer, make and a package index, and nothing else.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/installed
DOCS   ?= .venv-docs
EXTRA   = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")

.PHONY: run test test-long test-pythons coverage audit bench bench-check bench-dashboard lint docs docs-reference clean

run: $(STAMP)
	@$(BIN)/hookflow run pipelines/cifar.toml $(ARGS)

# One worker a core: much of the suite waits for processes that it starts.
test: $(STAMP)
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal $(ARGS)

test-long: $(STAMP)
	$(BIN)/python -m pytest -m long -o faulthandler_timeout=0 $(ARGS)

# A short set on each other Python that README names and that is found; it makes an environment for each.
test-pythons:
	PYTHON='$(PYTHON)' .ci/pythons

# Lines and branches of the packages that runs lean on, also in the processes that tests start; it takes its time.
coverage: export COVERAGE_DATA = $(CURDIR)/.coverage/data
coverage: $(STAMP)
	rm -rf .coverage
	$(BIN)/python -m coverage run -m pytest $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# Dependencies fit one another, and each is pinned: checked without a network.
audit: $(STAMP)
	$(BIN)/python -m pip check
	$(BIN)/python -m pytest tests/test_dependencies.py

bench: $(STAMP)
	$(BIN)/python benchmarks/overhead.py $(ARGS)

bench-check: $(STAMP)
	$(BIN)/python benchmarks/overhead.py --check $(ARGS)

bench-dashboard: $(STAMP)
	$(BIN)/python benchmarks/dashboard.py $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, in site/. It is made from the source without importing it, so that its environment needs no torch.
docs: $(DOCS)/installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

$(DOCS)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c '$(EXTRA)' > $(DOCS)/requirements.txt
	$(DOCS)/bin/python -m pip install --quiet --constraint constraints.txt --requirement $(DOCS)/requirements.txt
	@touch $@

docs-reference: $(STAMP)
	$(BIN)/python docs/make_reference.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-3.* $(DOCS) site
