# SPDX-License-Identifier: MIT
# For newcomers: every target says in one word what CMakePresets.json and scripts/ do. Missing
# Debian packages are installed when run as root; else the command that installs them is printed.
#
#   make                               build the library and the program (build/release)
#   make run [MODEL=f.gguf] [PROMPT=]  complete a prompt; without MODEL a small one is fetched
#   make test                          everything, about half an hour from nothing on two CPUs
#   make quick                         the quick tests, under a minute
#   make bench B=NAME [CSV=FILE]       one bench; lines are appended to FILE
#              B=model|rows [PEER=DIR] also llama.cpp; bench/peer_llamacpp.sh builds it
#              B=quality               what plans cost in quality, on two models: half an hour
#   make install [PREFIX=] [DESTDIR=]
#   make format | lint | symbols | clean
PREFIX  ?= /usr/local
DESTDIR ?=
MODEL   ?=
PROMPT  ?= Write one sentence about memory.
B       ?=
CSV     ?=
PEER    ?=
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
FETCH   ?= 1
export PROMPT

.PHONY: all run test quick bench install symbols format lint clean help

all:
	@sh scripts/deps.sh build
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build build/release -j $(JOBS) --target product

run:
	@sh scripts/deps.sh run
	@$(MAKE) --no-print-directory all
	@model="$(MODEL)"; \
	if [ -z "$$model" ]; then model=$$(sh scripts/fetch-model.sh smollm2) || exit 1; fi; \
	exec build/release/kvstate run -m "$$model" -p "$$PROMPT"

test:
	@sh scripts/deps.sh test
	@JOBS=$(JOBS) FETCH=$(FETCH) sh scripts/test.sh

quick:
	@sh scripts/deps.sh test
	@cmake --preset dev --log-level=WARNING >/dev/null
	@cmake --build build/dev -j $(JOBS)
	@ctest --test-dir build/dev -L quick -j $(JOBS) --output-on-failure

bench:
	@test -n "$(B)" || { echo "bench: name one: make bench B=NAME [CSV=FILE]; there are:"; \
		ls bench | sed -n 's/^bench_\(.*\)\.\(c\|py\)$$/  \1/p'; exit 2; }
	@$(MAKE) --no-print-directory all
	@if [ -e bench/bench_$(B).py ]; then python3 bench/bench_$(B).py $(if $(CSV),--csv "$(CSV)"); else \
		cmake --build build/release -j $(JOBS) --target bench_$(B) && \
		build/release/bench_$(B) $(if $(CSV),--csv "$(CSV)") $(if $(PEER),--peer "$(PEER)"); fi

install: all
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)"

# tests/api/symbols*.txt from what the libraries export
symbols:
	@cmake --preset dev --log-level=WARNING >/dev/null
	@cmake --build build/dev -j $(JOBS) --target symbols

format:
	@sh scripts/deps.sh lint
	@git ls-files -co --exclude-standard -- 'include/*.h' 'src/*.[ch]' 'app/*.[ch]' \
		'tests/*.[ch]' 'bench/*.[ch]' 'examples/*.c' | xargs -r clang-format -i

lint:
	@sh scripts/deps.sh lint
	@JOBS=$(JOBS) sh scripts/lint.sh

clean:
	rm -rf build

help:
	@sed -n 's/^#   //p' Makefile
