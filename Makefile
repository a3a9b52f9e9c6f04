# Everything here needs Go, make, git, bash and, for race, a C compiler. Go builds
# the tools, at the versions below.

GOLANGCI_LINT_VERSION := v2.15.0
GOVULNCHECK_VERSION   := v1.9.0
GOTESTSUM_VERSION     := v1.13.0
GREMLINS_VERSION      := v0.6.0
BENCHSTAT_VERSION     := v0.0.0-20260908200009-22c9c6c9d4da

# The newest three minor releases of CoreDNS, the first of which is that of go.mod.
COREDNS_RELEASES := v1.15.0 v1.14.7 v1.13.2

# How long `make fuzz` spends on each target.
FUZZTIME ?= 30s

# How long `make soak` runs, and its first seed.
SOAK ?= 10m
SEED ?= $(shell date +%s)

# The packages of `make mutate`, each with those below it. A hundred mutants take minutes,
# all of these hours.
MUTATE ?= $(addprefix ./internal/,catalog dns/zone wire stream consumer owner registry)

# The sizes of the catalogs of `make bench`, how long each benchmark runs, and how
# often: benchstat wants six samples. A million services need 12 GB of memory and
# ten minutes for each count.
SERVICES  ?= 1000,100000
BENCHTIME ?= 150ms
COUNT     ?= 6

# What `make benchcmp` compares: benchmarks of a package, with a commit.
BASE    ?= HEAD~1
PACKAGE ?= ./plugin
BENCH   ?= .

# Which benchmarks `make bench-e2e` runs (E2EQueries/query=SRV, say), the size of the
# catalog, the sizes that E2ESizes compares, how often each server is asked, and for how
# many seconds.
E2E          ?= E2E
E2E_SERVICES ?= 10000
E2E_SIZES    ?= 1000,1000000
E2E_ROUNDS   ?= 5
E2E_SECONDS  ?= 3

# How many consumers `make bench-swarm` has, and services. A million services that are
# sent take ten seconds of a processor; SWARMFLAGS=-prime has only one consumer download
# all, which is what 10,000 with 10,000 services need.
# After that, 1,000 consumers in 50 classes see another policy for 100,000 services.
SWARM          ?= 1000
SWARM_SERVICES ?= 1000
SWARMFLAGS     ?=

# What `make image` writes, where to, and how the images are called; without TAG the
# tag is the version of the binaries. An architecture takes five minutes of CPU time
# when it is built for the first time.
IMAGES   ?= bin/image
ARCHES   ?= amd64
REGISTRY ?= localhost
TAG      ?=
comma    := ,

# What `make dist` writes to, and the version that it gives the packages; without
# VERSION it is that of the binaries. An architecture takes as long as in an image, and
# no longer where there has been one.
DIST    ?= bin/dist
VERSION ?=
STATIC  = bin/static

# Where `make release` writes to.
RELEASE ?= bin/release

GOLANGCI_LINT := bin/tools/golangci-lint-$(GOLANGCI_LINT_VERSION)
BENCHSTAT     := bin/tools/benchstat-$(BENCHSTAT_VERSION)
GOTESTSUM     := bin/tools/gotestsum-$(GOTESTSUM_VERSION)
GREMLINS      := bin/tools/gremlins-$(GREMLINS_VERSION)

# Servers of other projects are built in modules of their own, which pin them: their
# dependencies clash with each other's and with CoreDNS's.
pinned = $(shell sed -n 's,^[[:space:]]*$(2) \(v[^ ]*\).*,\1,p' test/peers/tools/$(1)/go.mod)

