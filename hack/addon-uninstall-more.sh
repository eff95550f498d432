# Part of hack/addon-suite.sh, as hack/addon-uninstall.sh is: ways that begin with no Tarn there, and end so.

# Nothing refuses a second `kubectl delete -f`: it marks every record, and every stage of a
# volume in use. Whoever uses one goes on, and ends before Tarn is back, as docs/operations/uninstall.md says: then all data is there.
by_kubectl_twice_under_a_writer() {
	local said kept
	applies_the_manifest
	kept=$(shelved)
	# The pod of hack/addon.yaml, on another claim.
	awk 'BEGIN { RS = "---\n" } /kind: Pod\n/' hack/addon.yaml | sed 's/claimName: written/claimName: shelved/' | kubectl apply -f - >&2
	kubectl wait --for=condition=Ready pod/writer --timeout=180s >&2
	! said=$(manifest | kubectl delete --timeout=180s -f - 2>&1) || fail "the records of a volume in use were deleted: $said"
	no_part_runs
	said=$(manifest | kubectl delete --wait=false --ignore-not-found -f - 2>&1) || fail "the second time it says: $said"
	grep -q '"pavvolumes.tarn.dev" deleted' <<<"$said" || fail "the second time it says: $said"
	kubectl wait --for=delete namespace/tarn-system --timeout=180s >&2
	kubectl wait --for=jsonpath='{.metadata.deletionTimestamp}' "pavvol/$kept" crd/pavvolumes.tarn.dev --timeout=180s >&2
	goes_on "after kubectl delete, twice"
	said=$(refuses --keep-volumes)
	grep -q "^    delete the pods that use it, and install Tarn again when .*: tarn explain volume $kept\$" <<<"$said" || fail "it does not say which comes first: $said"
	kubectl delete pod writer --wait=false >&2
	kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/writer --timeout=180s >&2
	# When no stage is left the kind goes, and then nobody can say that a pod has none: it takes a second time.
	manifest | kubectl apply -f - >&2
	kubectl wait --for=delete crd/pavstages.tarn.dev --timeout=180s >&2
	manifest | kubectl apply -f - >&2
	kubectl wait --for=delete pod/writer --timeout=180s >&2
	uninstall --keep-volumes --yes >&2
	nothing_left "$kept" shelved
	applies_the_manifest
	[ "$(shelved)" = "$kept" ] || fail "the claim has another volume"
	uses_shelved "awk 'NR != \$1 { exit 1 } END { exit NR < 3 }' /data/log"
	kubectl delete pvc shelved --timeout=180s >&2
	kubectl delete pv "$kept" --timeout=180s >&2
	uninstall --yes >&2
	nothing_left
}

# What many type first; and an application, which the commands that are said take away without its data. Whatever is to be
# kept, a volume that is being destroyed is so to its end: half of one would be called kept.
with_an_app_where_helm_makes_the_namespace() {
	local said kept other claim=paas-app-board-data
	"$TARN_HELM" install tarn "$TARN_CHART" --namespace tarn-system --create-namespace --set image.tag="$first" --set node.kubeletDir="$TARN_KUBELET_DIR" >&2
	rolled_out deployment/tarn-controller daemonset/tarn-node
	! said=$(kubectl delete namespace tarn-system --dry-run=server 2>&1) || fail "the namespace that helm has made is anybody's to delete: $said"
	grep -q 'to uninstall Tarn without losing data: tarn uninstall' <<<"$said" || fail "kubectl delete does not say what to do: $said"
	rm -f "$shelf/go"
	other=$(shelved) # with the class that the application names
	kubectl delete pvc shelved --timeout=180s >&2
	kubectl wait --for=jsonpath='{.status.phase}'=Deleting "pavvol/$other" --timeout=180s >&2
	bin/tarn app deploy --namespace default --file - >&2 <<-END
		[app]
		name = "board"
		image = "busybox:1.36"
		command = ["sh", "-c", "echo first > /data/log; trap exit TERM; sleep 1d & wait"]
		[[volumes]]
		name = "data"
		mountPath = "/data"
		size = "1Gi"
		storageClass = "addon-shelf"
	END
	kept=$(kubectl get pvc "$claim" --output jsonpath='{.spec.volumeName}')
	said=$(refuses --yes)
	grep -A 1 -x 'application default/board is deployed' <<<"$said" | grep -q '^    kubectl delete app -n default board, which deletes its volumes too' || fail "it does not say what becomes of an application: $said"
	said=$(refuses --keep-volumes --yes)
	said=$(sed -n '/^application default.board is deployed$/{n;s/^    keep its volumes: //p}' <<<"$said")
	[[ $said == *"kubectl patch app "*" && kubectl annotate pvc "*" && kubectl delete app -n default board" ]] || fail "it does not say how an application goes without its data: $said"
	eval "$said" >&2
	kubectl wait --for=delete pod --selector tarn.dev/app=board --timeout=180s >&2
	said=$(kubectl get pavstages --output name)
	[ -z "$said" ] || kubectl wait --for=delete --timeout=180s $said >&2
	begins_uninstalling --keep-volumes
	[ "$heard" = "wait until 1 volumes are destroyed whose claims are gone: $other of default/shelved"$'\n' ] || fail "it does not wait for what is being destroyed, and says: $heard"
	[ -n "$(kubectl -n tarn-system get deployment tarn-controller --output name)" ] || fail "nobody is there to destroy what it waits for"
	[ -d "$shelf/$other" ] || fail "the storage of a volume that is waited for is gone"
	touch "$shelf/go"
	told "$(without_remarks <&"$speaking")" <<-END
		delete tarn-api and tarn-controller and wait until they have ended
		release 1 volumes: their data stays, with reclaim policy Retain
		delete 1 PavProvisioners and their CSIDrivers
		delete tarn-node, admission policies, roles, custom resources and namespace tarn-system
		Tarn is uninstalled
	END
	wait "$uninstalling" || fail "it says that Tarn is uninstalled, and fails"
	[ ! -e "$shelf/$other" ] || fail "the storage of a volume that was waited for is there"
	! kubectl get namespace tarn-system 2>/dev/null >&2 || fail "the namespace is there, which held nothing but Tarn and helm's record of it"
	nothing_left "$kept" "$claim"
	[ "$(cat "$shelf/$kept/log")" = first ] || fail "the data of an application are not: $(ls -lR "$shelf")"
	kubectl delete pvc "$claim" --timeout=180s >&2
	kubectl delete pv "$kept" --timeout=180s >&2
}
