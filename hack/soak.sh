#!/usr/bin/env bash
# Loads volumes of the ready provisioners on a cluster of its own, for as long as SOAK says, while
# what serves them is killed by a schedule that follows from SEED. Every byte is checked, and in the
# end nothing may be left. A failure leaves the cluster's logs and the loads' journals in .tarn/soak.
#
# SEED repeats the schedule of an earlier run. KEEP=1 leaves the cluster running, with its volumes and
# the server of its buckets.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 PATH=$PWD/bin:$PATH
unset KUBECONFIG # what ends the run must not find the caller's cluster
cluster=${TARN_CLUSTER_NAME:-tarn-soak} prefix=soak pool=1Gi
logs=$PWD/.tarn/soak
duration=${SOAK:-20m} seed=${SEED:-$SRANDOM}
echo "soak: $duration with seed $seed; \`SEED=$seed SOAK=$duration make soak\` repeats the schedule" >&2
scratch=$(mktemp -d /var/tmp/tarn-soak.XXXXXX)
. hack/shelf.sh

finish() {
	status=$?
	set +e
	if [ "$status" -ne 0 ]; then
		rm -rf "$logs" && mkdir -p "$logs"
		cp -r "$scratch/journals" "$logs/"
		[ -z "${KUBECONFIG:-}" ] || kubectl get pods,pvc,pv,pavvolumes,pavstages,events -A -o wide >"$logs/objects" 2>&1
		for component in supervisor containerd kubelet tarn-controller tarn-node; do
			tarn-cluster logs "$component" --name "$cluster" >"$logs/$component.log" 2>&1
		done
		echo "soak: failed with seed $seed; see .tarn/soak" >&2
	fi
	if [ -n "${KEEP:-}" ]; then
		echo "soak: cluster $cluster still runs; its volumes are in $scratch" >&2
		exit "$status"
	fi
	tarn-cluster down --name "$cluster" >&2 || status=1
	[ -z "$server" ] || kill "$server"
	rm -rf --one-file-system "$scratch"
	exit "$status"
}
trap finish EXIT

go build -o "$scratch/" ./hack/soak ./hack/soak/load
mkdir -m 0777 "$scratch/journals"
tarn-cluster up --name "$cluster" --spend-memory >&2
KUBECONFIG=$(tarn-cluster kubeconfig --name "$cluster")
export KUBECONFIG
tarn-cluster image build --name "$cluster" --tag tarn.dev/soak-load:1 --binary "$scratch/load" >&2
for name in btrfs xfs shared bucket encrypted; do ready "$name" 2>&1; done >&2
# What each can: writes within files, whether a pod may notice that its server dies, and whether
# the last content of a file may then be in NAME.recovered.
"$scratch/soak" "$cluster" "$seed" "$duration" "$scratch/journals" \
	blocks:soak-btrfs blocks:soak-xfs blocks:soak-shared faults,recovers:soak-bucket blocks,faults:soak-encrypted