KUBERNETES_VERSION := $(call pinned,kubernetes,k8s.io/kubernetes)
ETCD               := bin/tools/etcd-$(call pinned,etcd,go.etcd.io/etcd/server/v3)
KUBE_APISERVER     := bin/tools/kube-apiserver-$(KUBERNETES_VERSION)
KUBE_CONTROLLERS   := bin/tools/kube-controller-manager-$(KUBERNETES_VERSION)
KUBE_PROXY         := bin/tools/kube-proxy-$(KUBERNETES_VERSION)
KUBECTL            := bin/tools/kubectl-$(KUBERNETES_VERSION)
SPIRE              := $(patsubst %,bin/tools/%-$(call pinned,spire,github.com/spiffe/spire),spire-server spire-agent)
NSM                := bin/tools/nsm-$(call pinned,nsm,github.com/networkservicemesh/sdk)
CONSUL             := bin/tools/consul-$(call pinned,consul,github.com/hashicorp/consul)
HELM               := bin/tools/helm-$(call pinned,helm,helm.sh/helm/v4)

# It is go test, and says at the end which tests were skipped, and why, and what failed.
GOTEST = $(CURDIR)/$(GOTESTSUM) -f standard-$(OUTPUT) --
OUTPUT = quiet

# Whatever neither the programs reach, nor the tests and examples of the packages that
# are meant for others and of the codec, is dead.
ALIVE = ./cmd/coredns ./cmd/federationctl ./federation \
	$(addprefix ./federation/,consumer mtls owner provider) ./internal/wire/...

# Most tests that take long wait: for a retention to end, or for a process.
WAITING := -p 3 -parallel 8

# The plugin's version is the module's, and Go takes it from git.
BUILDFLAGS := -buildvcs=auto

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name caption; do \
		printf '  make %-13s %s\n' "$$name" "$$caption"; done

.PHONY: build
build: ## build bin/coredns and bin/federationctl
	go build $(BUILDFLAGS) -o bin/ ./cmd/coredns ./cmd/federationctl

# The C library is left out, as there is none in an image, and so is what depends on
# the place and the time of the build.
.PHONY: static
static:
	@for arch in $(subst $(comma), ,$(ARCHES)); do mkdir -p $(STATIC)/linux-$$arch && \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build $(BUILDFLAGS) -trimpath -ldflags '-s -w' \
			-o $(STATIC)/linux-$$arch/ ./cmd/coredns ./cmd/federationctl || exit; done

.PHONY: image
image: STATIC = $(IMAGES)/binaries
image: static ## build an OCI image of each binary in bin/image, the same from the same commit (ARCHES=amd64,arm64 for both)
	@go -C deploy run ./image -binaries '$(abspath $(STATIC))' -license '$(CURDIR)/LICENSE' -out '$(abspath $(IMAGES))' \
		-registry '$(REGISTRY)' -tag '$(TAG)' -arches '$(ARCHES)'

.PHONY: dist
dist: ARCHES = amd64,arm64
dist: static ## write archives, Debian packages, SBOMs and checksums to bin/dist, the same from the same commit (ARCHES=amd64 for one)
	@go -C deploy run ./package -binaries '$(abspath $(STATIC))' -repository '$(CURDIR)' -out '$(abspath $(DIST))' \
		-version '$(VERSION)' -arches '$(ARCHES)'

.PHONY: release
release: ## make everything of a release of the tag VERSION=v1.2.0 (else of HEAD) in bin/release, the same from the same commit (REGISTRY=...)
	@deploy/release.sh '$(VERSION)' '$(REGISTRY)' '$(abspath $(RELEASE))'

.PHONY: run
run: build ## run an owner and CoreDNS on 127.0.0.1:1053 with sample look-ups, until Ctrl-C (ONCE=1: end after the look-ups)
	go build -o bin/ ./test/kit/lookup
	@test/run.sh

test race race-etcd e2e e2e-pods e2e-import e2e-dist e2e-spiffe e2e-nsm e2e-consul e2e-monitoring e2e-browser e2e-clients e2e-docs: $(GOTESTSUM)
e2e: OUTPUT = $(if $(RUN),verbose,quiet)
e2e-pods e2e-import e2e-dist e2e-spiffe e2e-nsm e2e-consul e2e-monitoring e2e-browser e2e-clients e2e-docs: OUTPUT = verbose

