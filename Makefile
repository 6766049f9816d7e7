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

# Tests too: what they need is then compiled once for them and for the programs.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)

# Said to the tests as well: under sudo the home may be another.
export VMGRACE_CLUSTER ?= $(HOME)/.cache/vmgrace-cluster

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: bin/node-agent bin/launcher-shim bin/cluster-controller bin/kubectl-vmgrace bin/kubectl-vmdrain ## build the binaries into bin/

# go build itself knows what is up to date.
.PHONY: bin/node-agent
bin/node-agent:
	CGO_ENABLED=1 go build -trimpath -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $@ ./cmd/node-agent

# Static, with nothing of libc: it is the entrypoint of any image.
.PHONY: bin/launcher-shim
bin/launcher-shim:
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(LDFLAGS)" -o $@ ./cmd/launcher-shim

.PHONY: bin/cluster-controller
bin/cluster-controller:
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(LDFLAGS)" -o $@ ./cmd/cluster-controller

.PHONY: bin/kubectl-vmgrace
bin/kubectl-vmgrace:
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(LDFLAGS)" -o $@ ./cmd/kubectl-vmgrace
	install -m 755 cmd/kubectl-vmgrace/kubectl_complete-vmgrace bin/

# The former name of kubectl vmgrace drain.
.PHONY: bin/kubectl-vmdrain
bin/kubectl-vmdrain:
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $(LDFLAGS)" -o $@ ./cmd/kubectl-vmdrain
	install -m 755 cmd/kubectl-vmdrain/kubectl_complete-vmdrain bin/

# Those of the node with the race detector, for tests: a race that is found fails the test.
.PHONY: race
race: bin/race/node-agent bin/race/launcher-shim

.PHONY: bin/race/node-agent bin/race/launcher-shim
bin/race/node-agent bin/race/launcher-shim:
	CGO_ENABLED=1 go build -race -trimpath -tags $(TAGS) -ldflags "$(LDFLAGS)" -o $@ ./cmd/$(@F)

# With the points at which tests kill it.
.PHONY: bin/race/failpoint/node-agent
bin/race/failpoint/node-agent:
	CGO_ENABLED=1 go build -race -trimpath -tags $(TAGS),failpoint -o $@ ./cmd/$(@F)

.PHONY: deps
deps: ## install the packages that the tests and the demo need
	hack/deps.sh

.PHONY: k8s
k8s: deps ## build the Kubernetes of the tests, 1.37 (K8S=1.34: that one): 7 minutes, once
	@hack/k8s/build.sh >/dev/null

.PHONY: csi
csi: ## build the external-attacher and the CSI driver of the tests: half a minute
	@hack/csi/build.sh

.PHONY: virtqemud
virtqemud: deps ## build virtqemud, which no package has, for the tests: 2 minutes, once
	@hack/virtqemud.sh >/dev/null

.PHONY: images
images: ## build the images, without Docker: 4 minutes, then half a minute
	@VERSION=$(if $(filter-out file,$(origin VERSION)),$(VERSION)) hack/images.sh

.PHONY: helm
helm: ## build the Helm of the tests: 3 minutes, once
	cd hack/helm && GOWORK=off CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(VMGRACE_CLUSTER)/helm/ helm.sh/helm/v4/cmd/helm

.PHONY: previous
previous: ## build the images of the last release, for the test of an upgrade: half a minute, once
	@hack/previous.sh >/dev/null

# A release keeps its directory for ever: no later code writes it anew.
.PHONY: golden
golden: dir = test/golden/$(if $(filter file,$(origin VERSION)),next,$(VERSION))
golden: ## what this version writes into test/golden/next, or for a release: make golden VERSION=v1.2.3
	@[ $(notdir $(dir)) = next ] || [ ! -e $(dir) ] || { echo "$(dir) is there: a release's directory is never changed" >&2; exit 1; }
	rm -rf $(dir)
	go test -count=1 ./test/golden -args -write $(CURDIR)/$(dir)

# Of a tag, not of the tree: make release VERSION=v1.2.3. IMAGES= leaves the images out.
IMAGES := amd64 arm64
.PHONY: release
release: ## a release into dist/: make release VERSION=v1.2.3, 6 minutes, then 2
	rm -rf dist
	hack/release/release.sh $(if $(filter file,$(origin VERSION)),$(error VERSION=v1.2.3),$(VERSION)) dist $(IMAGES)

