# Every verb works alone on a fresh clone: it makes the environment it needs, once.
#
#   TORCH_INDEX=URL         take torch from this wheel index (https://download.pytorch.org/whl/cpu for the CPU build)
#   PYTHON=... VENV=none    use this Python as it is and install nothing: a GPU runner that has its own torch
#   ARGS='...'              more arguments for the command or for pytest

VENV   ?= .venv
JOBS   ?= auto
SEARCH := for p in python3.11 python3 python3.12 python3.13; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done

ifeq ($(VENV),none)
PYTHON ?= python3
PY     := PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
NEEDS   = $(NEW_ENOUGH) && $(PY) -P harness/doctor.py --for $@ &&
else
PYTHON ?= $(or $(shell $(SEARCH)),python3)
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
PIP    := $(PY) -m pip install -q --disable-pip-version-check -c requirements.lock
endif

NEW_ENOUGH = { $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
               { echo "specharness needs Python 3.11 or newer, and $(PYTHON) is not:" \
                      "say PYTHON=/path/to/python3.11" >&2; exit 1; }; }
EXPLORES   = $(if $(SEED),--seed '$(SEED)') $(if $(WORKERS),--workers '$(WORKERS)') $(if $(ON),--on '$(ON)') \
             $(if $(FAULT),--fault '$(FAULT)')
ENDURES    = $(if $(SECONDS),--seconds '$(SECONDS)') $(if $(SEED),--seed '$(SEED)') \
             $(if $(BASE_URL),--base-url '$(BASE_URL)')
VERDICT    = code=$$?; echo "{\"verb\": \"$@\", \"exit\": $$((code != 0))}"; exit $$code

# Tests start hundreds of processes that import the same modules, which are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help repro test test-browser matrix explore serve gpu-bench gpu-gate sanitize fuzz soak live live-vllm bench compare calibrate gate nightly micro history report lint doctor
.DEFAULT_GOAL := help

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

repro: $(READY) ## reproduce an issue: ISSUE=24881 or PR=24957, and TARGET= VARIANT= SEED= as you like
	@$(NEEDS) $(PY) -m harness.cli repro $(foreach n,$(ISSUE) $(PR),'$n') $(if $(TARGET),--target '$(TARGET)') \
	  $(foreach v,$(VARIANT),--variant '$v') $(if $(SEED),--seed '$(SEED)') $(ARGS)

test: $(READY) ## lint, types, house rules and every test that needs no GPU
	@$(NEEDS) $(PY) -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal $(ARGS); $(VERDICT)

test-browser: $(READY) ## the pages in headless Chromium, which it fetches where there is none: photographs in reports/browser/
	@$(NEEDS) $(PY) -m cases.browser.chromium >/dev/null || { code=$$?; echo "{\"verb\": \"$@\", \"exit\": $$code}"; exit $$code; }
	@$(NEEDS) $(PY) -m pytest -n 0 cases/browser/pages.py $(ARGS); $(VERDICT)

matrix: $(READY) ## every fault against every check: SEED= WORKERS= ON=ray
	@$(NEEDS) $(PY) -m harness.cli matrix $(EXPLORES) $(ARGS)

explore: $(READY) ## draw scenarios for SECONDS=60 and make small what is wrong: SEED= WORKERS= FAULT= ON=ray
	@$(NEEDS) $(PY) -m harness.cli explore $(if $(SECONDS),--seconds '$(SECONDS)') $(EXPLORES) $(ARGS)

serve: $(READY) ## an OpenAI-compatible server: VARIANT= FAULT= SPEC= K= REGIME= PRESET= MODEL= PORT=
	@$(NEEDS) $(PY) -m harness.cli serve $(foreach p,VARIANT FAULT SPEC K REGIME PRESET MODEL PORT, \
	  $(if $($p),--$(shell echo $p | tr A-Z a-z) '$($p)')) $(ARGS)

live: $(READY) ## audit a server: BASE_URL= MODEL= TOKENIZER= REFERENCE_URL=, or the embedded one: VARIANT= FAULT= SPEC= K= REGIME=
	@$(NEEDS) $(PY) -m harness.cli live $(foreach p,BASE_URL REFERENCE_URL MODEL TOKENIZER VARIANT FAULT SPEC K REGIME PRESET SEED, \
	  $(if $($p),--$(shell echo $p | tr A-Z_ a-z-) '$($p)')) $(ARGS)

live-vllm: $(READY) ## audit a released vLLM on the CPU, as it is and mended: an environment of its own, 2.5 GB
	@$(NEEDS) $(PY) -m harness.cli live-vllm $(if $(SEED),--seed '$(SEED)') $(ARGS)

fuzz: $(READY) ## wrong requests of every kind for SECONDS=60 against our server, or BASE_URL=: SEED=
	@$(NEEDS) $(PY) cases/live/fuzz.py $(ENDURES) $(ARGS)

soak: $(READY) ## 200 streams at a time for SECONDS=60 against our server, or BASE_URL=: SEED=
	@$(NEEDS) $(PY) cases/live/soak.py $(ENDURES) $(ARGS)

