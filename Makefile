# vmgrace: make help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# libvirt's client library is loaded at run time: neither its headers nor
# pkg-config are needed to build.
TAGS    := libvirt_dlopen
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)

# Real guests need root: libvirt's directories, mount and PID namespaces.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
TOOL := go tool -modfile=$(CURDIR)/tools/go.mod

# Said to the tests as well: under sudo the home may be another.
export VMGRACE_CLUSTER ?= $(HOME)/.cache/vmgrace-cluster

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: bin/node-agent bin/launcher-shim ## build both binaries into bin/

# go build itself knows what is up to date.
.PHONY: bin/node-agent
bin/node-agent:
	CGO_ENABLED=1 go build -trimpath -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $@ ./cmd/node-agent

# Static, with nothing of libc: it is the entrypoint of any image.
.PHONY: bin/launcher-shim
bin/launcher-shim:
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(LDFLAGS)" -o $@ ./cmd/launcher-shim

.PHONY: deps
deps: ## install the packages that the tests and the demo need
	hack/deps.sh

.PHONY: k8s
k8s: deps ## build the Kubernetes of the tests: 5 minutes, once
	@hack/k8s/build.sh >/dev/null

.PHONY: images
images: ## build both images, without Docker: 2 minutes, then 15 s
	@VERSION=$(if $(filter-out file,$(origin VERSION)),$(VERSION)) hack/images.sh

# -p 1: the packages with real guests share two cores and promise times.
.PHONY: test
test: deps build k8s images ## all tests, real guests included
	go vet -tags $(TAGS) ./...
	VMGRACE_BIN_DIR=$(CURDIR)/bin go test -race -tags $(TAGS) -count=1 -p 1 -timeout 20m $(if $(SUDO),-exec "$(SUDO)") $$(go list ./... | grep -v -e /test/faults -e /test/e2e)
	hack/fuzz.sh 20000x

# KUBECONFIG names another cluster to run it on; test/cluster says what it needs.
.PHONY: e2e
e2e: deps k8s images ## all of it in a cluster of two nodes: 8 minutes
	go test -v -tags $(TAGS) -count=1 -timeout 30m $(if $(SUDO),-exec "$(SUDO)") ./test/e2e

# What takes longer than a minute. VMGRACE_SOAK=30m makes the soak a long one,
# VMGRACE_KILLS=1000 the storm of kills. -parallel 4: most of it waits.
.PHONY: test-faults
test-faults: deps build k8s ## crashes, faults, a soak: 12 minutes (VMGRACE_KILLS=1000 VMGRACE_SOAK=30m: 50)
	VMGRACE_BIN_DIR=$(CURDIR)/bin go test -tags $(TAGS) -count=1 -p 1 -parallel 4 -timeout 60m $(if $(SUDO),-exec "$(SUDO)") ./test/faults/...

.PHONY: lint
lint: ## golangci-lint of every module, and the alerts by Prometheus's own library
	$(TOOL) golangci-lint config verify
	for module in . hack/k8s hack/plot hack/rules; do (cd $$module && GOWORK=off $(TOOL) golangci-lint run ./...); done
	cd hack/rules && GOWORK=off go test ./...

# VULNDB=file:///some/dir is for a machine without the internet: a copy of the
# database. Without any database this fails: not checked is not clean.
VULNDB ?= https://vuln.go.dev

.PHONY: vuln
vuln: ## govulncheck
	$(TOOL) govulncheck -db $(VULNDB) -tags $(TAGS) ./...

.PHONY: demo
demo: deps build ## three real guests, live, in less than a minute
	go build -o bin/demo ./test/demo
	VMGRACE_BIN_DIR=$(CURDIR)/bin $(SUDO) bin/demo

# On a quiet machine: the figures are only as good as it is idle. Single steps,
# with their allocations: go test -tags libvirt_dlopen -run '^$' -bench . ./internal/... ./pkg/...
.PHONY: bench
bench: deps build k8s ## measure beside a floor and the peers into docs/performance.md: 50 minutes
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/floor ./test/bench/floor
	CGO_ENABLED=0 go build -trimpath -o bin/simulate ./test/bench/simulate
	CGO_ENABLED=0 go build -trimpath -o bin/bench ./test/bench
	cd hack/plot && GOWORK=off CGO_ENABLED=0 go build -trimpath -o $(CURDIR)/bin/plot .
	$(SUDO) bin/bench --out docs/performance.md --growth docs/performance.json
	bin/plot docs/performance.json docs/performance.svg

.PHONY: clean
clean: ## remove what was built
	rm -rf bin