.PHONY: release-check
release-check: ## a release without images, checked, in a temporary directory: half a minute, 3 the first time
	dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; hack/release/release.sh v0.0.0 "$$dir/dist"

.PHONY: release-twice
release-twice: ## two releases with images, which have to be the same bytes
	dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; for n in 1 2; do hack/release/release.sh v0.0.0 "$$dir/$$n" amd64 arm64; done; diff -r --exclude='*.bundle' "$$dir/1" "$$dir/2"

# Tests that need root, libvirt, an API server or a package of make deps have
# the build constraint !unit. As root they run without root's rights here.
UNIT := ./api/... ./cmd/... ./internal/... ./pkg/... ./test/bench/... ./test/demo/drain ./test/fake ./test/golden ./test/rules ./test/shim

.PHONY: unit
unit: ## what needs no root, no libvirt, no cluster: 1 minute
	go test -tags $(TAGS),unit $(if $(SUDO),,-exec "setpriv --bounding-set=-all --inh-caps=-all") $(UNIT)

# The test that is left out starts its own program again, which needs binfmt_misc in the kernel.
.PHONY: unit-arm64
unit-arm64: ## what is pure, as a program of arm64 under qemu-aarch64-static: 2 minutes
	@command -v qemu-aarch64-static >/dev/null || { $(SUDO) apt-get -q update && $(SUDO) apt-get -q -y -o DPkg::Lock::Timeout=60 install --no-install-recommends qemu-user-static; }
	GOARCH=arm64 CGO_ENABLED=0 go test -timeout 20m -exec qemu-aarch64-static -tags unit -skip '^TestAgentKilledInTheMiddleOfAWriteLeavesWholeRecords$$' \
		./pkg/grace ./pkg/gracecache ./pkg/signals ./internal/rules/evacuation ./internal/rules/migration ./internal/rules/taints ./internal/rules/drain

# The packages whose tests ask a real API server, found by what they import: one after the other,
# and these after test/handover beside them. More at once make each other late on two processors.
BESIDE := ./test/drains ./test/migrations
KUBERNETES = $$(go list -tags $(TAGS) -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... | awk '$$1 !~ "/test/(e2e|besidekubevirt|faults|handover)" && /test\/cluster/ {print $$1}')
# Real guests, two packages at a time, the longest first: most of what they do is to wait.
GUESTS := ./test/acceptance ./pkg/hypervisor/libvirt ./test/node ./test/demo
ROOTTEST := VMGRACE_BIN_DIR=$(CURDIR)/bin/race go test -race -tags $(TAGS) -count=1
GOTEST := $(ROOTTEST) $(if $(SUDO),-exec "$(SUDO)")

# What shares memory with C: the race detector does not see what is used after it is freed.
# The sanitizer takes the place of functions of libtirpc, which libvirt's library brings
# along too late for it. It counts no leaks: it is in the programs that tests start, too.
ASAN = go test -asan -tags $(TAGS) -count=1 -timeout 5m -exec "$(SUDO) env ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$$(gcc -print-file-name=libasan.so):libtirpc.so.3"
CGO = $$(go list -tags $(TAGS),unit -f '{{if .CgoFiles}}{{.ImportPath}}{{end}}' ./internal/... ./pkg/...)

.PHONY: test
test: ## unit tests as root, and real guests under a real libvirtd: 20 minutes
	@status=0; for part in units guests; do $(MAKE) --no-print-directory $$part || { status=1; failed+=" $$part"; }; done; \
	[[ $$status = 0 ]] || echo "FAILED: make$$failed" >&2; exit $$status

.PHONY: units
units: deps race ## packages by themselves, with the race detector, and those with C with the address sanitizer: 10 minutes
	@status=0; hack/tests.sh "$$(go list -tags $(TAGS) $(UNIT) | grep -vxF -e "$(KUBERNETES)" -e "$$(go list -tags $(TAGS) $(GUESTS))")" $(GOTEST) -timeout 10m || status=1; \
	hack/tests.sh "$(CGO)" $(ASAN) || status=1; exit $$status

.PHONY: guests
guests: deps race ## both binaries with real guests: 7 minutes
	@hack/tests.sh "$(GUESTS)" $(GOTEST) -v -p 2 -timeout 15m

