# Shortcuts; CMake does the work. Every target first installs what is missing (tools/setup.sh).
#   make demo [DOC=path]   a real model reads a document, once with stock attention and once with LOCKS
#   make test              builds and runs all tests
#   make test-emulated     runs the tests of the CUDA backend without a GPU: its kernels as C++ for the CPU
#   make test-vllm         runs the tests inside vLLM's real engine, in an environment of its own (.venv-vllm, 4 GB and more);
#                          make test-vllm VLLM=0.25.0 for another release that tests/vllm/releases has
#   make bench             measures the stages and whole steps; writes out/bench.json
#   make eval              compares LOCKS and its rivals on a real model; writes out/eval/report.html; or, say,
#                          make eval CONFIG=my.toml FLAGS="--threads 4"
#   make format            formats the C++ sources
#   make clean             removes what was built and measured; .venv and .venv-vllm* stay

BUILD := build/release

.PHONY: demo test test-emulated test-vllm bench eval format clean setup build library
.DEFAULT_GOAL := test

setup:
	@tools/setup.sh

$(BUILD)/build.ninja: | setup
	@cmake --preset release

build: setup $(BUILD)/build.ninja
	@cmake --build $(BUILD)

# What a user runs, without the tests.
library: setup $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target user

demo: library
	@.venv/bin/python python/demo.py $(if $(DOC),"$(DOC)")

test: build
	@.venv/bin/python tests/run $(BUILD) --python --exclude '^emulated\.'

test-emulated: setup $(BUILD)/build.ninja
	@if grep -q cuda_emulated_test $(BUILD)/build.ninja; then \
	  cmake --build $(BUILD) --target cuda_emulated_test && \
	  .venv/bin/python tests/run $(BUILD) --include '^emulated\.' --label emulated; \
	else \
	  echo "Skipped: there is no nvcc, and so no CUDA backend"; \
	  if [ -n "$$LOCKS_TEST_TOTALS" ]; then echo "0 0 1" >>"$$LOCKS_TEST_TOTALS"; fi; \
	  echo "0 passed, 0 failed, 1 skipped"; \
	fi

test-vllm: setup $(BUILD)/build.ninja
	@cmake --build $(BUILD) --target locks_python
	@.venv/bin/python tests/vllm/run $(BUILD) $(if $(VLLM),--release $(VLLM))

bench: library
	@mkdir -p out
	@$(BUILD)/cli/locks bench --json out/bench.json
	@.venv/bin/python bench/llamacpp.py --json out/bench.json

eval: library
	@mkdir -p out
	@.venv/bin/python evals/run.py --config "$(or $(CONFIG),evals/configs/small.toml)" $(FLAGS)

format: setup
	@git ls-files -- '*.h' '*.cc' '*.c' '*.cu' '*.cuh' | xargs -r clang-format-19 -i

clean:
	rm -rf build out
