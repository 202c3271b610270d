# Everything starts here. `make serve` and `make test` set up what they need first (a virtual environment in .venv,
# with pip and nothing else), then do their job; the second time the set-up takes no time.

MODEL  ?= smollm2-135m
PHASE  ?=
ARGS   ?=
PYTHON ?=
CPU    ?=
CLIENTS ?=
TARGET ?= cpu
QUICK  ?=
MINUTES ?= 30

# The supported versions, newest first: pyproject.toml's requires-python, which tests/repository compares.
PYTHONS := 3.14 3.13 3.12 3.11
NEWEST  := $(firstword $(PYTHONS))
RANGE   := $(lastword $(PYTHONS)) to $(NEWEST)

VENV   := .venv
IN     := $(VENV)/bin/python -m
# Whole files to a process: what a file sets up is set up once. In their order: files of a single test, last by default,
# are the longest, and at the end all other processes would wait for one of them.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
GRADUS := $(IN) gradus

# What each stamp stands for is reinstalled when the list of dependencies changes.
TORCH_READY := $(VENV)/.torch-chosen
SERVE_READY := $(VENV)/.ready-to-serve
TEST_READY  := $(VENV)/.ready-to-test
BOOK_READY  := $(VENV)/.ready-for-the-book

.DEFAULT_GOAL := help
.PHONY: help serve course test test-gpu lint stress soak weights clients nightly book dist image clean

help:
	@echo 'Gradus: an LLM inference engine, built one optimization at a time.'
	@echo
	@echo '  make serve     set up, fetch the model (98 MB) and serve it on http://127.0.0.1:8000'
	@echo '  make course    set up for the course, with what `gradus check` needs, and fetch the model'
	@echo '  make test      set up for development, then lint and run the tests; needs no network afterwards'
	@echo '  make test-gpu  the tests that need a CUDA GPU, in minutes; `make stress` runs the rest of their combinations'
	@echo '  make lint      ruff (errors, format) and mypy'
	@echo '  make stress    property tests with many more examples, and what `make test` leaves out'
	@echo '  make soak      a server under changing load for half an hour: what must still hold at its end'
	@echo '  make clients   install the programs of docs/clients.md, each by itself, and run them against a server'
	@echo '  make weights   fetch the models of the tests that need real weights (2 GB), and run those tests'
	@echo '  make nightly   weights, stress and clients, each in any case: hours; a workflow runs it every night'
	@echo '  make book      the course and the documentation as a web book, in build/book'
	@echo '  make dist      what a release consists of, in dist: the sdist, and the wheel built from it'
	@echo '  make image     the container image of the server (deploy/README.md), built with Docker and tried'
	@echo '  make clean     remove .venv and every cache; fetched models stay'
	@echo
	@echo 'Settings, with examples:'
	@echo '  make serve MODEL=gemma3-270m              another model: a name of `gradus models`, a folder, a .gguf file'
	@echo '  make serve PHASE=p01                      serve with one phase of the course, not the final engine'
	@echo '  make serve ARGS="--port 9000"             any option of `gradus serve`'
	@echo '  make test ARGS="-k scheduler -x"          any option of pytest'
	@echo '  make test-gpu QUICK=1                     each file and each kernel once'
	@echo '  make soak MINUTES=480 MODEL=smollm2-135m  a whole night, with another model'
	@echo '  make clients CLIENTS="openai llm"         only these clients'
	@echo '  make serve CPU=1                          PyTorch for CPUs, though there is an NVIDIA GPU (CPU=0: never)'
	@echo '  make image TARGET=cuda                    the image for NVIDIA GPUs'
	@echo '  make test PYTHON=/opt/python$(NEWEST)          make .venv with this Python ($(RANGE))'
	@echo
	@echo 'Then: .venv/bin/gradus --help'

serve: $(SERVE_READY)
	@$(GRADUS) pull "$(MODEL)"
	@$(GRADUS) serve --model "$(MODEL)" $(if $(PHASE),--phase $(PHASE)) $(ARGS)

