# Every target first makes .venv, or brings it up to date with the pinned requirements.
#
#   make demo     the whole job on generated data         make bench    two short benchmark cases
#   make test     all tests (TRACES=DIR: real traces)     make soak     the long tests
#   make check    lint, types, layers, docstrings         make guards   each guard must turn a test red
#   make compat   fast tests under torchrec 1.7 and 1.9, where the registry has them for this machine
#   make docs     the pages as HTML in build/docs (LINKS=1: look for dead links outside, too)
#   make clean    remove caches and build outputs; .venv stays

PYTHON ?= python3
TRACES ?=
WORKERS ?= 2
LINKS ?=

BIN := .venv/bin
READY := .venv/.ready
READY_DOCS := .venv/.ready-docs
STARTED := .venv/.started
PATHS := PYTHONPATH=.:triton_kernels:sharding
# with "=": pytest would take a value of its own for the folder to look for its settings in
PYTEST := $(BIN)/python -m pytest $(if $(TRACES),--traces=$(abspath $(TRACES)))
GENERATED := --generate 10000,12000

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := test
.PHONY: demo test check bench soak guards compat docs clean

demo: $(READY)
	$(BIN)/grace-torchrec demo -o grace-demo

test: $(READY)
	$(PYTEST) -n $(WORKERS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PATHS) $(BIN)/lint-imports
	$(BIN)/interrogate -q grace_torchrec triton_kernels sharding $(wildcard bench examples)

bench: $(READY)
	$(BIN)/python -m bench traffic $(GENERATED) --budget 1.0 --method grace
	$(BIN)/python -m bench end_to_end $(GENERATED) --model embedding_heavy

soak: $(READY)
	$(PYTEST) --soak -m soak

guards: $(READY)
	$(BIN)/python tests/guards/run.py $(if $(TRACES),--traces $(abspath $(TRACES)))

compat: $(READY)
	$(BIN)/python tests/compat/run.py

docs: $(READY_DOCS)
	$(PATHS) $(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	$(if $(LINKS),$(PATHS) $(BIN)/python -m sphinx -W --keep-going -q -b linkcheck docs build/links)
	@echo "build/docs/index.html"

clean:
	rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name .venv -prune -o -type d \( -name __pycache__ -o -name '*.egg-info' \) -print0 \
		| xargs -0 rm -rf

# The stamp holds the place it was made in: an environment that was moved has scripts that point away,
# one whose interpreter was upgraded away has none.
ifneq ($(shell [ -x $(BIN)/python ] && cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

# An installation that was killed half-way leaves $(STARTED) and begins anew, as does one whose Python
# is gone or that was moved; one that failed by itself, or was made by other means, is installed over.
INSTALL = echo "installing the pinned wheels into .venv: one to six minutes, 2.7 GB, silent" && $(BIN)/python -m pip install -qq --upgrade pip \
	&& $(BIN)/python -m pip install -qq -r requirements/cpu.txt \
	&& $(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e . \
	&& $(BIN)/python -m pip check

$(READY): $(wildcard requirements/*.txt) requirements/fbgemm-gpu-shim/pyproject.toml pyproject.toml
	@if [ -e $(STARTED) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1 \
		|| { [ -e $(READY) ] && [ "$$(cat $(READY))" != "$(CURDIR)" ]; }; \
		then rm -rf $(READY) $(BIN) && $(PYTHON) -m venv --clear .venv; fi
	@rm -f $(READY) && touch $(STARTED)
	@{ $(INSTALL); } || { rm -f $(STARTED); exit 1; }
	@rm -f $(STARTED) && echo "$(CURDIR)" > $(READY)

# What only `make docs` needs is installed when it is first asked for.
$(READY_DOCS): requirements/docs.txt $(READY)
	$(BIN)/python -m pip install -qq -r requirements/docs.txt
	@touch $(READY_DOCS)
