# Every target runs offline but for Go modules. `make help` lists them.

GO    ?= go
TOOL  := $(GO) tool -modfile=internal/tools/go.mod
BIN   ?= bin
# Simulation: seeds to run, or one to replay.
SEEDS ?= 2000
SEED  ?=
# Benchmarks: packages, pattern and repetitions; fuzzing: time for each target.
BENCH      ?= .
BENCHPKG   ?= ./...
BENCHCOUNT ?= 1
BENCHARGS   = -run '^$$' -bench '$(BENCH)' -benchmem -count=$(BENCHCOUNT) -timeout 4h
FUZZTIME   ?= 30s
DEMOFLAGS  ?=

GENERATED  := proto docs/field-faults.md docs/metrics.md

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build every program into bin/
	$(GO) build ./...
	@if [ -d cmd ]; then mkdir -p $(BIN) && CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ ./cmd/...; fi

.PHONY: test
test: ## run all tests
	$(GO) test ./...

.PHONY: race
race: ## run all tests under the race detector, in random order
	$(GO) test -race -shuffle=on ./...

.PHONY: nested
nested: ## vet and test the modules nested in this one: the checks of deploy/
	@set -e; for mod in $$(git ls-files '*/go.mod' | grep -v '^internal/tools/'); do \
		echo "== $${mod%/go.mod}"; (cd "$${mod%/go.mod}" && $(GO) vet ./... && $(GO) test -count=1 ./...); \
	done

.PHONY: check
check: lint generated race nested ## what must hold before a commit: lint, generated files fresh, tests under the race detector

.PHONY: lint
lint: ## run golangci-lint and buf lint
	$(TOOL) golangci-lint run ./...
	$(TOOL) buf lint

.PHONY: fmt
fmt: ## format Go and proto files
	$(TOOL) golangci-lint fmt ./...
	$(TOOL) buf format -w

.PHONY: proto
proto: ## regenerate the Go code of the wire from proto/
	$(TOOL) buf lint
	$(TOOL) buf generate

.PHONY: docs
docs: ## regenerate the generated pages of docs/
	$(GO) run ./internal/fieldfaults
	$(GO) run ./internal/metricdoc

.PHONY: generated
generated: proto docs ## regenerate everything and fail if a committed file was stale
	git diff --exit-code -- $(GENERATED)
	@new=$$(git ls-files --others --exclude-standard -- $(GENERATED)); test -z "$$new" || { echo "not committed: $$new"; exit 1; }

.PHONY: sim
sim: ## run the simulation: SEEDS=n many seeds, or SEED=n to replay one with its trace
	SIM_SEEDS=$(SEEDS) SIM_SEED=$(SEED) $(GO) test ./internal/sim -run '^TestSeeds$$' -count=1 -timeout 4h $(if $(SEED),-v)

.PHONY: bench
bench: ## run the benchmarks, also against other systems: BENCHPKG=./allocate BENCH=Sticky BENCHCOUNT=6
ifeq ($(BENCHPKG),./...)
	@command -v redis-server >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; } >/dev/null 2>&1 || \
		echo "redis-server is missing and cannot be installed: it is left out"
endif
	$(GO) test $(BENCHPKG) $(BENCHARGS)
ifeq ($(BENCHPKG),./...)
	@set -e; for mod in $$(git ls-files '*/go.mod' | grep -v '^internal/tools/'); do \
		echo "== $${mod%/go.mod}"; (cd "$${mod%/go.mod}" && $(GO) test ./... $(BENCHARGS)); \
	done
endif

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME each
	@set -e; $(GO) list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r pkg dir; do \
		for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$$dir"/*_test.go 2>/dev/null | sed 's/^func //'); do \
			echo "== $$pkg $$target"; \
			$(GO) test "$$pkg" -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) </dev/null; \
		done; \
	done

.PHONY: e2e
e2e: ## run real processes, sockets and disks end to end, with kills
	$(GO) test -tags e2e -count=1 -v -timeout 30m ./test/e2e

.PHONY: demo
demo: ## watch a group converge: joins, leaves, a crash, more queues, restarts
	$(GO) run ./cmd/tacit demo $(DEMOFLAGS)

.PHONY: cross
cross: ## build for linux, darwin and windows on amd64 and arm64, and vet each system's files
	@set -e; \
	for os in linux darwin windows; do \
		for arch in amd64 arm64; do \
			echo "== build $$os/$$arch"; \
			CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build ./...; \
		done; \
		echo "== vet $$os"; \
		CGO_ENABLED=0 GOOS=$$os GOARCH=amd64 $(GO) vet ./...; \
	done

.PHONY: clean
clean: ## remove what the targets above made
	rm -rf $(BIN)