course: $(TEST_READY)
	@$(GRADUS) pull smollm2-135m
	@echo
	@echo 'Begin with phases/p00_baseline/forward_pass.md. Its first commands are:'
	@echo '  source .venv/bin/activate'
	@echo '  gradus exercise p00'

# mypy runs beside the tests: in a new clone it takes most of a minute on one processor, and the others would wait.
test: $(TEST_READY)
	$(IN) ruff check .
	$(IN) ruff format --check .
	@echo '$(IN) mypy (its answer comes after the tests)'; \
	$(IN) mypy > $(VENV)/types.log 2>&1 & types=$$!; \
	$(IN) pytest $(PARALLEL) --durations=15 $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.log; exit $$((tests ? tests : types))

# Five processes share the GPU with a sixth, which runs the tests that plan memory from what is free: two plans at once
# would share out the same bytes. Tests outside tests/gpu, which measure memory or time, follow and have the GPU to
# themselves. pytest exits with 5 if it finds no test, as the last call does with ARGS='-k gguf'.
on_gpu = $(IN) pytest -m '$(if $(QUICK),quick and )gpu$(1)' $(2) --durations=15 $(ARGS)

test-gpu: $(TEST_READY)
	@echo 'Tests that plan memory run in a process of their own; their output follows that of the others.'; \
	$(call on_gpu, and plans_memory,tests/gpu) > $(VENV)/plans.log 2>&1 & plans=$$!; \
	$(call on_gpu, and not plans_memory,tests/gpu -n 5 --dist worksteal); others=$$?; \
	wait $$plans; plans=$$?; cat $(VENV)/plans.log; \
	$(if $(QUICK),alone=5,$(call on_gpu,,--ignore tests/gpu); alone=$$?); \
	[ $$plans$$others$$alone != 555 ] || exit 5; \
	for status in $$plans $$others $$alone; do [ $$status = 0 ] || [ $$status = 5 ] || exit $$status; done

lint: $(TEST_READY)
	$(IN) ruff check .
	$(IN) ruff format --check .
	$(IN) mypy

# Code for ARM processors is run by qemu where there is one: apt-get install qemu-user binutils-aarch64-linux-gnu.
stress: $(TEST_READY)
	HYPOTHESIS_PROFILE=stress $(IN) pytest -m "stress or hypothesis" $(PARALLEL) --timeout 3600 --durations=15 $(ARGS)

# A tiny random model, unless MODEL is given here; ARGS go to `gradus serve`. It writes build/soak.json.
soak: $(TEST_READY)
	PYTHONPATH=. $(IN) benchmarks.soak --minutes $(MINUTES) --out build/soak.json \
	  $(if $(filter command environment,$(firstword $(origin MODEL))),--model '$(MODEL)') $(if $(ARGS),-- $(ARGS))

# The models that tests name, which tests/repository compares. Those that need stress too belong here as well: a marker
# that is left out unless it is asked for has to be named.
WEIGHTS := smollm2-135m gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b stories15m

weights: $(TEST_READY)
	@for model in $(WEIGHTS); do $(GRADUS) pull "$$model" || exit; done
	$(IN) pytest -m "weights or weights and stress" --timeout 3600 --durations=15 $(ARGS)

# Each client has an environment and a home of its own in build/clients. What cannot be installed is skipped.
clients: $(TEST_READY)
	$(IN) tests.clients.installing $(CLIENTS)
	$(IN) pytest -m clients tests/clients tests/deploy $(ARGS)

# What no push waits for. A part that fails does not keep the next from running, and fails the whole at its end. The models
# come first: stress leaves out what needs models that are not there.
nightly: $(TEST_READY)
	$(MAKE) --keep-going --jobs 1 weights stress clients

# Every page anew, and every warning an error: a broken link or anchor ends it.
book: $(BOOK_READY)
	@echo 'Building the book (a minute or two) …'
	@$(call alive,building the book) $(IN) sphinx --fresh-env --fail-on-warning --keep-going --quiet --conf-dir book \
	  --doctree-dir build/doctrees . build/book; status=$$?; kill $$alive 2> /dev/null; exit $$status
	@echo 'build/book/index.html'

