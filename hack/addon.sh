#!/usr/bin/env bash
# Tests Tarn as most will run it: as pods, from the chart, on a plain cluster where
# Kubernetes binds and protects. In the end Tarn is taken away again, under a volume in
# use and in order, and nothing of it may be left. Each of these ways counts as a case
# does. When something fails, the logs are left in .tarn/addon.
#
#   hack/addon.sh [ARGUMENT OF go test]...
#
# KEEP=1 leaves the cluster running, with Tarn in it, which is not taken away then. With NODES=3 the cluster has three
# nodes, for `make test-nodes`, and Tarn is not taken away either. WIDE=1 runs every case that can
# hold here, as `make e2e` does, and not only those that show what no other suite does, those with what others make
# among them; has Tarn's parts killed at each moment that the cases know, and not only at some; takes Tarn away in every
# way there is, and not only in order; and has the node agents listen to the container runtime, which the chart leaves to
# whoever installs it.
set -euo pipefail
cd "$(dirname "$0")/.."
# As bin/tarn is built, so that nothing is compiled twice.
export CGO_ENABLED=0

export PATH=$PWD/bin:$PATH TARN_CLUSTER_BINARY=$PWD/bin/tarn-cluster
export TARN_CLUSTER_NAME=${TARN_CLUSTER_NAME:-tarn-addon}
# Told to the cases: the helm and the chart, and the tags of two builds of this tree
# that differ in nothing but their version, and where their images lie.
export TARN_HELM=$PWD/bin/helm TARN_CHART=$PWD/charts/tarn
export TARN_RELEASES="e2e-1 e2e-2" TARN_IMAGES=$PWD/.tarn/images
# Another kubelet folder than the default, as some distributions have it.
export TARN_KUBELET_DIR=/var/lib/kubelet/elsewhere
# Told to the cases: Kubernetes binds and protects.
export BINDER=kubernetes PROTECTION=kubernetes
logs=.tarn/addon
. hack/asked.sh

on_cluster() { "$TARN_CLUSTER_BINARY" "$@" --name "$TARN_CLUSTER_NAME"; }

finish() {
	status=$?
	if [ "$status" -ne 0 ]; then
		mkdir -p "$logs"
		for part in controller node; do
			kubectl -n tarn-system logs --selector "app.kubernetes.io/component=$part" --prefix --tail=-1 >"$logs/tarn-$part.log" 2>&1 || true
		done
		kubectl -n tarn-system get pods,leases,events -o wide >"$logs/tarn-system" 2>&1 || true
		for component in supervisor kube-apiserver kube-controller-manager kube-scheduler containerd kubelet; do
			on_cluster logs "$component" >"$logs/$component.log" 2>&1 || true
		done
		echo "addon: failed; the logs are in $logs" >&2
	fi
	if [ -n "${KEEP:-}" ]; then
		echo "addon: the cluster $TARN_CLUSTER_NAME goes on running; $TARN_CLUSTER_BINARY down --name $TARN_CLUSTER_NAME ends it" >&2
	else
		on_cluster down >&2 || status=1
	fi
	exit "$status"
}
trap finish EXIT

# Which of the end-to-end cases run here each time, and what each shows of Tarn in pods that its
# processes on the host do not show.
cases=(
	# Its own cases: what the chart makes, upgrades, skew.
	'AddOn'
	# Results come through the inline driver, and what the agent mounts in its pod is seen by the kubelet and by other pods.
	'ADynamicVolumeLivesThroughItsFiveSections' 'TwoPodsShareAVolumeAndItsStage'
	# Device nodes through the agent's pod, and a volume that grows on the node.
	'ABlockVolumeGrowsUnderItsPod'
	# The agent finds the mount namespaces of other pods, which takes the node's processes.
	'AVolumeWhoseStagingPodIsDeletedIsStagedAgain'
	# Kubernetes' own binder and protection in charge, of claims that are retained, deleted early or in use.
	'ReclaimHoldsToThePolicyInWhateverOrderClaimAndVolumeGo' 'AClaimInUseWaitsForThePodsThatUseIt' 'FinalizersThatWereTakenOffByHandComeBack'
	# Pods of Tarn's own image and claims in its namespace, with the rights the chart gives.
	'ASecretIsNowhereOnTheDeviceForTheNextTenant' 'AClaimIsServedFromAPoolThatFillsUpAgain'
	# The policies as helm installed them.
	'AProvisionerOfTheWrongShapeIsRefusedAtOnce'
	# Folders of the node that the controller itself makes and removes, whoever wrote there, with the rights its pod has.
	'AFolderOfLocalPathLivesAsLongAsItsClaim'
)
# What cannot hold here, however wide, and why.
# Of TestExplainSaysThatTheControllerDoesNotAnswer, what is said of Tarn's own binder and
# protection is not asked for, as Kubernetes' are in charge, and its command for a Deployment
# that leads to both.
apart=(
	# Tarn's binder is what they are about: beside Kubernetes', and with its scheduler. They
	# have clusters of their own, which are the same whatever the suite's is.
	'TwoBindersAtOnceBindOneToOne' 'TheSchedulerAndTheBinderAgree'
	# Half of its claims are Tarn's binder's to bind, in a cluster of its own too. With the two
	# replicas that the chart makes TestAddOnAnotherControllerTakesOver does as much.
	'AnotherControllerTakesOver'
)
any_of() { local IFS='|'; echo "^Test($*)"; }
chosen=(-parallel 8 -run "$(any_of "${cases[@]}")")
if [ -n "${WIDE:-}" ]; then
	chosen=(-tags e2e,others -parallel 6 -skip "$(any_of "${apart[@]}")")
	export TARN_CSI_PROVISIONER=$PWD/bin/csi-provisioner