# Of each promise that a change easily breaks, one test with real guests; .ci/run nightly has all.
SOMEGUESTS := TestPoliteGuestIsOff|TestDeafGuestIsDestroyed|TestGracePeriodZeroIsDestroyed|TestAPausedGuestIsResumed|TestAGuestAgentIsAskedFirst|TestTheDeadlineHoldsWithLibvirtdDead$$|TestAnAgentThatWasDeadAtTheDeadline|TestAShimKilledWhileTheAgentWasDown|TestTheNextVMOfThatName|TestAVMThatGoesOffByItself|TestAVMInItsPodIsShutDown|TestVMsInTheirPodsKeepTheirDeadlines|TestAKilledShimTakesItsVM|TestAGuestInItsPodIsAskedByItsAgent|TestANodeThatIsPoweredOff|TestSIGTERMToTheAgent
SOMEAPI := TestEveryRightOfTheController|TestTheDocumentedRights|TestEverythingHasTheNames|TestVMIsOfAllKindsAreTaken|TestEachRightIsUsed|TestTwoReplicasThatMark|TestAPodThatTheWebhookHasMissed|TestVMsLeaveATaintedNode|TestAMarkedVMMoves|TestAnAgentForgesNothing|TestALostSourceIsNamed|TestItDrainsThePods|TestStatusFollowsAVM|TestBesideKubeVirtAPreempted
.PHONY: some-guests
some-guests: deps race k8s ## of each promise a test with a real guest, or with a real API server: 6 minutes
	@status=0; { hack/tests.sh "./internal/cluster ./internal/node/kube" $(GOTEST) -p 1 -timeout 10m || status=1; \
	hack/tests.sh "./test/deploy ./test/evictions ./test/migrations ./test/drains ./test/kubernetes" $(GOTEST) -p 1 -timeout 15m -run '^($(SOMEAPI))' || status=1; exit $$status; } & api=$$!; \
	hack/tests.sh "./test/acceptance" $(GOTEST) -timeout 15m -run '^($(SOMEGUESTS))' || status=1; wait $$api || status=1; exit $$status

SOMECLUSTER := TestADeletedVMIOrPodShutsItsGuestDown|TestVMIAndPodDeletedAtOnce|TestADrainMovesVMs|TestADrainStopsNoVM|TestAVMWhoseLauncherIsPreempted|TestARollingUpdate|TestNoAgentWasEver|TestNoEventWasTold
.PHONY: some-e2e
some-e2e: deps race k8s csi images ## of each promise of the cluster a test in one of two nodes, one beside KubeVirt, one cut in a handover: 7 minutes
	@status=0; hack/tests.sh ./test/handover $(MOVES) -timeout 10m -run '^TestAgentsCutOffAtTheHandover' & move=$$!; \
	hack/tests.sh ./test/e2e go test -v -tags $(TAGS) -count=1 -timeout 20m -run '^($(SOMECLUSTER))' $(if $(SUDO),-exec "$(SUDO)") || status=1; wait $$move || status=1; \
	hack/tests.sh ./test/besidekubevirt go test -v -tags $(TAGS) -count=1 -timeout 10m -run '^TestPreemptedAndTaintedVMsMove' $(if $(SUDO),-exec "$(SUDO)") || status=1; exit $$status

# P names the package, T what go test -run takes: CONTRIBUTING.md has one of each kind.
.PHONY: test-one
test-one: deps race ## one test: make test-one P=./pkg/grace T=TestStories
	$(GOTEST) -v -timeout 30m -run '$(T)' $(or $(P),$(error P=./some/package T=TestName))

# Without the race detector in the test itself, which passes on what libvirt and QEMU say: only in
# what it starts. It takes longer than all the others, and begins with them.
MOVES := VMGRACE_BIN_DIR=$(CURDIR)/bin/race go test -tags $(TAGS) -count=1 $(if $(SUDO),-exec "$(SUDO)")

.PHONY: test-kubernetes
test-kubernetes: deps race k8s csi images ## what asks a real API server, manifests and images: half an hour
	status=0; { $(MOVES) -timeout 40m ./test/handover || status=1; $(GOTEST) -p 1 -timeout 40m $(BESIDE) || status=1; exit $$status; } & moves=$$!; \
	$(GOTEST) -p 1 -timeout 40m $$(grep -vxF "$$(go list $(BESIDE))" <<< "$(KUBERNETES)") || status=1; wait $$moves || status=1; exit $$status

.PHONY: test-moves
test-moves: deps race k8s ## live migrations with each fault at each moment: 50 minutes
	VMGRACE_SOAK=1m $(MOVES) -tags $(TAGS),nightly -skip Later -timeout 80m ./test/handover

