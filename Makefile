# The targets a person needs; `make help` lists them. Everything lives in .venv beside this file.
.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
# Whatever of these changes makes the next run install again (and rebuild the native core).
SETUP_INPUTS := pyproject.toml setup.py tools/setup_env.sh $(wildcard src/*/*.c src/*/*.h mansard/include/*.h)
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
BENCH_PEERS ?= iree executorch-xnnpack litert llama.cpp
BENCH_MACHINE ?= $(shell uname -n)
BENCH_RESULT ?= benchmarks/results/$(BENCH_MACHINE)/cpu

.PHONY: help setup demo test packages test-slow lint format style typecheck imports layout pytest stress stress-signals soak serve-soak ray-example fuzz op-conformance onnx-conformance tflite-conformance tflite-models lm-conformance conformance sanitize fuzz-artifacts bench bench-peers vulkan-packages qemu-packages lavapipe-backports clean distclean stablehlo-conformance model-conformance model-speed plugins-test transformers-conformance

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
		printf '%-28s %s\n' "$$target" "$$text"; done

$(STAMP): $(SETUP_INPUTS)
	@PYTHON="$(PYTHON)" sh tools/setup_env.sh $(VENV)
	@touch $@

setup: $(STAMP) ## create .venv and install Mansard with everything to develop it

demo: $(STAMP) ## compile a sentence encoder for the devices present and run it
	@$(BIN)/mansard demo $(DEMO_ARGS)

# Two jobs at a time: installing waits for the network, and the last tests leave a core to the type checker.
test: ## every check: format, lint, types, import rules, tests
	$(MAKE) --jobs=2 setup packages
	$(MAKE) --jobs=2 --keep-going pytest lint

packages: ## what tests need of the system, where that can be installed
	$(MAKE) --jobs=1 vulkan-packages qemu-packages

lint: format style typecheck imports layout ## format, lint, types and import rules, without the tests

format: $(STAMP)
	$(BIN)/ruff format --check .

style: $(STAMP)
	$(BIN)/ruff check .

typecheck: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

layout: $(STAMP)
	$(BIN)/python tools/check_layout.py

pytest: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder --durations=15 $(PYTEST_ARGS)

test-slow: $(STAMP) vulkan-packages qemu-packages ## variants of tests: more types, shapes and devices, larger models
	$(BIN)/python -m pytest -m slow -n 2 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

stress: $(STAMP) vulkan-packages ## ten thousand requests over three devices that fail and hang at random
	MANSARD_STRESS_REQUESTS=10000 $(BIN)/python -m pytest tests/devices/test_request_stress.py $(PYTEST_ARGS)

SECONDS ?= 3600
DEVICES ?= cpu,vulkan
fuzz: $(STAMP) vulkan-packages ## generated graphs and programs against the interpreter and PyTorch, for an hour (SECONDS, SEED, DEVICES)
	$(BIN)/python tools/fuzz.py --seconds $(SECONDS) --devices $(DEVICES) $(if $(SEED),--seed $(SEED))

op-conformance: $(STAMP) vulkan-packages ## the database of PyTorch's operators on every device; writes benchmarks/results/MACHINE and docs/coverage.md
	@mkdir -p benchmarks/results/$(BENCH_MACHINE)
	$(BIN)/python -m benchmarks.opdb --devices $(DEVICES) --json benchmarks/results/$(BENCH_MACHINE)/opdb.json \
		--markdown benchmarks/results/$(BENCH_MACHINE)/opdb.md --coverage docs/coverage.md $(OP_ARGS)

onnx-conformance: $(STAMP) vulkan-packages ## ONNX's node tests on every device; writes build/onnx-conformance.json and docs/coverage.md
	$(BIN)/python -m benchmarks.onnx_nodes --devices $(DEVICES) --markdown docs/coverage.md $(ONNX_ARGS)

tflite-conformance: $(STAMP) vulkan-packages ## TFLite's operators on every device against LiteRT; writes build/tflite-conformance.json and docs/coverage.md
	$(BIN)/python -m benchmarks.tflite_ops --devices $(DEVICES) --markdown docs/coverage.md $(TFLITE_ARGS)

TFLITE_MODELS ?= build/tflite-models
tflite-models: $(STAMP) vulkan-packages ## networks of TensorFlow's converter, in an environment of its own, against LiteRT; writes docs/coverage.md
	@test -x build/venv-tensorflow/bin/python || $(or $(PYTHON),python3) -m venv build/venv-tensorflow
	build/venv-tensorflow/bin/python -m pip install -q tensorflow-cpu==2.21.0
	build/venv-tensorflow/bin/python benchmarks/tflite_models/make_models.py $(TFLITE_MODELS)
	$(BIN)/python -m benchmarks.tflite_models $(TFLITE_MODELS) --devices $(DEVICES) --markdown docs/coverage.md $(TFLITE_ARGS)

MODEL_ZOO ?= build/model-zoo
model-conformance: $(STAMP) vulkan-packages ## architectures from every framework, on each device and split; writes benchmarks/results/MACHINE and docs/coverage.md
	@test -x build/venv-tensorflow/bin/python || $(or $(PYTHON),python3) -m venv build/venv-tensorflow
	build/venv-tensorflow/bin/python -m pip install -q tensorflow-cpu==2.21.0
	build/venv-tensorflow/bin/python -m benchmarks.model_zoo.make_tflite $(MODEL_ZOO)
	$(BIN)/python -m benchmarks.model_zoo --tflite $(MODEL_ZOO) --onnx $(MODEL_ZOO) --markdown docs/coverage.md \
		--keep --json benchmarks/results/$(BENCH_MACHINE)/models.json $(MODEL_ARGS)

model-speed: $(STAMP) ## the architectures through each framework side by side on the CPU, after model-conformance; writes build/frameworks.json
	$(BIN)/python -m benchmarks.model_zoo.speed --tflite $(MODEL_ZOO) --onnx $(MODEL_ZOO) $(MODEL_ARGS)

transformers-conformance: $(STAMP) ## small models of transformers' architectures against PyTorch; writes build/transformers-conformance.json and docs/coverage.md
	$(BIN)/python -m benchmarks.transformers_models --devices $(DEVICES) --markdown docs/coverage.md $(TRANSFORMERS_ARGS)

stablehlo-conformance: $(STAMP) vulkan-packages ## functions of jax.numpy and jax.lax on every device against JAX; writes build/stablehlo-conformance.json and docs/coverage.md
	$(BIN)/python -m benchmarks.jax_functions --devices $(DEVICES) --markdown docs/coverage.md $(JAX_ARGS)

tensorflow-test: ## models of TensorFlow and Keras against TensorFlow, in an environment of its own
	@test -x build/venv-tensorflow/bin/python || $(or $(PYTHON),python3) -m venv build/venv-tensorflow
	build/venv-tensorflow/bin/python -m pip install -q tensorflow-cpu==2.21.0 pytest==9.2.0 -e '.[compile]'
	build/venv-tensorflow/bin/python -m pytest -W default tests/frontends/tensorflow $(PYTEST_ARGS)

CALLS ?= 1000000
soak: $(STAMP) vulkan-packages ## a million calls with faults, cancellations, deadlines and signals (CALLS)
	MANSARD_SOAK_CALLS=$(CALLS) $(BIN)/python -m pytest -s tests/devices/test_soak.py $(PYTEST_ARGS)

REQUESTS ?= 10000
serve-soak: $(STAMP) ## 32 clients of the server that stream, leave, ask wrongly and set deadlines (REQUESTS)
	MANSARD_SERVE_REQUESTS=$(REQUESTS) $(BIN)/python -m pytest -s tests/serving/test_soak.py $(PYTEST_ARGS)

ray-example: $(STAMP) ## the example with Ray Serve on a local cluster, in an environment of its own (build/ray, 500 MB)
	@test -x build/ray/bin/python || $(BIN)/python -m venv build/ray
	build/ray/bin/python -m pip install --quiet -r examples/ray_serve/requirements.txt
	PYTHONPATH=.:tests $(BIN)/python examples/ray_serve/tests/tiny_model.py build/ray/tiny
	RAY_EXAMPLE_MODEL=$(CURDIR)/build/ray/tiny build/ray/bin/python -m pytest -o filterwarnings=ignore examples/ray_serve/tests $(PYTEST_ARGS)

PLUGINS ?= $(patsubst plugins/mansard-%/environment.txt,%,$(wildcard plugins/*/environment.txt))
plugins-test: $(STAMP) vulkan-packages ## plug-ins with their vendors' packages, in environments of their own (build/plugins, PLUGINS=...)
	@sh tools/plugin_env.sh $(PLUGINS)
	@failed=; for name in $(PLUGINS); do \
		echo "$$name"; build/plugins/$$name/bin/python -m pytest -q plugins/mansard-$$name/tests $(PYTEST_ARGS) || failed="$$failed $$name"; \
	done; [ -z "$$failed" ] || { echo "plugins-test: failed:$$failed" >&2; exit 1; }

