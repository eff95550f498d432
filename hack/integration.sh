#!/usr/bin/env bash
# Runs the tests that need a real API server: those in files with the build tag
# integration, and no others, as `make unit` has run the rest. WIDE=1 runs all of them whole.
set -euo pipefail
cd "$(dirname "$0")/.."
# As bin/tarn is built, so that nothing is compiled twice.
export CGO_ENABLED=0
# What the tests start is no part of what Go compiles for them; by this it knows when a result it has kept is out of date.
TARN_CLUSTER_BUILD=$(for program in bin/tarn-cluster bin/tarn-cluster.d/{etcd,kube}; do go tool buildid "$program"; done)
export TARN_CLUSTER_BUILD

mapfile -t files < <(grep -rl --include='*_test.go' '^//go:build integration$' internal cmd || true)
if [ ${#files[@]} -eq 0 ]; then
	echo "integration: no test file has the build tag integration" >&2
	exit 1
fi
mapfile -t packages < <(dirname "${files[@]}" | sort -u | sed 's|^|./|')
names=$(sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' "${files[@]}" | grep -vx TestMain | sort -u | paste -sd '|')

# A controller is killed at some of its writes, and with WIDE=1 at each.
how=(-short)
[ -z "${WIDE:-}" ] || how=()
# The lives of volumes are mostly waiting, so more of them run at once than there are processors, and of packages too; each has an
# API server of its own, so not as many as a large machine has.
beside=$((2 * $(nproc)))
[ "$beside" -le 8 ] || beside=8
# First, so that the processor time of the suite does not depend on what Go has compiled before.
go list -tags integration -test -deps -export "${packages[@]}" >/dev/null || true
go vet -tags integration "${packages[@]}"
exec go run ./hack/testsum run integration -- go test -json -vet=off -timeout 40m -p "$beside" "${how[@]}" -tags integration -parallel 4 -run "^($names)\$" "${packages[@]}"
