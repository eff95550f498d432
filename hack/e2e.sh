#!/usr/bin/env bash
# Starts a cluster of its own, runs the end-to-end tests on it, and takes it down.
# When they fail, the logs of every component are left in .tarn, in a folder of its name.
#
#   hack/e2e.sh [ARGUMENT OF go test]...
#
# KEEP=1 leaves the cluster running. BINDER and PROTECTION say whose controllers bind
# and protect in it: tarn or kubernetes; see `tarn-cluster up --help`. SUITE is the name
# under which the results are kept.
set -euo pipefail
cd "$(dirname "$0")/.."
# As bin/tarn is built, so that nothing is compiled twice.
export CGO_ENABLED=0

export TARN_CLUSTER_BINARY=$PWD/bin/tarn-cluster
export TARN_CLUSTER_NAME=${TARN_CLUSTER_NAME:-tarn-e2e}
logs=.tarn/${SUITE:-e2e}

on_cluster() { "$TARN_CLUSTER_BINARY" "$@" --name "$TARN_CLUSTER_NAME"; }

finish() {
	status=$?
	if [ "$status" -ne 0 ]; then
		mkdir -p "$logs"
		for component in supervisor tarn-install image-import kube-apiserver kube-controller-manager kube-scheduler containerd kubelet tarn-controller tarn-node tarn-api; do
			on_cluster logs "$component" >"$logs/$component.log" 2>&1 || true
		done
		on_cluster status >"$logs/status" 2>&1 || true
		echo "e2e: failed; the logs of the cluster are in $logs" >&2
	fi
	if [ -n "${KEEP:-}" ]; then
		echo "e2e: the cluster $TARN_CLUSTER_NAME goes on running; $TARN_CLUSTER_BINARY down --name $TARN_CLUSTER_NAME ends it" >&2
	else
		on_cluster down >&2 || status=1
	fi
	exit "$status"
}
trap finish EXIT

# What an interrupted run has left would be tested instead of what was built.
[ -n "${KEEP:-}" ] || on_cluster down >&2
# A silent node is given up after two and a half of its kubelet's heartbeats rather than five: a case that waits for it has the
# cluster to itself.
on_cluster up --kube-controller-manager-arg=--node-monitor-grace-period=25s ${BINDER:+"--binder=$BINDER"} ${PROTECTION:+"--protection=$PROTECTION"} >&2
KUBECONFIG=$(on_cluster kubeconfig)
export KUBECONFIG

# Most of a case is waiting, so more of them run at once than there are processors.
go run ./hack/testsum run "${SUITE:-e2e}" -- go test -json -tags e2e -count=1 -timeout 20m -parallel 6 "$@" ./e2e