# The wheel is built from the sdist, so that an sdist that lacks a file is noticed.
dist: $(VENV)/bin/pip
	$(INSTALL) --quiet build
	rm -rf dist
	$(IN) build

image:
	docker build --file deploy/docker/Dockerfile --target $(TARGET) --build-arg VERSION="$$(git describe --always)" \
	  --tag gradus:$(TARGET) .
	deploy/docker/check.sh gradus:$(TARGET)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up --------------------------------------------------------------------------------------------------------------

# --no-compile: Python compiles what is imported when it is; pip would compile everything, for half a minute.
INSTALL := $(IN) pip install --no-compile --disable-pip-version-check --constraint constraints.txt

# pip says what it collects and downloads, and unpacks PyTorch without a word: that looks like a hang. The loop ends with
# its shell, however that ends.
alive = while sleep 4 > /dev/null 2>&1 && kill -0 $$$$ 2> /dev/null; do echo '… still $(1)'; done & alive=$$!;

comma := ,
define install
@echo 'Installing into $(VENV)$(2) (once, for half a minute or more) …'
@$(call alive,installing) $(INSTALL) --editable '$(1)'; status=$$?; kill $$alive 2> /dev/null; exit $$status
endef

# A CPU's kernels are compiled while the model is fetched and the server starts. Whatever needs them meanwhile waits for
# this process, and compiles them itself if it fails.
define compile
@[ '$(CPU)' != 1 -a -n "$$(command -v nvidia-smi)" ] || { \
  echo 'Compiling the CPU kernels meanwhile (once, for some seconds) …'; \
  $(GRADUS) generate --model random:tiny-llama --device cpu --max-tokens 1 x > /dev/null 2>&1 < /dev/null & }
endef

$(SERVE_READY): pyproject.toml constraints.txt setup.py $(TORCH_READY)
	$(call install,.[server])
	$(compile)
	@touch $@

$(TEST_READY): pyproject.toml constraints.txt setup.py $(TORCH_READY)
	$(call install,.[dev],$(comma) with what the tests need)
	$(compile)
	@touch $(SERVE_READY) $@

$(BOOK_READY): pyproject.toml constraints.txt setup.py $(TORCH_READY)
	$(call install,.[book],$(comma) with what the book needs)
	@touch $@

# On Linux, what pip takes for PyTorch is a CUDA build of several gigabytes. Without an NVIDIA GPU, uv takes the build for
# CPUs: it knows where PyTorch keeps that. Whoever has told pip of further places for packages has chosen already.
$(TORCH_READY): constraints.txt | $(VENV)/bin/pip
	@if [ "$$(uname -sm)" = 'Linux x86_64' ] && [ '$(CPU)' = 1 -o -z '$(CPU)' -a -z "$$(command -v nvidia-smi)" ] \
	    && ! $(IN) pip config list | grep -E '(find-links|index-url)=' > /dev/null; then \
	  echo 'No NVIDIA GPU, or CPU=1: installing PyTorch for CPUs (200 MB) …'; \
	  $(INSTALL) --quiet uv && $(IN) uv pip install --python $(VENV)/bin/python --torch-backend cpu \
	    --constraint constraints.txt torch \
	    || echo 'It cannot be had here: pip takes the build that it finds, which may be CUDA’s, of several gigabytes.'; \
	fi
	@touch $@

# The newest Python that really runs: a version manager may leave a command on the path for a version it does not have,
# and a distribution may leave out the part that makes virtual environments. pip is the last thing venv puts in place.
$(VENV)/bin/pip:
	@for python in $(if $(PYTHON),"$(PYTHON)",$(PYTHONS:%=python%) python3 python); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])' $(PYTHONS) 2>/dev/null; then \
	    echo "Making $(VENV) with $$("$$python" --version) …"; exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo "gradus: $(if $(PYTHON),$(PYTHON) is not a,found no) Python $(RANGE) that can make a virtual environment (with the venv and ensurepip modules); install one and name it: make PYTHON=/path/to/python$(NEWEST)" >&2; \
	exit 2