gpu-bench: $(READY) ## time the kernels on a GPU beside vLLM's and fla-core's: reports/baselines/gpu.md
	@$(NEEDS) $(PY) -m harness.cli gpu-bench $(ARGS)

bench: $(READY) ## speculation off and on, free and guided: VARIANT= SPEC= REQUESTS= CONCURRENCY= RATE= SEED=, or a server: BASE_URL= MODEL= TOKENIZER=
	@$(NEEDS) $(PY) -m harness.cli bench $(foreach p,BASE_URL MODEL TOKENIZER VARIANT FAULT SPEC K REGIME PRESET REQUESTS CONCURRENCY RATE SEED FORMAT \
	  PRESET_WORKLOAD COMPARE ROUNDS RESUME HISTORY COMMIT, \
	  $(if $($p),--$(shell echo $p | tr A-Z_ a-z-) '$($p)')) $(ARGS)

compare: $(READY) ## hold benchmark runs A= against B=: files, run directories, or folders of several runs
	@$(NEEDS) $(PY) -m harness.cli compare '$(A)' '$(B)' $(ARGS)

calibrate: $(READY) ## how much benchmark runs move when nothing changes: RUNS='reports/bench-1 reports/bench-2 ...'
	@$(NEEDS) $(PY) -m harness.cli calibrate $(RUNS) $(ARGS)

ifeq ($(HISTORY),)
gate: gpu-gate ## is this commit right on this machine's GPU? With HISTORY=: RUN=, or the newest night, against its nights
else
gate: $(READY)
	@$(NEEDS) $(PY) -m harness.cli gate --history '$(HISTORY)' $(if $(RUN),'$(RUN)') $(ARGS)
endif

gpu-gate: $(READY) ## kernels, recompile gate and every case on this machine's GPU, in 5 minutes: JUNIT= ADD=sanitize
	@$(NEEDS) $(PY) -m harness.cli gpu-gate $(if $(JUNIT),--junit '$(JUNIT)') $(foreach p,$(ADD),--add '$p') \
	  $(if $(SEED),--seed '$(SEED)') $(ARGS)

sanitize: $(READY) ## the kernels under compute-sanitizer: memcheck and racecheck, and mistakes that they have to find
	@$(NEEDS) $(PY) -m harness.cli sanitize $(if $(JUNIT),--junit '$(JUNIT)') $(ARGS)

nightly: $(READY) ## correctness, benchmark, gate, one exit code: HISTORY= TARGET= KNOWN= CALIBRATION= RESUME=, or a server: BASE_URL= MODEL= TOKENIZER= COMMIT=
	@$(NEEDS) $(PY) -m harness.cli nightly $(foreach p,HISTORY TARGET KNOWN CALIBRATION RESUME BASE_URL MODEL TOKENIZER COMMIT, \
	  $(if $($p),--$(shell echo $p | tr A-Z_ a-z-) '$($p)')) $(ARGS)

micro: $(READY) ## time parser, metrics, masks (and kernels, on a GPU) alone: reports/micro.json, and into HISTORY=
	@mkdir -p reports; $(NEEDS) $(PY) -m pytest cases/bench/micro -q -p no:xdist --benchmark-json=reports/micro.json $(ARGS) \
	  $(if $(HISTORY),&& $(PY) -m harness.cli history add '$(HISTORY)' reports/micro.json,; $(VERDICT))

history: $(READY) ## the nights of HISTORY=; specharness history adds to it and finds changes
	@$(NEEDS) $(PY) -m harness.cli history list '$(HISTORY)' $(ARGS)

report: $(READY) ## the page of all runs, reports/index.html, which every run renews
	@$(NEEDS) $(PY) -m harness.cli index $(ARGS)

lint: $(READY) ## ruff and mypy alone
	@$(NEEDS) $(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy; $(VERDICT)

doctor: $(READY) ## what is here, and what is missing for which verb
	@$(NEW_ENOUGH) && $(PY) -P harness/doctor.py $(ARGS)

# `.unfinished` becomes `.ready` at the very end, so an interrupted install starts again from nothing.
# An environment that somebody made by hand has neither: it is kept and completed.
$(VENV)/.ready: pyproject.toml requirements.lock
	@$(NEW_ENOUGH)
	@maker=$$(cat $(VENV)/.unfinished 2>/dev/null) || exit 0; \
	if kill -0 $$maker 2>/dev/null; then \
	  echo "Another make (process $$maker) is making $(VENV): wait for it, or remove $(VENV)." >&2; exit 1; fi; \
	echo "An earlier install was interrupted: starting again." >&2; rm -rf $(VENV)
	@echo "Making $(VENV) with $(PYTHON): one to five minutes, this once." >&2
	@mkdir -p $(VENV) && rm -f $@ && echo $$PPID >$(VENV)/.unfinished && $(PYTHON) -m venv $(VENV)
	@$(if $(TORCH_INDEX),$(PIP) --no-deps --index-url $(TORCH_INDEX) torch)
	@$(PIP) -e '.[dev]'
	@mv $(VENV)/.unfinished $@