# KUBECONFIG names another cluster to run it on; test/cluster says what it needs.
.PHONY: e2e
e2e: deps k8s csi images ## all of it in a cluster of two nodes: 20 minutes
	go test -v -tags $(TAGS) -count=1 -timeout 30m $(if $(SUDO),-exec "$(SUDO)") ./test/e2e
	go test -v -tags $(TAGS) -count=1 -timeout 10m $(if $(SUDO),-exec "$(SUDO)") ./test/besidekubevirt

# What asks most of the API server, the scheduler and kubelet.
OLDER := TestADrainMovesVMsThatAskedToBeMoved|TestADrainedNodesGuests|TestANoExecuteTaint|TestAPreemptedLaunchersGuest|TestADeleted|TestARestartOfKubelet|TestNoAgentWasEverRefused
.PHONY: e2e-1.34
e2e-1.34: deps csi images ## the main stories of e2e on Kubernetes 1.34: 3 minutes, and 7 to build that, once
	K8S=1.34 hack/k8s/build.sh >/dev/null
	K8S=1.34 go test -v -tags $(TAGS) -count=1 -timeout 15m -run '$(OLDER)' $(if $(SUDO),-exec "$(SUDO)") ./test/e2e

# What many VMs at once do takes minutes, and few changes break it.
MANY := TestTenVMs|TestLaunchersOfAFull|TestADrainMovesFive|TestADrainOfAFullNode|TestThousandRefused
.PHONY: test-many
test-many: deps race k8s csi images ## many VMs at once: a full node, a tainted one, a thousand that nothing moves: 8 minutes
	$(ROOTTEST) -tags $(TAGS),nightly -v -p 1 -timeout 20m -run '^($(MANY))' $(if $(SUDO),-exec "$(SUDO)") ./internal/cluster ./test/evictions ./test/e2e

.PHONY: test-day
test-day: deps k8s csi images ## what users do to a VM, each row of the table in docs/kubernetes.md, in a cluster of two nodes: 12 minutes
	go test -v -tags $(TAGS),nightly -count=1 -parallel 6 -timeout 30m -run '^TestADayOfAVM' $(if $(SUDO),-exec "$(SUDO)") ./test/e2e

# What virt-install makes needs its programs, a TPM's and UEFI firmware.
.PHONY: test-corpus
test-corpus: deps ## the domains that virt-install makes, as a migration's target sees them: 6 minutes
	$(SUDO) apt-get -q -y -o DPkg::Lock::Timeout=60 install --no-install-recommends virtinst osinfo-db swtpm swtpm-tools ovmf qemu-utils
	go test -v -tags $(TAGS),nightly -count=1 -timeout 30m $(if $(SUDO),-exec "$(SUDO)") ./test/corpus

.PHONY: upgrade
upgrade: deps k8s csi images previous helm ## from the last release to this version and back, and by Helm, in a cluster of two nodes: 8 minutes
	go test -v -tags $(TAGS),nightly -count=1 -timeout 15m -run "^(TestAnUpgrade|TestHelm)" $(if $(SUDO),-exec "$(SUDO)") ./test/e2e ./test/deploy

# What takes longer than a minute. VMGRACE_SOAK=30m makes the soak a long one,
# VMGRACE_KILLS=1000 the storm of kills: make test-soak. -p 2, -parallel 4: most of it waits.
# test/faults, four tests at a time, is alone; the other two have one each.
FAULTS := VMGRACE_BIN_DIR=$(CURDIR)/bin/race go test -v -tags $(TAGS) -count=1 -p 2 -parallel 4 -timeout 60m $(if $(SUDO),-exec "$(SUDO)")
.PHONY: test-faults
test-faults: deps build race k8s ## crashes, faults, a short soak, cgroups of version 2: 25 minutes
	status=0; $(FAULTS) ./test/faults || status=1; $(FAULTS) ./test/faults/crash ./test/faults/hostile ./test/faults/cgroup2 || status=1; exit $$status

.PHONY: test-soak
test-soak: deps race virtqemud ## the agent killed 1000 times, half an hour of faults, a virtqemud in a pod
	VMGRACE_KILLS=1000 VMGRACE_SOAK=30m $(FAULTS) -tags $(TAGS),nightly -timeout 90m -run '^(TestSoak|TestSIGKILLs|TestAVirtqemud)' ./test/faults ./test/faults/crash

