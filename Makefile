# `make help` lists the targets. Needs Python 3.11+ and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# cuda12 or cuda13 where the driver runs a GPU, else nothing; `make demo EXTRA=` installs for the CPU only.
EXTRA ?= $(shell $(PYTHON) -P ops/gpu/driver.py 2>/dev/null)
comma := ,
REPORT ?= out/quickstart/report.json
.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

# pip comes last: an environment without it was only half made, and is made again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dali-run needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make $(MAKECMDGOALS) PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo 'This Python has no ensurepip or venv. Debian and Ubuntu keep them in a package: apt install python3-venv; then make $(MAKECMDGOALS) again.' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.runtime: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.$(if $(EXTRA),[$(EXTRA)])'
	@touch $@

$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[test,lint,formats$(if $(EXTRA),$(comma)$(EXTRA))]'
	@touch $@ $(VENV)/.runtime

.PHONY: setup
setup: $(VENV)/.installed ## make the environment for development (.venv)

.PHONY: demo
demo: $(VENV)/.runtime ## install, make sample data, run configs/quickstart.yaml, show its report
	$(BIN)/dali-run sample-data data
	$(BIN)/dali-run run configs/quickstart.yaml --fresh

# The tests start a thousand processes: each would compile all modules anew where the environment keeps no bytecode.
.PHONY: test
test: export PYTHONDONTWRITEBYTECODE =
test: setup ## run the tests (GPU tests are skipped without a GPU)
	-$(BIN)/dali-run warm --quiet # else the processes of the tests compile the same loops; what fails here fails there
	$(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal

.PHONY: test-lowest
test-lowest: ## the tests with the lowest versions that pyproject.toml allows, in an environment of their own (needs uv)
	uv venv --quiet --clear --python $(PYTHON) build/with-lowest
	uv pip install --quiet --python build/with-lowest/bin/python --resolution lowest-direct --editable '.[test,formats]'
	build/with-lowest/bin/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal

.PHONY: torture
# glibc fills memory that is allocated or freed with these bytes: loops that read it give wrong results at once.
torture: export MALLOC_PERTURB_ = 165
torture: setup ## the long tests: kills, power loss, full disks, flipped bits, every type (about an hour)
	$(BIN)/python -m tests.torture
	DALI_RUN_LONG_TESTS=1 $(BIN)/python -m pytest -q -n auto $$(grep -rlE 'kit\.(long|dali_cases)' tests --include='test_*.py')

.PHONY: reached
reached: setup ## run all tests, and record which of them reach which function, for test-changed
	DALI_RUN_RECORD_REACHED=$(CURDIR)/build/reached $(BIN)/python -m pytest -q -n auto

.PHONY: test-changed
test-changed: setup ## the tests of what differs from main (BASE=): of its rooms, of modules that import it, and those that reach it
	$(BIN)/python -m pytest -q -n auto $$($(BIN)/python -m tests.changed $(or $(BASE),main))

.PHONY: fuzz
fuzz: setup ## fuzz every parser for SECONDS each (600), guided by coverage
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600)
	$(BIN)/python -m tests.fuzz --seconds 60 --compiled
	$(BIN)/python -m tests.fuzz.jobs --seconds $(or $(SECONDS),600)
	$(BIN)/python -m tests.fuzz.containers --seconds $(or $(SECONDS),600)
	$(BIN)/python -m tests.fuzz.graphs --seconds $(or $(SECONDS),600)

.PHONY: test-gpu
test-gpu: setup ## the tests, where a missing or broken GPU fails them
	DALI_RUN_DEMAND_GPU=1 $(BIN)/python -m pytest -q

.PHONY: test-emulated
test-emulated: setup ## the tests marked gpu on a stand-in for CuPy, which runs kernels on the CPU: slow, but without a GPU
	DALI_RUN_EMULATE_GPU=1 $(BIN)/python -m pytest -q -m gpu tests/ops tests/pipelines/python tests/pipelines/compile

.PHONY: sanitize
sanitize: setup ## compute-sanitizer over the CUDA decoders: FOLDER= of good JPEGs, BAD= of damaged ones
	$(BIN)/python benchmarks/data/sanitize.py '$(FOLDER)' $(if $(BAD),--bad '$(BAD)') $(if $(TOOL),--tool $(TOOL))

.PHONY: gate
gate: setup ## rates that a user would recognise, compared with what is kept: ARGS='--rows val,mix', '--against ../old'
	$(BIN)/python benchmarks/gate.py $(or $(ARGS),--compare)

.PHONY: parity
parity: setup ## compare with an installed DALI, write docs/parity.md (DALI_PYTHON=a Python that has DALI 2.4)
	$(BIN)/python -m tests.parity --python '$(DALI_PYTHON)'
	$(BIN)/python -m tests.parity_registry --python '$(DALI_PYTHON)'
	$(BIN)/python -m tests.parity_serialized --python '$(DALI_PYTHON)'

