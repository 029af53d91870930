# make setup · make test · make docs · make demo · make paper · make bench · make fuzz      (PYTHON=python3.12 make setup picks an interpreter)
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $(p))))
BIN := .venv/bin
MINUTES ?= 10
FLEXCONV := $(BIN)/python -m flexconv

.PHONY: setup test lint types docs unit demo paper fuzz bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "flexconv needs Python 3.11 or newer; none found on PATH"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,export,viz,hub,parquet,docs,dev]"
	touch $@

test: lint types docs unit

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/pyright

docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/ready # --quiet would hide warnings from --strict
	$(BIN)/mkdocs build --strict

unit: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist worksteal

demo: .venv/ready
	rm -rf runs/demo
	$(FLEXCONV) train digits --out runs/demo --device cpu
	$(FLEXCONV) inspect runs/demo
	$(FLEXCONV) resample runs/demo --to 32 --device cpu
	@echo "pictures of the training, the sizes, the masks and the largest kernel are in runs/demo/plots"

# docs/results.md with its figures, and results/README.md, from the logs in results/
paper: .venv/ready
	$(BIN)/python -m reproduction all
	$(BIN)/python -m reproduction results

# random convolutions, layers, networks, files and runs for MINUTES; prints the smallest example that fails
fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz $(MINUTES)

bench: .venv/ready
	$(FLEXCONV) bench

clean:
	rm -rf .venv dist site .pytest_cache .ruff_cache .hypothesis
