#!/usr/bin/env bash
# Measures what controller and node agent hold of memory, each on a cluster of its own:
# 10,000 volumes on an API server alone, 100 stages on a node. About 6 minutes on 2 cores.
#
#   hack/bench-memory.sh [FOLDER FOR HEAP PROFILES]
set -euo pipefail
cd "$(dirname "$0")/.."

name=tarn-bench-memory
profiles=${1:-}
on_cluster() { bin/tarn-cluster "$@" --name "$name"; }
trap 'on_cluster down >&2' EXIT

on_cluster up --control-plane-only >&2
KUBECONFIG=$(on_cluster kubeconfig)
export KUBECONFIG
go run ./bench/memory controller ${profiles:+-profile "$profiles/controller"}
on_cluster down >&2

on_cluster up --tarn-node-arg=--pprof-bind-address=127.0.0.1:16060 >&2
pid=$(on_cluster status | awk '$1 == "tarn-node" { print $3 }')
go run ./bench/memory node -pid "$pid" ${profiles:+-profile "$profiles/node" -pprof 127.0.0.1:16060}
