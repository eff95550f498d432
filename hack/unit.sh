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
	go list -race -test -deps -export "${others[@]}" >/dev/null
	go list -test -deps -export "$engine" >/dev/null
	go -C hack/image list -test -deps -export ./... >/dev/null
	exit
fi
go test -json -race "${others[@]}" || status=1
go test -json "$engine" || status=1
# A module of its own, beyond which Go does not see that files have changed that its tests read, such as the Dockerfile.
go -C hack/image test -json -count=1 ./... || status=1
exit $status
