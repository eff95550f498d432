#!/usr/bin/env bash
# Starts clusters of its own, runs the end-to-end tests on them, and takes them down.
# When they fail, the logs of every component are left in .tarn, in a folder of its name.
#
#   hack/e2e.sh [ARGUMENT OF go test]...
#
# WIDE=1 runs every case, as arguments do of those they choose; without, those run that tell most in
# some minutes. KEEP=1 leaves the clusters running. BINDER and PROTECTION say whose controllers bind
# and protect in them: tarn or kubernetes; see `tarn-cluster up --help`. SUITE is the name
# under which the results are kept. With arguments there is one cluster. NODES is the number of its
# nodes.
set -euo pipefail
cd "$(dirname "$0")/.."
# As bin/tarn is built, so that nothing is compiled twice.
export CGO_ENABLED=0

export TARN_CLUSTER_BINARY=$PWD/bin/tarn-cluster
name=${TARN_CLUSTER_NAME:-tarn-e2e}
suite=${SUITE:-e2e}
logs=.tarn/$suite
. hack/asked.sh

# The cases of each run: one or a few of each part of Tarn, that lead through most of it, so that whoever
# breaks a part sees it in minutes. `make e2e` and `make test-all` run the others too.
core=(
	# A volume of pods: what it lives through, whoever dies meanwhile, and what goes wrong.
	TestADynamicVolumeLivesThroughItsFiveSections TestAStaticVolumeOutlivesItsClaimAndProvisioner TestTheHelloWorldExampleWorksAsItIs
	TestAProvisionerInUseIsDeletedAfterItsVolumes TestWhoeverIsKilled TestAFailingProvisioningPodLeavesTheClaimPending
	TestAFailingStagingPodLeavesThePodPending TestAClaimDeletedWhileItsVolumeIsMadeLeavesNothing
	TestAProvisionerOfTheWrongShapeIsRefusedAtOnce TestATemplateThatDoesNotParseIsNotUsed TestAClaimIsToldWhatItWaitsForAsThatChanges
	# On the node: shared, read only, of a kind, lost and found, grown.
	TestAStagingPodThatStaysServesUntilTheLastPodIsGone TestTwoPodsShareAVolumeAndItsStage TestAReadOnlyMountIsReadOnly
	TestAVolumeThatIsNotWhatItHasToBeIsToldAndNotHandedOut TestAVolumeWhoseServerIsKilledIsThereAgainInTheRunningPod
	TestDataAndConsumerOutliveAStagingPodThatIs TestAVolumeGrowsUnderAPodThatGoesOnWriting TestABlockVolumeGrowsUnderItsPod
	TestAFullClaimGrowsByItselfAndOnce
	TestAVolumeOfOneNodeIsMadeAndDestroyedWhereItsPodRuns TestAFullNodeIsNotSelectedUntilItHasRoomAgain
	TestAVolumeIsStagedAheadOfTheKubeletsCall
	# Bound, protected, released.
	TestTheSchedulerAndTheBinderAgree TestAClaimInUseWaitsForThePodsThatUseIt TestClaimsAndVolumesAreBornProtected
	TestFinalizersThatWereTakenOffByHandComeBack TestWhatIsMarkedIsDeletedWhenTheMarkIsTakenOffAndNotBefore
	TestReclaimHoldsToThePolicyInWhateverOrderClaimAndVolumeGo
	# The ready provisioners.
	TestABtrfsVolumeIsHeldToItsSizeGrowsAndFreesItsPool
	TestAGitVolumeIsOneCommitFollowsItsRefAndLogsInByASecret TestABucketServesAClaimAndLosesNoClosedFileWhenItsServerIsKilled
	TestAnSSHFSVolumeWritesOnAfterItsServerAndItsProcessWereKilled
	TestAnEncryptedVolumeHasCiphertextAloneBelowItAndGrowsAndEndsWithIt
	# Kept ready, wiped, brought back.
	TestAClaimIsServedFromAPoolThatFillsUpAgain TestASecretIsNowhereOnTheDeviceForTheNextTenant TestTrashGivesAClaimBackWithItsData
	TestAFolderOfLocalPathLivesAsLongAsItsClaim
	# Applications, and what people type.
	TestTheRESTAPIAnswersAsItsTableSays TestAnAppsVolumesAreFoundAgainByItsNextDeploy TestTheDemoRunsAgainAndItsStatusTellsTheTruth
	TestLintFindsThreeMistakesAndTheAPIServerAFourth TestTheExamplesPassTarnPavTest TestAuditNamesAnOrphanUntilItIsGone TestTheColumnsSayThatAllIsWell
	TestExplainSaysWhatAClaimWithoutVolumeLacks TestExplainFollowsTheMakingOfAVolume TestExplainSaysWhyAPodHasNotItsVolume
	TestExplainSaysWhatKeepsAClaimThatIsToGo TestExplainTellsWhatItsCallerMayRead
)

