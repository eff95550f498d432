#!/usr/bin/env bash
# Runs the benchmarks of every module below bench/, then those that need a cluster, on
# clusters of their own.
#
# One that fails or misses a goal takes nothing from the others: all run, and the exit status
# says so in the end. BENCH_BIND holds arguments for bench/bind, such as -whole.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0

for module in bench/*/go.mod; do
	if [ ! -e "$module" ]; then
		echo "bench: there is no module below bench/" >&2
		exit 1
	fi
	folder=$(dirname "$module")
	echo "== $folder"
	env -C "$folder" go test -run '^$' -bench . -benchmem ./... || status=1
done

echo "== bench/bind"
read -ra bind <<<"${BENCH_BIND:-}"
go run ./bench/bind ${bind[@]+"${bind[@]}"} || status=1

echo "== bench/protect"
go run ./bench/protect || status=1

echo "== bench/memory"
hack/bench-memory.sh || status=1

echo "== bench/volumes"
bin/tarn-cluster up --name tarn-bench
trap 'bin/tarn-cluster down --name tarn-bench; bin/tarn-cluster down --name tarn-bench-pool' EXIT
KUBECONFIG=$(bin/tarn-cluster kubeconfig --name tarn-bench) go run ./bench/volumes || status=1

echo "== bench/pool"
bin/tarn-cluster up --name tarn-bench-pool --binder tarn
KUBECONFIG=$(bin/tarn-cluster kubeconfig --name tarn-bench-pool) go run ./bench/pool || status=1

exit "$status"
