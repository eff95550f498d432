#!/usr/bin/env bash
# Runs the tests of every package by itself: under the race detector, but for the
# template engine, which has no goroutines and whose tests hold it to times that the
# detector multiplies by ten. With the argument compile it only compiles them, so that the processor
# time of the suite does not depend on what Go has compiled before.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
engine=tarn.dev/tarn/jinja
mapfile -t others < <(go list ./... | grep -v "^$engine\$")
if [ "${1:-}" = compile ]; then
	# What does not compile is reported by go test, beside the packages that do.
	go list -race -test -deps -export "${others[@]}" >/dev/null || true
	go list -test -deps -export "$engine" >/dev/null || true
	go -C hack/image list -test -deps -export ./... >/dev/null || true
	# So does vet, which looks at all that is imported.
	go vet -race "${others[@]}"
	go vet "$engine"
	go -C hack/image vet ./...
	exit
fi
go test -json -vet=off -race "${others[@]}" || status=1
go test -json -vet=off "$engine" || status=1
# A module of its own, beyond which Go does not see that files have changed that its tests read, such as the Dockerfile.
go -C hack/image test -json -vet=off -count=1 ./... || status=1
exit $status