# Cases that are not parallel, for nothing else can go on in their cluster: they have one
# of their own, beside that of the others.
alone=(
	TestAClaimInUseWaitsForThePodsThatUseIt
	TestExplainSaysThatTheControllerDoesNotAnswer
	TestExplainSaysThatTheNodeAgentDoesNotAnswer
	TestTheDemoRunsAgainAndItsStatusTellsTheTruth
	TestWhenANodeIsDrainedAStagingPodOutlivesItsConsumers
	TestWhenANodeIsTaintedOrSilentAVolumeInUseStays
	TestWhoeverIsKilled
)
clusters=("$name")
[ $# -gt 0 ] || clusters+=("$name-alone")
# Of a case that somebody has chosen all is wanted.
[ $# -eq 0 ] || export WIDE=1

finish() {
	status=$?
	for cluster in "${clusters[@]}"; do
		if [ "$status" -ne 0 ]; then
			mkdir -p "$logs/$cluster"
			for component in supervisor tarn-install image-import kube-apiserver kube-controller-manager kube-scheduler containerd kubelet tarn-controller tarn-node tarn-api; do
				"$TARN_CLUSTER_BINARY" logs "$component" --name "$cluster" >"$logs/$cluster/$component.log" 2>&1 || true
			done
			for node in $(seq 2 "${NODES:-1}"); do
				for component in kubelet tarn-node; do
					"$TARN_CLUSTER_BINARY" logs "$component" --node "$cluster-$node" --name "$cluster" >"$logs/$cluster/$component-$node.log" 2>&1 || true
				done
			done
			"$TARN_CLUSTER_BINARY" status --name "$cluster" >"$logs/$cluster/status" 2>&1 || true
			echo "e2e: failed; the logs of the cluster are in $logs/$cluster" >&2
		fi
		if [ -n "${KEEP:-}" ]; then
			echo "e2e: the cluster $cluster goes on running; $TARN_CLUSTER_BINARY down --name $cluster ends it" >&2
		else
			"$TARN_CLUSTER_BINARY" down --name "$cluster" >&2 || status=1
		fi
	done
	exit "$status"
}
trap finish EXIT

forget_asked "$suite"
start() {
	local asking
	# What an interrupted run has left would be tested instead of what was built.
	[ -n "${KEEP:-}" ] || "$TARN_CLUSTER_BINARY" down --name "$1"
	# A silent node is given up after two and a half of its kubelet's heartbeats rather than five: a case that waits for it has the
	# cluster to itself. The kubelet measures volumes every 10 to 20 s rather than every minute or two, for which cases wait.
	asked "$suite" "$1"
	"$TARN_CLUSTER_BINARY" up --name "$1" --spend-memory --kube-controller-manager-arg=--node-monitor-grace-period=25s \
		--kubelet-arg=--volume-stats-agg-period=10s "${asking[@]}" \
		${NODES:+"--nodes=$NODES"} ${BINDER:+"--binder=$BINDER"} ${PROTECTION:+"--protection=$PROTECTION"}
}
starting=()
for cluster in "${clusters[@]}"; do
	start "$cluster" >&2 &
	starting+=($!)
done
for one in "${starting[@]}"; do wait "$one"; done

# tests CLUSTER [ARGUMENT]... adds a command that runs cases on a cluster. Most of a case is
# waiting, so more of them run at once than there are processors.
commands=()
tests() {
	local kubeconfig
	kubeconfig=$("$TARN_CLUSTER_BINARY" kubeconfig --name "$1")
	commands+=(-- env "TARN_CLUSTER_NAME=$1" "KUBECONFIG=$kubeconfig" go test -json -tags e2e -count=1 -timeout 90m -parallel 6 "${@:2}" ./e2e)
}
if [ $# -gt 0 ]; then
	tests "$name" "$@"
else
	any_of() { local IFS='|'; echo "^($*)\$"; }
	chosen=()
	if [ -z "${WIDE:-}" ]; then
		chosen=(-run "$(any_of "${core[@]}")")
		mapfile -t alone < <(printf '%s\n' "${alone[@]}" | grep -xF -f <(printf '%s\n' "${core[@]}"))
	fi
	tests "$name" "${chosen[@]}" -skip "^TestAddOn|$(any_of "${alone[@]}")" # hack/addon.sh runs the first
	tests "$name-alone" -run "$(any_of "${alone[@]}")"
fi
go run ./hack/testsum run "$suite" "${commands[@]}"