.PHONY: parity-presets
parity-presets: setup ## compare `parity:` presets with the libraries (TORCH_PYTHON=, DALI_PYTHON=, ALBUMENTATIONS_PYTHON=)
	$(BIN)/python -m tests.parity_presets --torch '$(TORCH_PYTHON)' --dali '$(DALI_PYTHON)' \
	  --albumentations '$(ALBUMENTATIONS_PYTHON)'

.PHONY: test-frameworks
test-frameworks: ## tests with the real TensorFlow, PaddlePaddle, PyTorch and Triton, each in an environment of its own
	for name in tensorflow-cpu paddlepaddle torch nvidia-pytriton; do \
	  $(PYTHON) -m venv build/with-$$name && build/with-$$name/bin/python -m pip install --quiet --editable . \
	    $$name pytest pytest-timeout hypothesis && \
	  build/with-$$name/bin/python -m pytest -q tests/plugin tests/pipelines/serve || exit 1; \
	done

# Lines of Python in the five folders: what is added makes something else needless. The aim was 110000. Curating (filters,
# splits, mixtures, scores, duplicates, joins) and seven formats took 7000 lines, docstrings that can be read alone 3800,
# arrays that are read into GPU memory (kvikio, their lease, what plan and doctor say) 470.
MAX_LINES := 125000

.PHONY: lint
lint: setup ## ruff, mypy --strict, import directions, measures that only fall (tests/ratchets.py)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/pipelines/python/typed_programs.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.ratchets
	@lines=$$(find cli pipelines ops readers writers -name '*.py' | xargs cat | wc -l); test $$lines -le $(MAX_LINES) || \
	  { echo "$$lines lines of Python in the five folders, over the budget of $(MAX_LINES)" >&2; exit 1; }

.PHONY: docs
docs: $(VENV)/.runtime ## write the generated pages of docs/
	$(BIN)/python docs/generate.py

.PHONY: editors
editors: setup ## the tests of completion in editors, with the YAML language server (needs npm)
	npm install --silent --no-save --prefix build/editors yaml-language-server
	$(BIN)/python -m pytest -q tests/pipelines/spec/test_editors.py

.PHONY: pages
pages: setup ## the tests of HTML pages and of the site in a real browser (installs a Chromium for Playwright)
	$(BIN)/python -m pip install --quiet --editable '.[browser,docs]'
	$(BIN)/python -m playwright install chromium
	$(BIN)/python -m pytest -q tests/pipelines/show/test_pages_in_a_browser.py tests/test_site.py

.PHONY: site
site: docs ## build the documentation as a site, strictly: build/site/index.html
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going --fresh-env -q -c docs . build/site
	@echo build/site/index.html

.PHONY: report-svg
report-svg: $(VENV)/.runtime ## draw a run's report (REPORT=path/report.json) as docs/report.svg
	$(BIN)/python docs/report_svg.py $(REPORT) docs/report.svg

# Levels of x86-64 and CUDA majors that the wheel brings code for; `make wheel LEVELS= CUDA=` brings none.
LEVELS ?= x86-64-v3,x86-64-v2
CUDA ?= 13

.PHONY: wheel
wheel: $(VENV)/.runtime ## build the wheel with compiled code (no GPU needed), and try its command in an environment of its own
	rm -rf build/wheel build/wheel-venv
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel/plain .
	$(if $(CUDA),$(BIN)/python -m pip install --quiet --upgrade --no-deps --target build/nvrtc $(foreach v,$(CUDA),$(NVRTC_$(v))))
	$(BIN)/python -m docs.compiled_wheel build/wheel/plain/*.whl build/wheel --levels '$(LEVELS)' \
		--nvrtc $(if $(CUDA),$$(find build/nvrtc -name 'libnvrtc.so.1[0-9]'))
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/python -m pip install --quiet build/wheel/*.whl
	cd build && wheel-venv/bin/dali-run --help > /dev/null && wheel-venv/bin/dali-run doctor

# `make wheel` adds compiled code to a wheel; this builds the plain one, in a minute, for the checks.
.PHONY: release
release: $(VENV)/.runtime ## build wheel and sdist, check them, cut the notes out of CHANGELOG.md; publishes nothing
	rm -rf build/release
	$(BIN)/python -m pip install --quiet 'setuptools>=80'
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("build/release")' > /dev/null
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/release build/release/*.tar.gz
	$(BIN)/python docs/release.py build/release

NVRTC_12 := nvidia-cuda-nvrtc-cu12
NVRTC_13 := nvidia-cuda-nvrtc

.PHONY: start-up
start-up: $(VENV)/.runtime ## time the first and the second job of build/wheel/*.whl and of a checkout (about five minutes)
	$(BIN)/python benchmarks/jobs/start_up.py --wheel build/wheel/*.whl

.PHONY: clean
clean: ## remove what was built (not .venv, not data)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