.PHONY: test
test: export REAL_SERVERS = none
test: ## run every test that needs nothing but Go (WING=owner: those of internal/owner, less thorough, for each change; WITHOUT=e2e: but for those of `make e2e`)
ifdef WING
	$(GOTEST) $(WAITING) -short -timeout 20m ./$(or $(firstword $(wildcard internal/$(WING) federation/$(WING) $(WING))),$(error there is no folder internal/$(WING), federation/$(WING), nor $(WING)))/...
else ifeq ($(WITHOUT),e2e)
	$(TESTDEPLOY) $(GOTEST) $(WAITING) -timeout 20m $$(go list ./... | grep -vxF "$$(go list $(E2E_PACKAGES))"); $(SHOWDEPLOY)
else
	$(TESTDEPLOY) $(GOTEST) $(WAITING) -timeout 20m ./...; $(SHOWDEPLOY)
endif

# The module deploy is tested beside the others, and shown behind them.
TESTDEPLOY = @mkdir -p bin; (cd deploy && $(GOTEST) -timeout 20m ./...) > bin/test-deploy.txt 2>&1 & deploy=$$!;
SHOWDEPLOY = failed=$$?; wait $$deploy || failed=1; cat bin/test-deploy.txt; exit $$failed

# What `make e2e` runs with real servers, and `make test` without.
E2E_PACKAGES := ./internal/source/kubernetes ./internal/source/registration/store/etcd ./test/suites/kubernetes/deploy \
	./test/suites/kubernetes/e2e ./test/suites/register

# The tests of these packages do little but start processes, which are not built with
# the race detector.
RACELESS := /test/(suites/kubernetes/deploy|suites/register|suites/relay)$$

# With a second processor the detector of Go 1.26 may crash, where two threads run the timers
# of one bubble of testing/synctest (golang/go#78156).
.PHONY: race
race: ## run the same tests under the race detector, less thorough, and without those of processes
	CGO_ENABLED=1 $(GOTEST) -race -cpu 1 -short -parallel 4 -timeout 20m $$(go list ./... | grep -vE '$(RACELESS)')

.PHONY: race-etcd
race-etcd: $(ETCD) ## run the tests of registrations in etcd with real clusters of etcd under the race detector
	CGO_ENABLED=1 REAL_SERVERS=required $(GOTEST) -race -count=1 -timeout 20m ./internal/source/registration/store/etcd
	CGO_ENABLED=1 REAL_SERVERS=required $(GOTEST) -race -count=1 -timeout 20m -run '^TestModelWithEtcd$$' ./internal/source/registration

# Go's default is to minimize each new input for a minute, which would leave no
# time to find others. On a busy machine go test may take the end of its own time for
# a failure, with no input that fails; that is none.
.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME (30s)
	@mkdir -p bin
	@grep -rE --include='*_test.go' --exclude-dir=bin -o '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file target; do \
		target=$${target#func }; \
		echo "$$target in $${file%/*} for $(FUZZTIME)"; \
		{ go test -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=200ms "$${file%/*}" || echo "$$target has failed"; } 2>&1 | tee bin/fuzz.txt; \
		if grep -q "^$$target has failed" bin/fuzz.txt && \
			! { grep -q '^    context deadline exceeded$$' bin/fuzz.txt && ! grep -q 'Failing input' bin/fuzz.txt; }; then exit 1; fi; done

# What fails does not keep the rest from running.
.PHONY: nightly
nightly: ## run what takes too long for CI, an hour: soak, fuzz, attacks, ten thousand consumers, clients, releases; needs root
	NIGHTLY=true $(MAKE) -k models e2e race-etcd soak fuzz attack unmodified e2e-clients e2e-dist bench-swarm \
		RUN=TestNamespaceDeleted FUZZTIME=5s SWARM=10000 SWARM_SERVICES=2000 SWARMFLAGS=-prime

.PHONY: models
models: ## run what has seeds with thousands of them, and not with tens
	NIGHTLY=true go test -count=1 -timeout 0 ./federation/... ./internal/... ./cmd/federationctl

