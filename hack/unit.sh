#!/usr/bin/env bash
# Runs the tests of every package by itself: under the race detector, but for the
# template engine, which has no goroutines and whose tests hold it to times that the
# detector multiplies by ten.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
engine=tarn.dev/tarn/jinja
mapfile -t others < <(go list ./... | grep -v "^$engine\$")
go test -json -race "${others[@]}" || status=1
go test -json "$engine" || status=1
# A module of its own, beyond which Go does not see that files have changed that its tests read, such as the Dockerfile.
go -C hack/image test -json -count=1 ./... || status=1
exit $status
