# Tarn: `make demo` shows it, `make test` tests it, `make help` lists the rest.
# Everything here works in a fresh clone: what a machine lacks is installed by
# `make deps` on Debian, and named elsewhere.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Checkouts of another owner, as in containers, must build: the version is given below. Without the folder in what is compiled,
# one clone takes from Go's cache what another has put there.
FLAGS := -buildvcs=false -trimpath
export GOFLAGS := $(strip $(filter-out $(FLAGS),$(GOFLAGS)) $(FLAGS))

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
SUITES := unit integration cluster e2e addon rights
TESTSUM := go run ./hack/testsum
# Compiled like the programs, or else Go compiles its own library a second time.
BUILD := CGO_ENABLED=0 go run ./hack/build -version=$(VERSION)
GEN := go tool controller-gen

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9\/-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: deps ## build everything into bin/
	@$(BUILD) tarn $(ALSO) cluster
	@hack/stamp.sh

.PHONY: demo
demo: ## start a cluster with Tarn in it and run examples/hello-world
	@hack/demo.sh

.PHONY: down
down: ## take the demo's cluster down
	@if [ -x bin/tarn-cluster ]; then bin/tarn-cluster down --name "$${TARN_CLUSTER_NAME:-tarn}"; else echo "bin/tarn-cluster is not built, so no cluster runs"; fi

