GO ?= go
# Staticcheck 2026.2.2. Errors may begin with the name of a field of a Config (ST1005).
STATICCHECK = $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 -checks inherit,-ST1005
# The packages that have cluster tests: those run on the wall clock, or in network namespaces.
CLUSTER = $(shell grep -rl --include='*_test.go' --exclude-dir=rules 'testutil[.]Cluster' . | xargs -n1 dirname | sort -u)
# The names of the cluster tests: "make test" has run the other tests of their packages.
CLUSTERTESTS = -run "$$($(GO) run .ci/clustertests.go $(CLUSTER))"
# Runs one package at a time. Tests that call t.Parallel share the machine: most of their time they wait. A test that
# fails runs once more, alone, and is listed at the end: a machine that stalls for seconds can cost any cluster its
# leader. A test that fails twice has failed.
GOTESTSUM = $(GO) run gotest.tools/gotestsum@v1.13.0 --format standard-quiet --rerun-fails=1 --rerun-fails-run-root-test \
	--rerun-fails-max-failures=10 --packages="$(CLUSTER)" --
RULES = $(GO) test -count=1 ./test/rules
# Without a C compiler go has cgo off, and the race detector needs cgo.
RACE := $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race)
FUZZTIME ?= 10s
PROTOC = PATH="$(CURDIR)/bin:$$PATH" protoc -I . --go_opt=module=github.com/wanfed/wanfed --go-grpc_opt=module=github.com/wanfed/wanfed

.PHONY: build release test-release demo test test-cluster chaos lint bench bench-gateway bench-store bench-controller bench-lease bench-scale bench-sync bench-xds fuzz check gen plugins ui
build: # grpcnotrace: less code in memory
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -buildvcs=auto -ldflags '-s -w' -o $(or $(OUT),bin/wanfed) ./cmd/wanfed
release: # programs, packages, image, SBOM and checksums of all platforms, into bin/release
	rm -rf bin/release
	cd release && $(GO) run . -out ../bin/release
test-release: # the same for linux/amd64, twice; the programs for Windows and macOS compile; the Helm chart
	cd release && $(GO) test -count=1 -timeout 20m ./...
	cd contrib/helm && $(GO) test -count=1 -timeout 20m ./...
demo: build
	bin/wanfed demo
test: # everything deterministic
	@[ -n "$(RACE)" ] || echo "no C compiler: tests run without the race detector"
	$(GO) test $(RACE) -short -timeout 10m ./...
	cd bench && $(GO) test -short -timeout 10m ./...
test-cluster: # the rest, one package after the other
	$(GOTESTSUM) $(RACE) $(CLUSTERTESTS) -p 1 -timeout 40m
chaos: ; WANFED_CHAOS=1 $(GO) test -count=1 -timeout 120m -v ./test
lint:
	$(STATICCHECK) ./...
	cd bench && $(STATICCHECK) ./...
	cd release && $(STATICCHECK) ./...
	cd contrib/helm && $(STATICCHECK) ./...
	$(RULES)
bench:
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m ./...
bench-gateway: build # against haproxy, nginx and Envoy (WANFED_ENVOY); BENCHFLAGS=-h lists the options
	cd bench && $(GO) run ./gatewaybench $(BENCHFLAGS)
bench-store: build # the store against etcd (Debian: etcd-server)
	cd bench && $(GO) run ./storebench $(BENCHFLAGS)
bench-controller: # package controller against sigs.k8s.io/controller-runtime
	cd bench && $(GO) run ./controllerbench $(BENCHFLAGS)
bench-lease: build # 10,000 leases on three servers
	cd bench && mkdir -p bin && $(GO) build -o bin/leasebench ./leasebench && bin/leasebench -expire $(BENCHFLAGS)
bench-xds: # package gateway/xds against go-control-plane
	cd bench && $(GO) run ./xdsbench $(BENCHFLAGS)
bench-scale: build # N datacenters that start at once
	cd bench && $(GO) run ./scalebench -n $(or $(N),25) $(BENCHFLAGS)
bench-sync: build # the sync daemon with 1,000 tasks
	cd bench && $(GO) run ./syncbench $(BENCHFLAGS)
fuzz:
	@grep -roE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' . | sed -E 's|/[^/]*:func | |' | while read -r dir f; do \
		$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x "$$dir" || exit 1; done
check: lint
	@bad=$$(gofmt -l .); [ -z "$$bad" ] || { echo "not gofmt'd:"; echo "$$bad"; exit 1; }
	$(GO) vet ./...
	cd bench && $(GO) vet ./...
	cd release && $(GO) vet ./...
	cd contrib/helm && $(GO) vet ./...
	$(GO) mod tidy -diff
	cd bench && $(GO) mod tidy -diff
	cd release && $(GO) mod tidy -diff
	cd contrib/helm && $(GO) mod tidy -diff
	@if ! command -v protoc >/dev/null; then echo "no protoc: generated code not compared"; else \
		$(MAKE) --no-print-directory plugins && tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
		$(PROTOC) --go_out="$$tmp" --go-grpc_out="$$tmp" api/pb/*.proto && \
		diff -r -I '^// .*protoc ' -x '*.proto' -x doc.go "$$tmp/api/pb" api/pb; fi # the version of protoc itself may differ
	@if [ ! -d ui/node_modules ]; then echo "no packages in ui (npm ci): the files of the web UI not compared"; else \
		tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && node ui/build.mjs "$$tmp" && diff -r "$$tmp" server/ui/dist; fi
gen: plugins
	$(PROTOC) --go_out=. --go-grpc_out=. api/pb/*.proto
	$(GO) test ./test/rules -run TestReference -update
plugins:
	@GOBIN="$(CURDIR)/bin" $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
	@GOBIN="$(CURDIR)/bin" $(GO) install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
ui: # the files of the web UI, from the sources in ui
	cd ui && npm ci --ignore-scripts && node build.mjs
