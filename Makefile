# Everything runs from .venv; each target that needs it makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
EXTRAS ?=
# Tests and lint share the machine: two workers on two cores.
WORKERS ?= 2
# Memory in pages of 2 MiB, which the C library reads when a process starts: XLA takes
# fresh memory for a program's temporaries at every call.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: setup gpu gpu-hour gpu-wheels compare chainer test pytest test-default-flags \
  test-versions test-lowest coverage soak fuzz bench docs study-again tables lint lock clean

# EXTRAS=cuda adds what JAX needs on an NVIDIA GPU, at the pinned version of JAX.
setup: $(STAMP) $(if $(EXTRAS),$(VENV)/.extras-$(EXTRAS))

$(VENV)/.extras-%: $(STAMP)
	sed -n '/^[a-z]/s/ \\$$//p' requirements.lock > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation \
	  --constraint $(VENV)/constraints.txt --editable ".[$*]"
	@touch $@

$(STAMP): requirements.lock setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "Python %d.%d found; 3.11 or newer is needed (set PYTHON=...)" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

compare: setup
	$(BIN)/python experiments/compare_backends.py --workdir=results/compare $(ARGS)

# Stale targets in Chainer itself, in an environment of its own. ARGS=--full: an hour.
chainer: setup
	$(BIN)/python -m study interventions $(ARGS)

# XLA's CUDA compiler, for noise.audit: in a folder that JAX itself does not see.
GPU_WHEELS := $(VENV)/gpu-audit/.installed

gpu-wheels: $(GPU_WHEELS)

$(GPU_WHEELS): $(STAMP)
	$(BIN)/python -m prednet_jax.noise audit --install
	@touch $@

# Our own programs compiled for the article's GPUs and today's: minutes, and it resumes.
gpu: setup gpu-wheels
	$(BIN)/python experiments/gpu.py $(ARGS)
	$(BIN)/python tests/noise/gpu/sums.py

# All that needs a GPU: ten minutes of the package, then the study's arms on it.
gpu-hour: setup
	$(BIN)/python experiments/on_gpu.py $(ARGS)
	$(BIN)/python -m study gpu

bench: setup
	$(BIN)/python experiments/benchmark.py $(ARGS)

# A seed of part C again, beside the published one, minutes.
study-again: setup
	rm -rf runs/study-again
	$(BIN)/python -m study train --part=C --seeds=8300 --workdir=runs/study-again \
	  --compare_with=results/study $(ARGS)

# The site, docs/_build/html/index.html; warnings are errors.
docs: setup $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

$(VENV)/.docs: requirements-docs.lock $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements-docs.lock
	@touch $@

# Tables and figures of the documents, from committed records; fails if one differed.
# ARGS=NAME makes one of them.
tables: setup
	$(BIN)/python -m study tables $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# At the same time: lint alone would leave a core idle.
test: setup
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal -m "not slow" $(ARGS)

# The numbers under XLA's own flags too, as a user of the library without
# process.prepare has them: recordings, gradients, bits and sizes of the noise.
NUMBERS := tests/models tests/weights/test_golden_*.py tests/curvature/test_hessian.py \
  tests/training/test_truncated.py \
  $(addprefix tests/noise/test_noise_,barrier.py bits.py composition.py \
    elementwise.py order.py reductions.py)

test-default-flags: setup
	PREDNET_DEFAULT_XLA_FLAGS=1 JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest \
	  -n $(WORKERS) --dist=worksteal -m "not slow" $(NUMBERS) $(ARGS)

# The slow tests alone, an hour or more: whole comparisons, every recorded bit, every
# program of JAX's own harnesses.
soak: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal -m slow $(ARGS)

# Lines of the package that the quick tests run, with the lines that they miss. Scripts
# in processes of their own do not count.
coverage: setup $(VENV)/.coverage
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal -m "not slow" \
	  --cov=prednet_jax --cov-report=term-missing $(ARGS)

$(VENV)/.coverage: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps coverage==7.17.3 pytest-cov==7.1.0
	@touch $@

# Wheel and source distribution under Python 3.11 to 3.13, where found, without extras and
# with each; then the numerical tests on the newest. Environments of its own, .venv-*.
test-versions: setup
	.ci/versions

# The quick tests with the lowest versions that setup.cfg accepts (needs `uv` on the path).
LOWEST := .venv-lowest
test-lowest:
	uv venv --quiet --clear --python 3.11 $(LOWEST)
	uv pip compile --quiet setup.cfg --extra test --extra all --python $(LOWEST) \
	  --resolution lowest-direct --output-file $(LOWEST)/requirements.txt
	uv pip install --quiet --python $(LOWEST) --requirement $(LOWEST)/requirements.txt \
	  --editable .
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist=worksteal -m "not slow" \
	  $(ARGS)

# Broken files, texts and flags by the hundred thousand in one process, then whole
# commands. FUZZ: thousands of inputs; COMMANDS: commands.
FUZZ ?= 100
COMMANDS ?= 200
fuzz: setup
	FUZZ=$(FUZZ) FUZZ_COMMANDS=$(COMMANDS) $(BIN)/python -m pytest tests/fuzz $(ARGS)

# Renews the pinned versions (needs `uv` on the path).
lock:
	uv pip compile setup.cfg --extra test --extra all --universal --python-version 3.11 \
	  --no-emit-index-url --no-header --generate-hashes --upgrade --output-file requirements.lock
	uv pip compile setup.cfg --extra docs --universal --python-version 3.11 \
	  --no-emit-index-url --no-header --generate-hashes --constraint requirements.lock \
	  --output-file requirements-docs.lock

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
