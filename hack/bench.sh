#!/usr/bin/env bash
# Runs the benchmarks of every module below bench/.
set -euo pipefail
cd "$(dirname "$0")/.."

for module in bench/*/go.mod; do
	if [ ! -e "$module" ]; then
		echo "bench: there is no module below bench/" >&2
		exit 1
	fi
	folder=$(dirname "$module")
	echo "== $folder"
	env -C "$folder" go test -run '^$' -bench . -benchmem ./...
done
