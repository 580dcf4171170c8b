# Everything a contributor runs. Each target makes .venv and installs what it needs.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# One thread per process: on two cores, parallel processes beat parallel kernels.
export OMP_NUM_THREADS ?= 1
# Tests start many processes, and each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test unit lint types docs bench parity clean

help:
	@echo "make demo   train all methods on digits; writes demo.html"
	@echo "make test   lint, types, doctests, README code and tests"
	@echo "make docs   the documentation as pages, in docs/_build/html"
	@echo "make bench  cost of every method relative to the bare backbone"
	@echo "make parity our corruptions against imagecorruptions; DATA=folder with cifar10 and frost"
	@echo "make clean  remove .venv and caches"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "needs $(PYTHON); set PYTHON=/path/to/python"; exit 1; }
	@echo "Installing PyTorch and the rest into $(VENV): some minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

demo: install
	@echo "Loading PyTorch ..."
	$(BIN)/gflowout demo

# Side by side: the type checker has one thread.
test: install
	@$(MAKE) --no-print-directory --jobs 3 lint types unit

unit: install
	$(BIN)/python -m pytest -n 2 -q

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: install
	$(BIN)/mypy

docs: install
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: install
	$(BIN)/gflowout bench

# The other implementation asks for an OpenCV that needs a display's libraries; the headless one serves.
DATA ?= $(GFLOWOUT_DATA)
parity: install
	$(BIN)/python -m pip install --quiet --no-deps imagecorruptions-imaug==1.1.5
	$(BIN)/python -m pip install --quiet -c constraints.txt numba opencv-python-headless scikit-image
	$(BIN)/python tests/corruption_parity.py --data-dir "$(DATA)"

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .pytest_cache docs/_build