.PHONY: soak
soak: ## run the whole fault matrix with one seed after another, from SEED on, for SOAK (10m)
	go -C test/suites/matrix test -run '^TestMatrix$$' -count=1 -timeout 0 -soak $(SOAK) -seed $(SEED)

# The tool copies the whole module, so it is given one without bin. With -trimpath a copy
# finds in the cache what was compiled in another. With its usual timeout mutants run out
# of time on a busy machine, and those count for nothing.
.PHONY: mutate
mutate: $(GREMLINS) ## show which mutants of the core its tests do not notice, for hours (MUTATE=./internal/wire for one package)
	@rm -rf bin/mutate && mkdir -p bin/mutate && tar -c --exclude ./bin --exclude ./run --exclude ./.git . | tar -x -C bin/mutate
	@cd bin/mutate && for package in $(MUTATE); do \
		GOFLAGS=-trimpath $(CURDIR)/$(GREMLINS) unleash --timeout-coefficient 50 \
			--invert-assignments --invert-logical --invert-loopctrl --remove-self-assignments $$package || exit; done

.PHONY: bench-register
bench-register: $(ETCD) ## measure one owner with INSTANCES (100000) registered by PROGRAMS (1000): rate, memory, CPU time, changes
	REAL_SERVERS=required go test ./test/suites/register -run '^$$' -bench Register -benchtime 1x -timeout 20m \
		-instances $(INSTANCES) -streams $(PROGRAMS) | tee bin/bench-register.txt
	@! grep -E '^(--- )?FAIL' bin/bench-register.txt && grep -q '^Benchmark' bin/bench-register.txt

# Sets results side by side: first CoreDNS's own plugins against federation, then
# what has no counterpart. With -alpha 1 every difference is shown beside its p, even
# that of a single run. It fails when there are failures or no results.
define benchstat
	@! grep -E '^(--- )?FAIL' $(1) && grep -q '^Benchmark' $(1)
	@$(BENCHSTAT) -alpha 1 -col /plugin -filter '/plugin:/./' $(1)
	@$(BENCHSTAT) -filter '-/plugin:/./' $(1)
endef

.PHONY: bench
bench: $(BENCHSTAT) ## compare with CoreDNS's own plugins in one process (SERVICES=1000000 for a million)
	@mkdir -p bin
	go test ./test -run '^$$' -bench . -skip E2E -benchtime $(BENCHTIME) -count $(COUNT) -timeout 0 -services $(SERVICES) | tee bin/bench.txt
	go test ./internal/dns/zone -run '^$$' -bench Shared -benchtime $(BENCHTIME) -count $(COUNT) -timeout 0 | tee -a bin/bench.txt
	$(call benchstat,bin/bench.txt)

.PHONY: bench-swarm
bench-swarm: build ## show what SWARM consumers cost an owner with SWARM_SERVICES services, how they come back, and another policy
	go build -o bin/ ./test/load/swarm
	bin/swarm -consumers $(SWARM) -services $(SWARM_SERVICES) $(SWARMFLAGS)
	bin/swarm -consumers 1000 -services 100000 -classes 50

.PHONY: bench-e2e
bench-e2e: build $(BENCHSTAT) ## compare with CoreDNS's own plugins and Knot over UDP, with updates flowing; needs dnsperf
	@rm -f bin/bench-e2e.txt
	for round in $$(seq $(E2E_ROUNDS)); do go test ./test -run '^$$' -bench '$(E2E)' -benchtime 1x -timeout 0 \
		-e2e-services $(E2E_SERVICES) -e2e-sizes $(E2E_SIZES) -e2e-seconds $(E2E_SECONDS) | tee -a bin/bench-e2e.txt; done
	$(call benchstat,bin/bench-e2e.txt)

.PHONY: run-register
run-register: build ## run an owner, CoreDNS and two programs that register, one of which is killed, until Ctrl-C (ONCE=1: end after that)
	go build -o bin/ ./test/kit/lookup ./test/suites/register/hello
	@test/run-register.sh