stress-signals: $(STAMP) vulkan-packages ## signals every 0.4 ms on the CPU and on Vulkan, for an hour each (SECONDS)
	MANSARD_SIGNAL_SECONDS=$(SECONDS) $(BIN)/python -m pytest -s tests/devices/test_signal_stress.py $(PYTEST_ARGS)

lm-conformance: $(STAMP) vulkan-packages ## language models of every family, any prompt length, on each device and split; writes build/lm-conformance.json and docs/coverage.md
	$(BIN)/python -m benchmarks.lm_conformance --markdown docs/coverage.md $(LM_ARGS)

conformance: $(STAMP) vulkan-packages ## the conformance suite on every driver and device, in every variation
	$(BIN)/python tools/conformance.py $(PYTEST_ARGS)

SANITIZERS ?= address undefined thread
sanitize: $(STAMP) vulkan-packages ## the native core under ASan, UBSan and TSan, with the conformance suite and the runtime's tests (SANITIZERS, FULL=1)
	$(BIN)/python tools/sanitize.py $(if $(FULL),--full) $(SANITIZERS) $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

fuzz-artifacts: $(STAMP) vulkan-packages ## a million mutants of plans, signed anew: checked, and run if they pass (FUZZ_ARGS=...)
	$(BIN)/python tools/fuzz_artifacts.py $(FUZZ_ARGS)

bench: $(STAMP) ## measure Mansard beside the peers installed; writes benchmarks/results/MACHINE
	@$(BIN)/python -c 'import onnxruntime, openvino, matplotlib' 2>/dev/null || $(BIN)/pip install --quiet --no-build-isolation -e '.[bench]'
	@mkdir -p $(dir $(BENCH_RESULT))
	$(BIN)/python -m benchmarks.models.cpu --json $(BENCH_RESULT).json --markdown $(BENCH_RESULT).md \
		--plot $(BENCH_RESULT).svg $(BENCH_ARGS)

bench-peers: ## make environments for the peers that need their own (gigabytes; BENCH_PEERS=... for some)
	@PYTHON="$(PYTHON)" sh tools/bench_env.sh $(BENCH_PEERS)

vulkan-packages:
	@sh tools/vulkan_packages.sh

qemu-packages:
	@sh tools/qemu_packages.sh

lavapipe-backports: ## a newer software Vulkan driver from the distribution's backports (Debian, root)
	@sh tools/lavapipe_backports.sh

clean: ## remove what builds and checks leave behind
	rm -rf build dist *.egg-info mansard/*.so .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find mansard tests tools examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(STAMP)

distclean: clean ## clean, and remove .venv
	rm -rf $(VENV)