.PHONY: test
test: build test-deps ## run the tests as CI does, and sum up what ran: of those on a node and of lives under kills, the ones that tell most
	@rm -rf $(SUITES:%=.tarn/tests/%.json) $(if $(KEEP),,.tarn/asked)
	@failed=; for suite in $(SUITES); do $(MAKE) run-$$suite || failed="$$failed $$suite"; done; $(TESTSUM) report $(SUITES); [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: test-all
test-all: ## run every test there is, and sum up what ran: more than an hour
	@WIDE=1 $(MAKE) test

.PHONY: baseline
baseline: ## make what the last `make test` cost the measure of the next ones
	@$(TESTSUM) baseline $(SUITES)

.PHONY: unit
unit: deps test-deps run-unit ## test the packages by themselves

.PHONY: integration
integration: build ## test the packages against a real API server
	@WIDE=1 $(MAKE) run-integration

.PHONY: e2e
e2e: build ## test the whole on clusters of its own, Tarn as processes and then as pods; BINDER and PROTECTION say who binds in the first
	@WIDE=1 $(MAKE) run-e2e run-addon

.PHONY: e2e-others
e2e-others: build bin/csi-provisioner ## test Tarn with what others make: a CSI driver, an autoscaler with metrics; BINDER and PROTECTION as for e2e
	@SUITE=others TARN_CSI_PROVISIONER=$(CURDIR)/bin/csi-provisioner hack/e2e.sh -tags e2e,others -run 'CSIDriver|AMetric'

.PHONY: test-nodes
test-nodes: build bin/helm ## test Tarn on three nodes that fail: cut, isolated, full, drained, deleted; no part of `make test`
	@SUITE=nodes NODES=3 hack/e2e.sh -tags e2e,nodes -run '^TestOnThreeNodes'
	@NODES=3 hack/addon.sh -tags e2e,nodes -run '^TestAddOnOnThreeNodes'

.PHONY: external
external: build ## run Kubernetes' tests for external storage on ready provisioners: all, or PROVISIONERS='btrfs xfs'
	@hack/external.sh $(PROVISIONERS)

.PHONY: soak
soak: build ## load volumes on three nodes while programs are killed and nodes fail, for SOAK=20m; SEED repeats a schedule
	@hack/soak.sh

.PHONY: verify
verify: deps ## check format, vet, generated files and lint
	@hack/verify.sh

.PHONY: fuzz
fuzz: build ## fuzz templates, paas.toml and request bodies; FUZZTIME is how long each
	@hack/fuzz.sh

.PHONY: bench
bench: build ## measure: templates beside gonja, binding beside Kubernetes', volumes beside pods without one
	@hack/bench.sh

# Controllers with a role of their own, which a cluster that does without them can take away.
APART := apps bind protect
TOGETHER := $(filter-out $(APART),$(notdir $(wildcard internal/controller/*)))

# The image that deploy/tarn.yaml and the chart name; PUSH=1 pushes it to its registry too.
RELEASE := $(shell sed -n 's/^appVersion: *//p' charts/tarn/Chart.yaml 2>/dev/null)
IMAGE ?= tarn.dev/tarn:$(or $(RELEASE),latest)

.PHONY: image
image: ## pack the container image for amd64 and arm64, without Docker, into bin/image
	@go -C hack/image run . --root=$(CURDIR) --out=$(CURDIR)/bin/image --image=$(IMAGE) --version=$(VERSION) $(if $(PUSH),--push)

.PHONY: generate
generate: ## generate deep copies, resources, roles and docs/reference from the Go code, and the manifest from the chart
	@$(GEN) object paths=./api/...
	@$(GEN) crd paths=./api/... output:crd:dir=api/crds
	@$(GEN) rbac:roleName=tarn-controller,fileName=controller.yaml $(TOGETHER:%=paths=./internal/controller/%) paths=./internal/steppod/... paths=./internal/kube/... output:rbac:dir=deploy/rbac
	@for part in $(APART); do $(GEN) rbac:roleName=tarn-$$part,fileName=$$part.yaml paths=./internal/controller/$$part output:rbac:dir=deploy/rbac; done
	@$(GEN) rbac:roleName=tarn-node,fileName=node.yaml paths=./internal/node/... output:rbac:dir=deploy/rbac
	@$(GEN) rbac:roleName=tarn-metrics,fileName=metrics.yaml paths=./internal/cli/guard output:rbac:dir=deploy/rbac
	@$(GEN) rbac:roleName=tarn-api,fileName=api.yaml paths=./internal/api/... output:rbac:dir=deploy/rbac
	@$(MAKE) manifest
	@go run ./hack/reference .

# What others install, from the files above.
.PHONY: manifest
manifest: bin/helm
	@go run ./hack/values charts/tarn
	@{ echo '# Made by `make generate` from charts/tarn with its default values; do not edit.'; bin/helm template tarn charts/tarn 2> >(grep -v 'symbolic link' >&2); } >deploy/tarn.yaml

# The parts that the targets above are made of.

.PHONY: deps
deps:
	@hack/preflight.sh
	@$(MAKE) -C cluster deps

# The file systems that volumes are scrubbed on; where their tools cannot be had, those tests say so and are skipped.
.PHONY: test-deps
test-deps:
	@$(MAKE) -C cluster deps PACKAGES='e2fsprogs xfsprogs btrfs-progs'

# Go knows what has changed.
.PHONY: bin/tarn
bin/tarn: ## build the command line alone, without a cluster's programs
	@$(BUILD) tarn

# Helm renders and installs the chart; this one is of the version that hack/helm names.
bin/helm: hack/helm/go.mod
	@$(BUILD) helm

# Kubernetes' own, of the version that hack/csi names. No part of `make build`: cold it takes 220 s of one processor.
bin/csi-provisioner: hack/csi/go.mod
	@$(BUILD) csi-provisioner

.PHONY: run-unit run-integration run-cluster run-e2e
run-unit:
	@failed=; hack/unit.sh compile || failed=1; $(TESTSUM) run unit -- hack/unit.sh && [ -z "$$failed" ]

run-integration:
	@hack/integration.sh

# As the binaries were built, and without the packages that are nothing but Kubernetes: else all of it is compiled a second time.
# A result that Go has kept tells nothing (-count=1): it does not know of the binaries, which are what is tested.
run-cluster:
	@env -C cluster CGO_ENABLED=0 go list -test -deps -export ./internal/... ./integration/... >/dev/null || true
	@env -C cluster CGO_ENABLED=0 go vet ./internal/... ./integration/...
	@$(TESTSUM) run cluster -- env -C cluster CGO_ENABLED=0 TARN_CLUSTER_BIN=$(CURDIR)/bin go test -json -vet=off -count=1 ./internal/... ./integration/...

run-e2e:
	@hack/e2e.sh

# Tarn as pods, from the chart, on a plain cluster where Kubernetes binds and protects.
.PHONY: run-addon
run-addon: bin/helm $(if $(WIDE),bin/csi-provisioner)
	@hack/addon.sh

# After the two above: what they saw Tarn's accounts ask for, beside what their roles grant.
.PHONY: run-rights
run-rights:
	@$(TESTSUM) run rights -- go test -json -tags rights -count=1 -run TestTarnAsksForEachOfItsRightsAndForNoOther ./deploy
