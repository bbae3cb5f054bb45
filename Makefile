# On a fresh machine with Python 3.11 or later and make: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := plot,store,ray,dask,mpi,torch
MINUTES ?= 20
OTHERS := hosts or docs or papers
TESTS ?= tests
RUN := -m pytest
# Tests start a thousand processes. Where this is set, each of them compiles kofn anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test check soak coverage bench bench-check peers docs release-check clean

demo: $(VENV)/.core
	$(BIN)/kofn demo

# Tests that start no process: codes, rounds, the protocol, simulated engines.
quick: $(VENV)/.dev
	$(BIN)/python -m pytest --quick -n 2 --dist loadfile

# Tests with processes mostly wait, so six runs and `check` share the cores: without processes, the
# fault search (with some of those without processes, so that both take as long), of each engine,
# two of what stands on engines, and of hosts, docs and papers. The last is shown as it runs, the
# others after it. Each opens its own files alone: to import all takes ten seconds.
# TESTS=tests/test_arrays.py chooses files; 5 is pytest's status when it has no test.
test: $(VENV)/.dev
	@rm -f .tests-?.log; pytest="$(BIN)/python $(RUN) -p no:cacheprovider"; status=0; \
	engines='$(TESTS)'; first='$(TESTS)'; second=; plain='$(TESTS)'; search=; others='$(TESTS)'; \
	if [ "$$engines" = tests ]; then \
	engines=$$(echo tests/test_engine_*.py); second=$$(echo tests/test_[l-z]*.py); \
	search=$$(echo tests/test_search.py tests/test_s[h-z]*.py tests/test_[t-z]*.py); \
	plain=$$(ls tests/test_*.py | grep -vE '/test_(search|s[h-z]|[t-z])' | tr '\n' ' '); \
	first=$$(ls tests/test_[a-k]*.py | grep -v /test_engine_ | tr '\n' ' '); \
	others=$$(grep -lE 'mark\.(hosts|docs|papers)' tests/test_*.py | tr '\n' ' '); fi; \
	$(MAKE) --no-print-directory check > .tests-0.log 2>&1 & beside=$$!; \
	$$pytest $$plain -m 'not (engine or $(OTHERS))' > .tests-1.log 2>&1 & beside="$$beside $$!"; \
	[ -z "$$search" ] || $$pytest $$search -m 'not (engine or $(OTHERS))' > .tests-5.log 2>&1 & beside="$$beside $$!"; \
	$$pytest $$engines -m 'engine and not ($(OTHERS))' -k test_engine_ > .tests-2.log 2>&1 & beside="$$beside $$!"; \
	$$pytest $$first -m 'engine and not ($(OTHERS))' -k 'not test_engine_' > .tests-3.log 2>&1 & beside="$$beside $$!"; \
	[ -z "$$second" ] || $$pytest $$second -m 'engine and not ($(OTHERS))' > .tests-4.log 2>&1 & beside="$$beside $$!"; \
	trap 'kill $$beside' INT TERM; \
	$$pytest $$others -m '$(OTHERS)' || test $$? = 5 || status=1; \
	for other in $$beside; do wait $$other || test $$? = 5 || status=1; done; \
	cat .tests-?.log; exit $$status

check: $(VENV)/.dev
	$(BIN)/ruff check src tests examples site
	$(BIN)/ruff format --check src tests examples site
	$(BIN)/mypy

# Long runs: many more random scripts, examples, kills and interrupts than `make test` has time for.
soak: $(VENV)/.dev
	$(BIN)/python tests/soak.py --minutes $(MINUTES)

# Lines that the tests run; those that only children of engines run are left out (pyproject.toml).
# The report comes whether the tests pass or not.
coverage: $(VENV)/.dev
	$(BIN)/python -m coverage erase
	status=0; $(MAKE) test RUN='-m coverage run -p -m pytest' || status=1; \
	$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report || status=1; \
	exit $$status

# The documentation site, without the network; warnings are errors. It is in build/site.
docs: $(VENV)/.docs
	$(BIN)/python site/build.py

# Builds what would be published, and tries it in a clean environment of every Python that is here.
release-check: $(VENV)/.docs
	$(BIN)/python site/release.py

# All benchmarks, small: under five minutes on a quiet machine. `kofn bench NAME` is the full size.
bench: $(VENV)/.dev
	$(BIN)/kofn bench all --quick --out benchmarks/history

# Fails where a ratio is more than 20 % worse than benchmarks/recorded.json in three tries.
bench-check: $(VENV)/.dev
	$(BIN)/kofn bench check benchmarks/recorded.json

# The peers of `kofn bench peers` that no extra installs: Spark (needs Java) and dask-ml.
peers: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --group peers

$(VENV)/.core: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kofn needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' --group dev
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* .tests-?.log