# Of Debian 13 are first libvirtd and its QEMUs, then agent and client library, then all of
# it: with libvirtd, and with virtqemud, which speaks no TLS and moves no guest by itself.
DEBIAN13 := hack/root.sh debian13
WITH13 := $(or $(VMGRACE_CACHE),/var/cache/vmgrace)/roots/debian13
DRIVER := -p 2 -timeout 30m ./pkg/hypervisor/libvirt ./test/acceptance
.PHONY: test-debian13
test-debian13: deps race k8s ## libvirt 11.3 and QEMU 10 of Debian 13, and a guest that moves there: an hour and a half
	$(DEBIAN13) hack/deps.sh
	$(DEBIAN13) hack/virtqemud.sh
	go test -v -tags $(TAGS),nightly -count=1 -timeout 10m -run 'Later' $(if $(SUDO),-exec "$(SUDO)") ./test/handover
	VMGRACE_LIBVIRT_ROOT=$(WITH13) $(GOTEST) $(DRIVER)
	$(DEBIAN13) make race
	$(DEBIAN13) VMGRACE_LIBVIRT_ROOT=/host $(ROOTTEST) $(DRIVER)
	$(DEBIAN13) $(ROOTTEST) $(DRIVER)
	$(DEBIAN13) VMGRACE_LIBVIRT_CRASHES=1 $(MOVES) -tags $(TAGS),nightly -skip Later -timeout 60m ./test/handover
	$(DEBIAN13) VMGRACE_LIBVIRT_DAEMON=/var/cache/vmgrace/virtqemud $(ROOTTEST) $(DRIVER)
	$(DEBIAN13) VMGRACE_LIBVIRT_DAEMON=/var/cache/vmgrace/virtqemud $(MOVES) -timeout 60m ./test/handover

.PHONY: demo-ubuntu
demo-ubuntu: ## the demo on Ubuntu 24.04: a minute, 5 the first time
	hack/root.sh ubuntu24.04 make demo

.PHONY: fuzz
fuzz: ## each fuzz test 20000 times: 1 minute (hack/fuzz.sh 10m: longer)
	hack/fuzz.sh 20000x

.PHONY: test-all
test-all: ## all of these, and which failed: an hour and a half
	.ci/run test fuzz test-kubernetes test-faults e2e

# -count=1: the manifests and the chart are outside these modules, where the test cache sees
# no change. Helm's library takes 3 minutes to compile, once, then 10 s.
# What cgo writes is cached, and names files in the checkout that came first: the flag gives each
# checkout an entry of its own. The linters' own cache would name others' files, too.
.PHONY: lint
lint: export CGO_CFLAGS := -O2 -g -ffile-prefix-map=$(CURDIR)=.
lint: export GOLANGCI_LINT_CACHE := $(CURDIR)/bin/lint
lint: ## golangci-lint of every module, alerts and dashboard by Prometheus's own library, the objects by KubeVirt's, the chart by Helm's
	$(TOOL) golangci-lint config verify
	for module in . hack/csi hack/helm hack/k8s hack/kubevirt hack/release hack/rules; do (cd $$module && GOWORK=off $(TOOL) golangci-lint run ./...); done
	for module in hack/helm hack/kubevirt hack/release hack/rules; do (cd $$module && GOWORK=off go test -count=1 ./...); done

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

.PHONY: demo-drain
demo-drain: deps ## a cluster of two nodes and a VM that a drain moves, live: a minute, the first time 10 more
	@hack/progress.sh "building Kubernetes, about 5 minutes, once" hack/k8s/build.sh
	@hack/progress.sh "building vmgrace's images, about 4 minutes, once" hack/images.sh
	go build -o bin/demo-drain ./test/demo/drain
	$(SUDO) bin/demo-drain

# On a quiet machine: the figures are only as good as it is idle. Single steps,
# with their allocations: go test -tags libvirt_dlopen -run '^$' -bench . ./internal/... ./pkg/...
.PHONY: bench
bench: deps build k8s ## measure beside a floor and the peers into docs/lab/performance.md: an hour
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o bin/floor ./test/bench/floor
	CGO_ENABLED=1 go build -trimpath -tags $(TAGS) -o bin/bench ./test/bench
	CGO_ENABLED=1 go test -c -tags $(TAGS) -o bin/handover.test ./test/handover
	$(SUDO) bin/bench --out docs/lab/performance.md

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
