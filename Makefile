# Pilotage from a checkout. Needs Python 3.11 or later and make; everything else is installed in .venv.

VENV := .venv
STAMP := $(VENV)/.stamp
BIN := $(VENV)/bin
PACKAGES := proto server pilot agents client tests
COMPILED := .venv-compiled
RELEASE := .venv-release

.DEFAULT_GOAL := help

.PHONY: help venv demo chaos fuzz test test-fast model-check check reference docs screenshots format compiled test-compiled bench bench-smoke sim-drain sim-grid pilot-bundle lock release-check clean

help: ## list the targets
	@grep -hE '^[a-z][a-z%-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(STAMP) ## set up the virtual environment

# Rebuilt when pyproject.toml changes.
$(STAMP): pyproject.toml
	@deploy/make-venv $(VENV)
	@touch $@

# The stubs of the protocol are not in the repository: they are generated when a .proto is newer.
$(VENV)/.stubs: $(STAMP) proto/generate.py $(wildcard proto/pilotage/v1/*.proto)
	@$(BIN)/python proto/generate.py
	@touch $@

demo: $(VENV)/.stubs ## start everything here, run the example jobs, stop everything
	@$(BIN)/pilotage demo --examples deploy/examples

# Tests wait for other processes a quarter of the time, which a third process fills.
test: $(VENV)/.stubs ## run all tests in three processes, which keeps two cores busy
	@HYPOTHESIS_PROFILE=ci $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

FAST := not (postgresql or process or slow)

test-fast: $(VENV)/.stubs ## run the tests that need neither PostgreSQL nor servers, in two processes
	@HYPOTHESIS_PROFILE=ci $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --sqlite -m "$(FAST)" \
	    tests/model tests/conformance tests/scenarios tests/unit

model-check: $(VENV)/.stubs ## search all states of the lease protocol's model; needs spin and gcc
	@$(BIN)/pytest -n 2 tests/model/attempts/test_lease_protocol.py

chaos: $(VENV)/.stubs ## run a grid under faults and judge what clients and payloads saw; OPTIONS="--minutes 30 --faults 200 --seed N"
	@cd tests && $(abspath $(BIN))/python -m chaos $(OPTIONS)

fuzz: $(VENV)/.stubs ## send random inputs to a live grid and to all readers; OPTIONS="--inputs 1000000 --seed N"
	@cd tests && $(abspath $(BIN))/python -m fuzz $(OPTIONS)

check: $(VENV)/.stubs ## check lint, formats, import contracts, types and the rules of CONTRIBUTING.md
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint proto
	$(BIN)/buf format --diff --exit-code proto
	$(BIN)/lint-imports
	$(BIN)/python tests/house_rules.py
	$(BIN)/mypy $(PACKAGES) bench deploy/pilot_bundle deploy/release hatch_build.py

reference: $(VENV)/.stubs ## write the pages of docs/reference that are made from code
	@PYTHONPATH=tests $(BIN)/python -m support.reference

docs: $(VENV)/.stubs ## build the documentation in build/docs; each warning is an error; needs dot (Debian: graphviz)
	@PYTHONPATH=tests $(BIN)/python -m support.site

screenshots: $(VENV)/.stubs ## write pictures of all views of the web page, in both schemes, to build/screenshots
	@PYTHONPATH=tests $(BIN)/python -m support.screenshots $(OPTIONS)

format: $(VENV)/.stubs ## format code and protocol
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write proto

compiled: $(COMPILED)/.stamp ## set up .venv-compiled, in which the server's hot modules are compiled; needs a C compiler

# Installed as a wheel, so that no compiled file lies beside the sources. Rebuilt when a source is newer.
$(COMPILED)/.stamp: $(VENV)/.stubs hatch_build.py $(shell find $(filter-out tests,$(PACKAGES)) -name '*.py' -not -name '*_pb2*')
	@rm -rf build/compiled
	@PILOTAGE_COMPILED=1 $(BIN)/python -m hatchling build --target wheel --directory build/compiled
	@wheel=$$(echo build/compiled/*.whl) && deploy/make-venv $(COMPILED) "$$wheel[dev]" && \
	$(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$$wheel"
	@touch $@

test-compiled: $(COMPILED)/.stamp ## run the tests of the compiled modules and of their callers on the compiled modules
	@HYPOTHESIS_PROFILE=ci $(COMPILED)/bin/pytest tests/unit tests/model tests/conformance

bench: $(COMPILED)/.stamp ## run all benches on the compiled server; print JSON lines, then a table; takes long
	@$(COMPILED)/bin/python bench/bench_all.py

bench-smoke: $(VENV)/.stubs ## run all benches at a hundredth of their size, to check that they work
	@$(BIN)/python bench/bench_all.py --scale 0.01

bench-%: $(COMPILED)/.stamp ## run one bench, bench/bench_%.py: bench-rates, bench-growth-plot, bench-peers, ...
	@$(COMPILED)/bin/python bench/bench_$(subst -,_,$*).py $(OPTIONS)

sim-drain: $(VENV)/.stubs ## run the drain controller on a simulated farm; print JSON lines, write docs/how-to/draining.svg
	@$(BIN)/python bench/sim_drain.py $(OPTIONS)

sim-grid: $(VENV)/.stubs ## run a grid in virtual time under a trace of jobs; print JSON (OPTIONS="--config DIR --what-if DIR")
	@$(BIN)/python bench/sim_grid.py $(OPTIONS)

pilot-bundle: $(VENV)/.stubs ## build the pilot as one file for a bare Python: dist/pilotage-pilot-VERSION-cpXY-MACHINE.pyz
	@$(BIN)/python deploy/pilot_bundle/build_bundle.py $(OPTIONS)

# The tools that make a release; what is released is installed elsewhere, from the lock.
$(RELEASE)/.stamp: pyproject.toml
	@deploy/make-venv $(RELEASE) --editable '.[release]'
	@touch $@

lock: $(RELEASE)/.stamp ## write deploy/requirements.lock, with the newest releases of all packages
	@$(RELEASE)/bin/python deploy/release/release_check.py --lock

release-check: $(RELEASE)/.stamp $(VENV)/.stubs ## build and try a release in dist/release: wheel, bundle, docs, image; OPTIONS=--no-image
	@$(RELEASE)/bin/python deploy/release/release_check.py $(OPTIONS)

clean: ## remove the results of all targets
	rm -rf $(VENV) $(COMPILED) $(RELEASE) .bench-peers .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find $(PACKAGES) bench -name '__pycache__' -type d -prune -exec rm -rf {} +
	find proto \( -name '*_pb2*.py*' -o -name '*.binpb' \) -delete
