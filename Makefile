# Everything here sets itself up: the first run installs, later runs find it done.
#   PYTHON=python3.12          the interpreter for the virtual environment (3.10 or later)
#   PIP_ARGS="--index-url …"   where pip looks, for example for a torch built for your GPUs
#   PYTEST_ARGS="-k shape"     what pytest gets besides; -n 0: all tests in one process
#   SLURMMESH_TEST_LIBRARIES=… where the real GPU libraries for tests are kept; .cache otherwise

VENV := .venv
RUN := $(VENV)/bin/python
PIP = $(RUN) -m pip install -qq --disable-pip-version-check --constraint constraints.txt $(PIP_ARGS)
# Much of a test is waiting; all tests of a file stay in one process, for what they share. Files are
# run by name: those of the fewest tests, which would come last, are among those that take longest.
PYTEST = $(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
METADATA := setup.cfg pyproject.toml setup.py constraints.txt
# The C bridge is built by an installation, so a change of it asks for one.
BRIDGE := $(wildcard cbridge/*.c cbridge/*.h) slurmmesh/_cffi/build.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-quick gpu-libraries lint clean distclean

help:
	@echo "make demo        train a small language model through kills, with and without them"
	@echo "make test        the whole test suite; as root it installs the Debian packages it needs"
	@echo "make test-quick  without the tests marked slow"
	@echo "make gpu-libraries  fetch the real GPU libraries for tests (650 MB); make test does it too"
	@echo "make lint        ruff and mypy"
	@echo "make venv        only the virtual environment in $(VENV)"
	@echo "make clean       remove what runs and tests left; distclean also removes $(VENV) and .cache"

demo: $(VENV)/.ready-demo
	@$(RUN) examples/demo.py

test: $(VENV)/.ready-test gpu-libraries
	@.ci/debian-packages.sh; code=$$?; \
	case $$code in 0|10) ;; *) exit $$code ;; esac; \
	if [ $$code -eq 0 ] && [ "$$(id -u)" -eq 0 ]; then slurm=--require-slurm; fi; \
	$(PYTEST) $$slurm $(PYTEST_ARGS)

test-quick: $(VENV)/.ready-test
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

# Real libraries of AMD and NVIDIA, unpacked into .cache: no root, no change of the system. Where one
# cannot be had its tests skip and say why.
gpu-libraries: $(VENV)/.ready-test
	@$(RUN) -m tests.gpu.real.fetch $(PIP_ARGS)

lint: $(VENV)/.ready-test
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check slurmmesh sbatch_templates benchmarks examples tests
	$(RUN) -m mypy

venv: $(VENV)/.ready-test

$(VENV)/.ready-venv:
	@.ci/venv.sh $(VENV) $(PYTHON)
	@touch $@

$(VENV)/.ready-demo: $(VENV)/.ready-venv $(METADATA) $(BRIDGE)
	@echo "installing torch and what slurmmesh needs into $(VENV); the first time this takes minutes"
	@$(PIP) setuptools cffi torch
	@$(PIP) --no-build-isolation --editable '.[train,report]'
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready-demo
	@$(PIP) --no-build-isolation --editable '.[train,report,test]'
	@touch $@

clean:
	rm -rf build dist demo-out slurmmesh-jobs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .cache
