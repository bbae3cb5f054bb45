# On a fresh machine with Python 3.11 or later and make: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := plot,store,ray,dask,mpi,torch

.PHONY: demo test check soak bench clean

demo: $(VENV)/.core
	$(BIN)/kofn demo

test: check
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples
	$(BIN)/mypy

# Long runs: many more random scripts and kills than `make test` has time for.
soak: $(VENV)/.dev
	KOFN_SOAK=1 $(BIN)/python -m pytest -x tests/test_rounds_master.py tests/test_rounds_scripts.py tests/test_engine_local.py tests/test_engine_virtual.py --timeout=3600
	$(BIN)/python tests/interrupts.py --engine local --count 20000

bench: $(VENV)/.core
	$(BIN)/kofn bench overhead
	$(BIN)/kofn bench reaction

$(VENV)/.core: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kofn needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' --group dev
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