.PHONY: run-relay
run-relay: build ## run an origin, a relay and two CoreDNS, kill the origin and show the answers, until Ctrl-C (ONCE=1: end after that)
	go build -o bin/ ./test/kit/lookup
	@test/run-relay.sh

# How many instances `make bench-register` registers, and from how many programs.
INSTANCES ?= 100000
PROGRAMS  ?= 1000

.PHONY: e2e
e2e: build e2e-tools ## run the tests against real control planes of Kubernetes and clusters of etcd, ten minutes (RUN=regexp for some)
	REAL_SERVERS=required $(GOTEST) $(E2E_PACKAGES) -count=1 -p 2 -parallel 4 -timeout 20m $(if $(RUN),-run '$(RUN)')

.PHONY: run-clusters
run-clusters: build e2e-tools ## run two clusters that federate, each with an owner and CoreDNS, until Ctrl-C (ONCE=1: end after the look-ups)
	go build -o bin/ ./test/kit/lookup ./test/suites/kubernetes/clusters
	@bin/clusters $(if $(filter 1,$(ONCE)),-once)

.PHONY: run-import
run-import: build e2e-tools ## run two clusters, one of which imports what the other exports as Services, until Ctrl-C (ONCE=1: end after the look-ups)
	go build -o bin/ ./test/kit/lookup ./test/suites/kubernetes/clusters
	@bin/clusters -import $(if $(filter 1,$(ONCE)),-once)

.PHONY: e2e-import
e2e-import: build e2e-tools $(KUBE_PROXY) ## run the tests of federationctl import against real control planes, three minutes (RUN=regexp for some); connections need root and iptables
	REAL_SERVERS=required $(GOTEST) ./test/suites/kubernetes/importing -count=1 -parallel 6 -timeout 20m -run '$(or $(RUN),.)'

.PHONY: bench-import
bench-import: build e2e-tools ## measure an importer with IMPORT_SERVICES (10000): time, memory, and requests for a start, a change, an owner that comes back, and rest
	REAL_SERVERS=required go test ./test/suites/kubernetes/importing -run '^$$' -bench '$(or $(RUN),Import)' -benchtime 1x -timeout 30m -services $(IMPORT_SERVICES) -v

# How many services `make bench-import` imports.
IMPORT_SERVICES ?= 10000

.PHONY: e2e-tools
e2e-tools: $(ETCD) $(KUBE_APISERVER) $(KUBE_CONTROLLERS) $(KUBECTL) $(HELM) ## build etcd and Kubernetes for e2e and run-clusters, once; eleven minutes of CPU time

.PHONY: real-servers
real-servers: $(ETCD) $(KUBE_APISERVER) ## build etcd and kube-apiserver for tests; eight minutes of CPU time

.PHONY: e2e-pods
e2e-pods: image ## run the images, and resolve services of another cluster through them in pods; needs root
	CGO_ENABLED=0 E2E_PODS=1 $(GOTEST) -count=1 -timeout 20m ./test/suites/kubernetes/pods

.PHONY: e2e-dist
e2e-dist: ## make a release twice, install, upgrade, roll back and purge it in a root of Debian's; needs root and debootstrap
	cd deploy && REAL_SERVERS=required $(GOTEST) -count=1 -run Lintian ./package
	CGO_ENABLED=0 REAL_SERVERS=required $(GOTEST) -count=1 -timeout 30m ./test/suites/dist

.PHONY: e2e-spiffe
e2e-spiffe: build $(SPIRE) ## replace certificates of a real SPIRE, half a minute; building it takes twelve of CPU time, once
	REAL_SERVERS=required $(GOTEST) ./test/suites/spiffe -count=1 -timeout 20m

.PHONY: e2e-nsm
e2e-nsm: build $(NSM) ## run the tests against a real registry of Network Service Mesh, half a minute (RUN=regexp for some)
	REAL_SERVERS=required $(GOTEST) ./test/suites/nsm -count=1 -timeout 20m -run '$(or $(RUN),.)'

