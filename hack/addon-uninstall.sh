# Part of hack/addon-suite.sh, which sources it: takes Tarn away in every state in which that
# means something, and wants each line it says to be true and nothing of it to be left.
# One after the other, as it concerns everything in the cluster.

shelf=$(dirname "$KUBECONFIG")/shelf

fail() { echo "addon: $*" >&2; return 1; }

# told SAID: wants what was said to be, line by line, what the patterns of stdin allow.
told() {
	local said=$1 want number=0
	local -a lines
	mapfile -t lines <<<"$said"
	while IFS= read -r want; do
		[[ ${lines[number]:-} =~ ^$want$ ]] || fail "line $((number + 1)) is not '$want' in: $said" || return
		number=$((number + 1))
	done
	[ "${#lines[@]}" = "$number" ] || fail "more than $number lines were said: $said"
}

uninstall() { bin/tarn uninstall "$@" 2>&1; }

# What a slow machine has it say between its steps, with an indent, is no step.
without_remarks() { sed '/^  /d'; }

# refuses ARGUMENT...: what `tarn uninstall` says, which must fail with it.
refuses() {
	local said
	! said=$(uninstall "$@") || fail "nothing was in its way: $said" || return
	echo "$said"
}

# mounts are those of the kubelet, which sees all of the node.
mounts() {
	local state pid
	state=$(on_cluster status --output json)
	pid=$(sed -n '/"name": "kubelet"/,/"pid"/s/.*"pid": \([0-9]*\).*/\1/p' <<<"$state")
	[[ $pid =~ ^[0-9]+$ ]] || fail "no process of the kubelet is in: $state" || return
	cat "/proc/$pid/mountinfo"
}

# matching PATTERN...: the lines of stdin that grep finds, of which there may be none.
matching() { grep "$@" || [ $? = 1 ]; }