fi

[ -n "${KEEP:-}" ] || on_cluster down >&2
forget_asked addon
asked addon "$TARN_CLUSTER_NAME"
# A silent node is given up as soon as in hack/e2e.sh.
on_cluster up --stock --spend-memory --kubelet-arg="--root-dir=$TARN_KUBELET_DIR" --kube-controller-manager-arg=--node-monitor-grace-period=25s ${NODES:+"--nodes=$NODES"} "${asking[@]}" >&2
KUBECONFIG=$(on_cluster kubeconfig)
# The folder that controllers mount lies with the cluster's data, and goes with it. Told to the cases: where in it volumes are made.
folders=$(dirname "$KUBECONFIG")/folders
export KUBECONFIG folders TARN_HOST_PATH_ROOT=$folders/volumes
image() { # TREE FOLDER RELEASE [ARCHITECTURE]: packs the image of a tree
	go -C hack/image run . --root="$1" --out="$2" --arch="${4:-$(go env GOARCH)}" --image="tarn.dev/tarn:$3" --version="v0.0.0-$3" >&2
}
for release in $TARN_RELEASES; do
	image "$PWD" "$TARN_IMAGES/$release" "$release"
	on_cluster image import "$TARN_IMAGES/$release/tarn.tar" >&2
done

rolled_out() {
	local part
	for part in "$@"; do kubectl -n tarn-system rollout status "$part" --timeout=180s >&2; done
}
first=${TARN_RELEASES%% *} socket=
if [ -n "${WIDE:-}" ]; then
	node=$(kubectl get nodes -o name)
	socket=$(kubectl get --raw "/api/v1/nodes/${node#node/}/proxy/configz" | sed -n 's#.*"containerRuntimeEndpoint":"unix://\([^"]*\)".*#\1#p')
	[ -n "$socket" ] || { echo "addon: the kubelet names no socket of its container runtime" >&2; exit 1; }
fi
install() { # what anybody would type
	"$TARN_HELM" upgrade --install tarn "$TARN_CHART" --set image.tag="$first" --set api.enabled=true --set api.insecure=true --set node.kubeletDir="$TARN_KUBELET_DIR" --set node.criSocket="$socket" --set controller.hostPath="$folders" >&2
	rolled_out deployment/tarn-controller daemonset/tarn-node deployment/tarn-api
}
install
# What applications get, as provisioners/README.md says, but for the folders: they lie with the cluster's data, and go with it.
kubectl apply -f provisioners/xfs/provisioner.yaml -f provisioners/shared/provisioner.yaml >&2
for pair in ovh-csi-rbd=xfs ovh-csi-nfs=shared; do
	class=${pair%=*}
	kubectl patch --local --type=merge -f "provisioners/${pair#*=}/class.yaml" -o yaml -p "{\"parameters\": {\"folder\": \"$(dirname "$KUBECONFIG")/volumes/$class\"}}" |
		sed "s/^  name: .*/  name: $class/" | kubectl apply -f - >&2
done
kubectl apply -f examples/local-path/class.yaml >&2

# The cases, and then what takes Tarn away, count together.
export first socket
export -f on_cluster image rolled_out install
go run ./hack/testsum run addon -- hack/addon-suite.sh "${chosen[@]}" "$@"