.PHONY: e2e-consul
e2e-consul: build $(CONSUL) ## run the tests against real servers and agents of Consul, two minutes (RUN=regexp for some); building it takes six of CPU time, once
	REAL_SERVERS=required $(GOTEST) ./test/suites/register/consul -count=1 -parallel 4 -timeout 20m -run '$(or $(RUN),.)'

# How many services `make bench-consul` registers, with three instances each.
CONSUL_SERVICES ?= 10000

.PHONY: bench-consul
bench-consul: build $(CONSUL) ## measure an owner with CONSUL_SERVICES (10000) in Consul: time, requests, memory, and changes until CoreDNS answers them
	REAL_SERVERS=required go test ./test/suites/register/consul -run '^$$' -bench Consul -benchtime 1x -timeout 30m -services $(CONSUL_SERVICES)

.PHONY: run-consul
run-consul: build $(CONSUL) ## run Consul, an owner that reads it and CoreDNS, with what becomes of services, until Ctrl-C (ONCE=1: end after that)
	go build -o bin/ ./test/kit/lookup
	@CONSUL=$(CONSUL) test/run-consul.sh

.PHONY: e2e-monitoring
e2e-monitoring: build $(ETCD) ## have each alert fire in a real Prometheus for a real fault, two and a half minutes; needs the Debian package prometheus
	REAL_SERVERS=required $(GOTEST) ./test/suites/monitoring -count=1 -parallel 4 -timeout 20m -run '$(or $(RUN),.)'

.PHONY: e2e-browser
e2e-browser: build ## look at the status page in a real chromium, with axe; two minutes; needs chromium, nodejs and npm (RUN=regexp for some)
	npm --prefix test/suites/monitoring/browser ci --ignore-scripts --no-audit --no-fund
	cd test/suites/monitoring/browser && $(GOTEST) -count=1 -timeout 20m -run '$(or $(RUN),.)' ./...

# Its package makes systemd-resolved the resolver of the machine. Only the program is taken.
RESOLVED := bin/tools/systemd-resolved

.PHONY: e2e-clients
e2e-clients: build $(RESOLVED) ## measure what resolvers, grpc-go and a JVM make of the answers, three minutes; needs root, default-jdk-headless and musl-tools
	CGO_ENABLED=1 REAL_SERVERS=required $(GOTEST) ./test/suites/clients -count=1 -timeout 10m

.PHONY: e2e-docs
e2e-docs: ## do what the README, install.md and the tutorial say, four minutes, in a root of Debian's with Go, git and make; needs root and debootstrap
	CGO_ENABLED=0 REAL_SERVERS=required $(GOTEST) -count=1 -timeout 40m ./test/suites/dist/pages

.PHONY: screenshot
screenshot: build ## take the screenshot of the status page in the README anew; needs chromium
	go build -o bin/ ./test/kit/lookup
	@test/screenshot.sh

.PHONY: benchcmp
benchcmp: $(BENCHSTAT) ## compare the benchmarks BENCH of PACKAGE (all of ./plugin) in this tree with those of the commit BASE (HEAD~1)
	@BASE='$(BASE)' PACKAGE='$(PACKAGE)' BENCH='$(BENCH)' COUNT='$(COUNT)' BENCHTIME='$(BENCHTIME)' BENCHSTAT='$(BENCHSTAT)' test/benchcmp.sh

.PHONY: attack
attack: build ## attack real processes with hostile owners, consumers and clients, for ten minutes at most (ATTACK=regexp for some)
	go run ./test/suites/attack -run '$(ATTACK)'

.PHONY: generate
generate: ## write the generated files
	go generate ./...

.PHONY: lint
lint: $(GOLANGCI_LINT) ## lint and check the format
	$(GOLANGCI_LINT) run

.PHONY: format
format: $(GOLANGCI_LINT) ## format every file
	$(GOLANGCI_LINT) fmt

