#!/usr/bin/env bash
# Loads volumes of the ready provisioners on three nodes of its own, for as long as SOAK says. Meanwhile
# what serves them is killed and nodes fail, by a schedule that follows from SEED. Every byte is checked,
# and in the end nothing may be left. A failure leaves the schedule with its times, the loads' journals,
# the objects, and the logs of all nodes in .tarn/soak.
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
mkdir -p /var/lib/tarn
own=$(mktemp -d /var/lib/tarn/soak.XXXXXX) # all other nodes have a /var/lib/tarn in the cluster's data
. hack/shelf.sh

# keep NAME COMMAND... leaves what a command prints in .tarn/soak.
keep() { mkdir -p "$(dirname "$logs/$1")" && "${@:2}" >"$logs/$1" 2>&1; }

finish() {
	status=$?
	set +e
	if [ "$status" -ne 0 ]; then
		rm -rf "$logs" && mkdir -p "$logs"
		cp -r "$scratch/journals" "$scratch/schedule" "$logs/"
		if [ -n "${KUBECONFIG:-}" ]; then
			objects=nodes,pods,pvc,pv,pvset,pavprovisioners,pavvolumes,pavstages,apps.tarn.dev,events
			keep objects kubectl get "$objects" -A -o wide
			keep objects.yaml kubectl get "$objects" -A -o yaml
			kubectl -n tarn-volumes get pods -o name | while read -r pod; do
				keep "$pod.log" kubectl -n tarn-volumes logs --timestamps --tail 200 --all-containers "$pod"
			done
		fi
		keep status tarn-cluster status --name "$cluster"
		for component in kube-controller-manager kube-scheduler tarn-controller; do
			keep "$component.log" tarn-cluster logs "$component" --name "$cluster"
		done
		for node in "$cluster" "$cluster-2" "$cluster-3"; do
			for component in supervisor containerd kubelet tarn-node; do
				keep "$node/$component.log" tarn-cluster logs "$component" --node "$node" --name "$cluster"
			done
		done
		echo "soak: failed with seed $seed; see .tarn/soak" >&2
	fi
	if [ -n "${KEEP:-}" ]; then
		echo "soak: cluster $cluster still runs; its volumes are in $scratch and $own" >&2
		exit "$status"
	fi
	tarn-cluster down --name "$cluster" >&2 || status=1
	[ -z "$server" ] || kill "$server"
	rm -rf --one-file-system "$scratch" "$own"
	exit "$status"
}
trap finish EXIT

go build -o "$scratch/" ./hack/soak ./hack/soak/load
mkdir -m 0777 "$scratch/journals"
# A node that is silent for 25 seconds is given up, so that some failures are longer.
tarn-cluster up --name "$cluster" --nodes 3 --spend-memory --kube-controller-manager-arg=--node-monitor-grace-period=25s >&2
KUBECONFIG=$(tarn-cluster kubeconfig --name "$cluster")
export KUBECONFIG
tarn-cluster image build --name "$cluster" --tag tarn.dev/soak-load:1 --binary "$scratch/load" >&2
for name in btrfs xfs shared bucket encrypted; do ready "$name" 2>&1; done >&2

# pooled CLASS POLICY [ANNOTATION [FIELD]] keeps two spares of a class.
pooled() {
	kubectl apply -f - >&2 <<-YAML
		apiVersion: tarn.dev/v1alpha1
		kind: PersistentVolumeSet
		metadata: {name: $1}
		spec:
		  minimumReplicas: 2
		  maximumReplicas: 8
		  selector: {pool: $1}
		  template:
		    ${4:-}
		    metadata:
		      labels: {pool: $1}
		      annotations: {${3:-}}
		    spec:
		      storageClassName: $1
		      persistentVolumeReclaimPolicy: $2
		      capacity: {storage: 320Mi}
		      accessModes: [ReadWriteOnce]
	YAML
}
pooled soak-xfs Retain 'tarn.dev/recycle: Files' 'topologyKey: topology.kubernetes.io/zone'
pooled soak-shared Delete
kubectl wait pvset --all --for=condition=Ready --timeout=3m >&2

# What each can: writes within files, whether a pod may notice that its server dies, whether the last
# content of a file may then be in NAME.recovered, and whether a pod of a lost node runs elsewhere.
"$scratch/soak" "$cluster" "$seed" "$duration" "$scratch/journals" \
	blocks:soak-btrfs blocks:soak-xfs blocks,moves:soak-shared faults,recovers:soak-bucket blocks,faults:soak-encrypted |
	tee "$scratch/schedule"
