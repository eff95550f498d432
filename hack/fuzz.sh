#!/usr/bin/env bash
# Runs every fuzz target of the repository for FUZZTIME (30s) each. What is found is kept by
# Go in testdata/fuzz of the package: commit it, and `make unit` tries it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0

grep -rno --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' internal jinja | while IFS=: read -r file _ target; do
	target=${target#func }
	tags=$(sed -n 's,^//go:build ,,p' "$file")
	echo "fuzz: $(dirname "$file") $target, ${FUZZTIME:=30s} (built for it first, which takes minutes the first time)"
	go test ${tags:+-tags "$tags"} -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "./$(dirname "$file")" </dev/null
done