# nothing_left [VOLUME CLAIM]: wants nothing of Tarn in the cluster and on its node, but for
# a volume that was to be kept and its claim. Whoever cannot tell has not said that there is nothing.
nothing_left() {
	local objects classes storage table folder left kinds=crd,namespace,clusterrole,clusterrolebinding,role,rolebinding,csidriver,networkpolicy,pod,poddisruptionbudget
	kinds+=,validatingadmissionpolicy,validatingadmissionpolicybinding,mutatingadmissionpolicy,mutatingadmissionpolicybinding
	objects=$(kubectl get --all-namespaces --output name "$kinds") || fail "objects cannot be listed" || return
	grep -qx namespace/default <<<"$objects" || fail "what is listed of every namespace is: $objects" || return
	classes=$(kubectl get storageclass --output name) || fail "classes cannot be listed" || return
	# What Tarn has to do with a claim or a volume, its finalizers, annotations or driver tell.
	storage=$(kubectl get --all-namespaces persistentvolumes,persistentvolumeclaims --output go-template='{{range .items}}{{.kind}} {{.metadata.name}} {{.metadata.finalizers}} {{.metadata.annotations}} {{with .spec.csi}}{{.driver}}{{end}}
{{end}}') || fail "volumes cannot be listed" || return
	left=$(
		matching -E 'tarn|pav|ovh|xfs|shared' <<<"$objects"
		matching tarn <<<"$classes"
		matching -v -e "^PersistentVolume ${1:-none} " -e "^PersistentVolumeClaim ${2:-none} " <<<"$storage" | matching -E 'tarn|pav|ovh|xfs|shared'
	)
	[ -z "$left" ] || fail "after uninstalling there are: $left" || return
	table=$(mounts) || fail "the mounts of the node cannot be read" || return
	left=$(matching -E 'kubernetes.io~csi|plugins/pav.tarn.dev' <<<"$table")
	[ -z "$left" ] || fail "after uninstalling the node has mounts: $left" || return
	# The folder stays with its id, by which volumes that were kept in it are known again.
	folder=$(ls -A --ignore=.tarn-root "$TARN_HOST_PATH_ROOT") || fail "the folder of the node cannot be read" || return
	[ -z "$folder" ] || fail "after uninstalling the folder of the node has volumes: $folder"
}

# The writer ends with its first failing write, and is not started again.
goes_on() {
	timeout 30 kubectl exec writer -- sh -c 'tail -n 0 -f /data/log | head -n 3' >/dev/null || fail "the writer does not go on $1"
	kubectl exec writer -- awk 'NR != $1 { exit 1 }' /data/log || fail "something was lost $1"
}

who_runs() { # VOLUME: the pod that writes to it, and the one that makes it available
	kubectl get pod writer --output jsonpath='{.metadata.uid} {.status.phase}{"\n"}'
	kubectl get pods --namespace tarn-system --selector "tarn.dev/volume=$1" --output jsonpath='{range .items[*]}{.metadata.uid} {.status.phase}{"\n"}{end}'
}

# helm takes away what serves a volume in use, and brings it back; the volume notices
# nothing, nor does the pod in Tarn's namespace that makes it available as long as it is used.
under_a_writer() {
	local said pods volume
	kubectl apply -f hack/addon.yaml >&2
	kubectl wait --for=condition=Ready pod/writer --timeout=180s >&2
	goes_on "at the beginning"
	said=$(refuses --yes)
	grep -q 'is in use on node' <<<"$said" || fail "a volume in use is not named: $said"
	volume=$(kubectl get pvc written --output jsonpath='{.spec.volumeName}')
	pods=$(who_runs "$volume")
	[ "$(grep -c Running <<<"$pods")" = 2 ] || fail "not two pods run: $pods"
	"$TARN_HELM" uninstall tarn >&2
	kubectl -n tarn-system wait --for=delete pod --selector app.kubernetes.io/name=tarn --timeout=180s >&2
	goes_on "with no part of Tarn there"
	install
	goes_on "under the Tarn that came back"
	[ "$pods" = "$(who_runs "$volume")" ] || fail "the pods were $pods, and are $(who_runs "$volume")"
	kubectl delete --timeout=180s -f hack/addon.yaml >&2
	kubectl wait --for=delete "pv/$volume" --timeout=180s >&2
}

# shelved gives the volume of claim shelved, as soon as it is bound.
shelved() {
	mkdir -p "$shelf"
	sed "s#SHELF#$shelf#" hack/addon-shelf.yaml | kubectl apply -f - >&2
	kubectl wait --for=jsonpath='{.status.phase}'=Bound pvc/shelved --timeout=180s >&2
	kubectl get pvc shelved --output jsonpath='{.spec.volumeName}'
}

# begins_uninstalling [ARGUMENT]... does so as process "uninstalling", and returns when it waits for
# volumes to be destroyed. What it has said is "heard" then; what it says later comes from fd "speaking".
begins_uninstalling() {
	local line
	exec {speaking}< <(exec bin/tarn uninstall --yes "$@" 2>&1)
	uninstalling=$! heard=
	while IFS= read -r -t 120 line <&"$speaking"; do
		heard+=$line$'\n'
		[[ $line != "wait until "* ]] || return 0
	done
	fail "it does not come to wait for volumes, and says: $heard"
}

# A pool of twenty spares, one of them protected, and a volume whose deletion takes its
# time: what is in the way, the plan, and that it is kept to, also where a first run was ended.
with_a_pool() {
	local going spare way
	going=$(shelved)
	kubectl delete pvc shelved --timeout=180s >&2
	kubectl wait --for=jsonpath='{.status.phase}'=Deleting "pavvol/$going" --timeout=180s >&2
	kubectl apply -f hack/addon-pool.yaml >&2
	kubectl wait --for=condition=Ready pvset/addon-spare --timeout=180s >&2
	spare=$(kubectl get pv --selector pool=addon-spare --output jsonpath='{.items[7].metadata.name}')
	kubectl label pv "$spare" tarn.dev/deletion-protection=true >&2
	for way in "" --yes; do
		told "$(refuses $way)" <<-END
			volume $spare is protected from deletion
			    kubectl label pv $spare tarn.dev/deletion-protection-; to keep its data: --keep-volumes
			tarn: not uninstalled: see above the obstacles \(1\) and what to do about each
		END
	done
	[ "$(kubectl get pv --selector pool=addon-spare --output name | wc -l)" -ge 20 ] || fail "what was refused was begun"
	kubectl label pv "$spare" tarn.dev/deletion-protection- >&2
	told "$(uninstall)" <<-END
		1. delete 1 PersistentVolumeSets and wait until the spare volumes of their pools are destroyed
		2. wait until [0-9]+ volumes are destroyed whose claims are gone: .* of .*
		3. delete tarn-api and tarn-controller and wait until they have ended
		4. delete 3 PavProvisioners and their CSIDrivers
		5. delete tarn-node, admission policies, roles, custom resources and namespace tarn-system
		nothing was changed; to run these steps, add --yes
	END
	begins_uninstalling
	[ -z "$(kubectl get pvset --output name)" ] || fail "the pool is there, and it says: $heard"
	kill "$uninstalling"
	! wait "$uninstalling" || fail "it was ended, and says that all is well"
	begins_uninstalling
	[ -n "$(kubectl -n tarn-system get deployment tarn-controller --output name)" ] || fail "nobody is there to destroy what it waits for"
	[ -d "$shelf/$going" ] || fail "the storage of a volume that is waited for is gone"
	touch "$shelf/go"
	told "$heard$(without_remarks <&"$speaking")" <<-END
		wait until [0-9]+ volumes are destroyed whose claims are gone: .* of .*
		delete tarn-api and tarn-controller and wait until they have ended
		delete 3 PavProvisioners and their CSIDrivers
		delete tarn-node, admission policies, roles, custom resources and namespace tarn-system
		Tarn is uninstalled
	END
	wait "$uninstalling" || fail "it says that Tarn is uninstalled, and fails"
	[ ! -e "$shelf/$going" ] || fail "the storage of a volume that was waited for is there"
}

# uses_shelved COMMAND: runs it in a pod that uses claim shelved, to its end and that of the volume's stage.
uses_shelved() {
	local stages
	kubectl apply -f - >&2 <<-END
		apiVersion: v1
		kind: Pod
		metadata: {name: user, namespace: default}
		spec:
		  restartPolicy: Never
		  containers:
		    - {name: main, image: "busybox:1.36", command: [sh, -ec, "$1"], volumeMounts: [{name: data, mountPath: /data}]}
		  volumes: [{name: data, persistentVolumeClaim: {claimName: shelved}}]
	END
	kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/user --timeout=180s >&2
	kubectl delete pod user --timeout=180s >&2
	stages=$(kubectl get pavstages --output name)
	[ -z "$stages" ] || kubectl wait --for=delete --timeout=180s $stages >&2
}

# slow_spares makes a pool of two volumes that go as slowly as that of claim shelved, and names them.
slow_spares() {
	sed 's/addon-spare/addon-slow/; s/minimumReplicas: 20/minimumReplicas: 2/; s#provisioner: .*#provisioner: addon-shelf#' hack/addon-pool.yaml | kubectl apply -f - >&2
	kubectl wait --for=condition=Ready pvset/addon-slow --timeout=180s >&2
	kubectl get pv --selector pool=addon-slow --output jsonpath='{.items[*].metadata.name}'
}

# With --keep-volumes a volume stays, bound and with what is on it; a Tarn that comes later
# serves it again, and says that it cannot destroy it.
keeping_a_volume() {
	local kept spares spare finishing
	install
	rm -f "$shelf/go"
	kept=$(shelved)
	spares=$(slow_spares)
	uses_shelved 'echo first > /data/log'
	told "$(refuses)" <<-END
		volume $kept belongs to claim default/shelved
		    kubectl delete pvc -n default shelved; to keep its data: --keep-volumes
		tarn: not uninstalled: see above the obstacles \(1\) and what to do about each
	END
	told "$(uninstall --keep-volumes)" <<-END
		1. delete 1 PersistentVolumeSets and wait until the spare volumes of their pools are destroyed
		2. delete tarn-api and tarn-controller and wait until they have ended
		3. release 1 volumes: their data stays, with reclaim policy Retain
		4. delete 1 PavProvisioners and their CSIDrivers
		5. delete tarn-node, admission policies, roles, custom resources and namespace tarn-system
		nothing was changed; to run these steps, add --yes
	END
	( # spares are destroyed, however long that takes, before the controllers end
		kubectl wait --for=delete pvset/addon-slow --timeout=180s >&2
		[ -n "$(kubectl -n tarn-system get deployment tarn-controller --output name)" ] && touch "$shelf/go"
	) &
	finishing=$!
	told "$(uninstall --keep-volumes --yes | without_remarks)" <<-END
		delete 1 PersistentVolumeSets and wait until the spare volumes of their pools are destroyed
		delete tarn-api and tarn-controller and wait until they have ended
		release 1 volumes: their data stays, with reclaim policy Retain
		delete 1 PavProvisioners and their CSIDrivers
		delete tarn-node, admission policies, roles, custom resources and namespace tarn-system
		Tarn is uninstalled
	END
	wait "$finishing" || fail "the controllers ended before the spares were destroyed"
	for spare in $spares; do
		[ ! -e "$shelf/$spare" ] || fail "the storage of spare $spare is there"
	done
	nothing_left "$kept" shelved
	told "$(kubectl get "pv/$kept" pvc/shelved --output jsonpath='{range .items[*]}{.kind} {.status.phase} {.spec.persistentVolumeReclaimPolicy} {.metadata.finalizers}{"\n"}{end}')" <<-'END'
		PersistentVolume Bound Retain \["kubernetes.io/pv-protection"\]
		PersistentVolumeClaim Bound  \["kubernetes.io/pvc-protection"\]
	END
	[ "$(cat "$shelf/$kept/log")" = first ] || fail "the data of a volume that was kept are not: $(ls -lR "$shelf")"

	install
	[ "$(shelved)" = "$kept" ] || fail "the claim has another volume"
	uses_shelved 'grep -qx first /data/log; echo second >> /data/log'
	[ "$(cat "$shelf/$kept/log")" = first$'\n'second ] || fail "a volume that was kept has: $(cat "$shelf/$kept/log")"
	kubectl delete pvc shelved --timeout=180s >&2
	kubectl wait --for=jsonpath='{.status.phase}'=Released "pv/$kept" --timeout=180s >&2
	told "$(refuses)" <<-END
		volume $kept was left by an earlier Tarn, and no record says how to destroy its storage
		    kubectl delete pv $kept, and delete its storage yourself; to keep its data: --keep-volumes
		tarn: not uninstalled: see above the obstacles \(1\) and what to do about each
	END
	kubectl delete pv "$kept" --timeout=180s >&2
	[ -e "$shelf/$kept/log" ] || fail "the data of a volume that Tarn was not to destroy are gone"
}

# The manifest as docs/operations/install.md has it, with an image and a kubelet's folder of this cluster.
manifest() {
	sed "s#tarn.dev/tarn:v[0-9.]*#tarn.dev/tarn:$first#; s#/var/lib/kubelet#$TARN_KUBELET_DIR#" deploy/tarn.yaml
}

applies_the_manifest() {
	manifest | kubectl apply -f - >&2
	rolled_out deployment/tarn-controller daemonset/tarn-node
}

from_the_manifest() {
	applies_the_manifest
	kubectl apply -f examples/hello-world >&2
	kubectl wait --for=jsonpath='{.status.phase}'=Bound pvc/hello-world --timeout=180s >&2
	kubectl wait --for=condition=Ready pod/hello-world --timeout=180s >&2
	kubectl delete --timeout=180s -f examples/hello-world >&2
}

# unguarded COMMAND...: runs a command that policy deletion.tarn.dev refuses, once that is gone: the API server goes by a policy for a moment
# after it was deleted. Any other refusal is one.
unguarded() {
	local said began=$SECONDS
	until said=$("$@" 2>&1); do
		[[ $said == *deletion.tarn.dev* && $((SECONDS - began)) -lt 30 ]] || fail "$* says: $said" || return
		sleep .2
	done
}

no_part_runs() { kubectl -n tarn-system wait --for=delete pod --selector app.kubernetes.io/name=tarn --timeout=180s >&2; }

# Whoever has deleted the manifest under a volume in use, and then what uses it, has all of
# that hang; it goes when the manifest is applied again, as docs/operations/uninstall.md says.
by_kubectl_under_a_writer() {
	local said volume
	kubectl apply -f hack/addon.yaml >&2
	kubectl wait --for=condition=Ready pod/writer --timeout=180s >&2
	volume=$(kubectl get pvc written --output jsonpath='{.spec.volumeName}')
	! said=$(manifest | kubectl delete --timeout=180s -f - 2>&1) || fail "the records of a volume in use were deleted: $said"
	grep -q 'to uninstall Tarn without losing data: tarn uninstall' <<<"$said" || fail "kubectl delete does not say what to do: $said"
	no_part_runs
	goes_on "with no part of Tarn there, after kubectl delete"
	kubectl delete --wait=false -f hack/addon.yaml >&2
	# Its containers have ended, and it stays: nobody takes its volume back.
	kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/writer --timeout=180s >&2
	applies_the_manifest
	kubectl wait --for=delete --timeout=180s pod/writer pvc/written "pv/$volume" "pavvol/$volume" pavprovisioner/addon-served >&2
	[ -z "$(kubectl get pavstages --output name)" ] || fail "a volume that is gone is staged: $(kubectl get pavstages --output yaml)"
}

# Helm takes over what it did not make, where it is told to.
helm_takes_over() {
	local said
	! said=$("$TARN_HELM" upgrade --install tarn "$TARN_CHART" 2>&1) || fail "helm took over unasked: $said"
	grep -q 'invalid ownership metadata' <<<"$said" || fail "helm does not say whose the manifest's objects are: $said"
	"$TARN_HELM" upgrade --install tarn "$TARN_CHART" --take-ownership --force-conflicts --set image.tag="$first" --set node.kubeletDir="$TARN_KUBELET_DIR" >&2
	rolled_out deployment/tarn-controller daemonset/tarn-node
}

delete_the_manifest() { manifest | kubectl delete --wait=false --ignore-not-found -f -; }

# Both wrong ways after each other, with a claim, a pool and a provisioner there that only
# a controller would let go of: what docs/operations/uninstall.md says then leaves nothing stuck, and the data.
after_every_controller() {
	local kept spares
	rm -f "$shelf/go"
	kept=$(shelved)
	spares=$(slow_spares)
	uses_shelved 'echo first > /data/log'
	"$TARN_HELM" uninstall tarn >&2
	no_part_runs
	unguarded delete_the_manifest
	grep -q 'none of its controllers works\|no controller of Tarn works' <<<"$(refuses)" || fail "it does not say that nobody destroys what there is"
	uninstall --keep-volumes --yes >&2
	# The spares stay as volumes do, as nobody was there to destroy them. The class they were
	# made by Kubernetes' garbage collector removes.
	kubectl delete pv $spares --timeout=180s >&2
	kubectl wait --for=delete storageclass/tarn-pool-addon-slow --timeout=180s >&2
	nothing_left "$kept" shelved
	[ "$(cat "$shelf/$kept/log")" = first ] || fail "the data of a volume that was kept are not: $(ls -lR "$shelf")"
	kubectl delete pvc shelved --timeout=180s >&2
	kubectl delete pv "$kept" --timeout=180s >&2
}

# Others have put something into Tarn's namespace: it is named, and goes on as before.
beside_others() {
	local was said
	kubectl -n tarn-system create configmap theirs --from-literal=key=value >&2
	kubectl -n tarn-system create secret generic theirs --from-literal=key=value >&2
	kubectl -n tarn-system apply -f - >&2 <<-END
		apiVersion: v1
		kind: PersistentVolumeClaim
		metadata: {name: theirs}
		spec: {storageClassName: theirs, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
	END
	kubectl -n tarn-system create deployment theirs --image=busybox:1.36 -- sh -c 'trap exit TERM; sleep 1d & wait' >&2
	rolled_out deployment/theirs
	was=$(kubectl -n tarn-system get pods --selector app=theirs --output jsonpath='{.items[*].metadata.uid}')
	said=$(uninstall --yes | without_remarks)
	grep -q "namespace tarn-system stays, with objects that are not Tarn's: ConfigMap theirs, Deployment theirs, PersistentVolumeClaim theirs, Secret theirs\$" <<<"$said" || fail "what others have is not named: $said"
	[ "$(tail -n 1 <<<"$said")" = "Tarn is uninstalled" ] || fail "it does not come to its end: $said"
	[ "$was" = "$(kubectl -n tarn-system get pods --selector app=theirs --output jsonpath='{.items[*].metadata.uid}')" ] || fail "the pod of others is another one"
	kubectl -n tarn-system wait --for=condition=Ready pod --selector app=theirs --timeout=180s >&2
	# Nothing of Tarn's is left there, when Kubernetes has cleared up.
	kubectl -n tarn-system wait --for=delete replicaset,pod --selector app.kubernetes.io/name=tarn --timeout=180s >&2
	told "$(kubectl -n tarn-system get configmaps,secrets,persistentvolumeclaims,services,deployments,daemonsets,serviceaccounts,leases,networkpolicies,roles,rolebindings,poddisruptionbudgets --output name)" <<-END
		configmap/kube-root-ca.crt
		configmap/theirs
		secret/theirs
		persistentvolumeclaim/theirs
		deployment.apps/theirs
		serviceaccount/default
	END
	kubectl delete namespace tarn-system --timeout=180s >&2
}

# and_nothing_is_left when helm has forgotten its release, whose objects are gone by now.
and_nothing_is_left() {
	"$TARN_HELM" uninstall tarn >&2
	nothing_left
}

# ways is what is tried each time, and where every case is, all of it, in the order in which one leads to the next.
ways=(under_a_writer with_a_pool and_nothing_is_left)
[ -z "${WIDE:-}" ] || ways+=(
	from_the_manifest by_kubectl_under_a_writer helm_takes_over after_every_controller
	keeping_a_volume beside_others and_nothing_is_left
	with_an_app_where_helm_makes_the_namespace
	by_kubectl_twice_under_a_writer # the kubelet may wait for minutes before it looks again
)