.PHONY: check
check: lint generate ## check the house rules: format, vet, lint, presubmit, generated files, go.mod, dead code
	go vet ./...
	go test -count=1 -run '^TestPresubmit' ./test
	@git diff --exit-code -- proto && test -z "$$(git status --porcelain -- proto)" || \
		{ echo 'proto: the generated files do not match the sources; commit what make generate writes' >&2; exit 1; }
	go mod tidy -diff
	@dead=$$(go tool deadcode -test -filter '^$(shell go list -m)/(cmd|federation|internal|plugin)(/|$$)' $(ALIVE)) && test -z "$$dead" || \
		{ echo "unreachable:" "$$dead" >&2; exit 1; }

.PHONY: unmodified
unmodified: ## build and test the plugin in unmodified trees of the CoreDNS releases that are supported
	test/unmodified-coredns.sh $(COREDNS_RELEASES)

.PHONY: vuln
vuln: ## look for known vulnerabilities (needs the network and vuln.go.dev; CI does not check this)
	go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...

.PHONY: clean
clean: ## remove what the other targets have made
	rm -rf bin run

$(GOLANGCI_LINT):
	GOBIN=$(CURDIR)/bin/tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	mv bin/tools/golangci-lint $@

$(BENCHSTAT):
	GOBIN=$(CURDIR)/bin/tools go install golang.org/x/perf/cmd/benchstat@$(BENCHSTAT_VERSION)
	mv bin/tools/benchstat $@

$(ETCD):
	@echo 'Building $@, once'
	CGO_ENABLED=0 go -C test/peers/tools/etcd build -mod=readonly -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ go.etcd.io/etcd/server/v3

# The binaries of Kubernetes say which version they are.
$(KUBE_APISERVER) $(KUBE_CONTROLLERS) $(KUBE_PROXY) $(KUBECTL): bin/tools/%-$(KUBERNETES_VERSION):
	@echo 'Building $@, once; kube-apiserver takes seven minutes of CPU time, the others one or two'
	CGO_ENABLED=0 go -C test/peers/tools/kubernetes build -mod=readonly -trimpath -o $(CURDIR)/$@ \
		-ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)' k8s.io/kubernetes/cmd/$*

$(HELM):
	CGO_ENABLED=0 go -C test/peers/tools/helm build -mod=readonly -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ helm.sh/helm/v4/cmd/helm

# The registry, a client and the resolver of the mesh, of its SDK, behind one command.
$(NSM): $(wildcard test/peers/tools/nsm/*.go)
	@echo 'Building $@, once; it takes a minute of CPU time'
	CGO_ENABLED=0 go -C test/peers/tools/nsm build -mod=readonly -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ .

$(CONSUL):
	@echo 'Building $@, once; it takes six minutes of CPU time'
	CGO_ENABLED=0 go -C test/peers/tools/consul build -mod=readonly -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ github.com/hashicorp/consul

# The server needs a C compiler, for SQLite. Some of its packages take 2.6 GB of memory
# each to compile, so no more than two are compiled at a time.
$(SPIRE): bin/tools/%-$(call pinned,spire,github.com/spiffe/spire):
	@echo 'Building $@, once; spire-server takes ten minutes of CPU time, spire-agent two'
	CGO_ENABLED=1 go -C test/peers/tools/spire build -mod=readonly -p=2 -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ github.com/spiffe/spire/cmd/$*

$(RESOLVED):
	@mkdir -p $@.package
	cd $@.package && apt-get download systemd-resolved && dpkg-deb -x systemd-resolved_*.deb .
	mv $@.package/lib/systemd/systemd-resolved $@
	rm -rf $@.package

$(GOTESTSUM):
	GOBIN=$(CURDIR)/bin/tools go install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	mv bin/tools/gotestsum $@

$(GREMLINS):
	GOBIN=$(CURDIR)/bin/tools go install github.com/go-gremlins/gremlins/cmd/gremlins@$(GREMLINS_VERSION)
	mv bin/tools/gremlins $@
