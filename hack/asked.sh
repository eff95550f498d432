# Part of hack/e2e.sh and hack/addon.sh, in the folder of the whole.

# asked CLUSTER gives the arguments for `tarn-cluster up` with which the API server writes down what Tarn's accounts ask for.
# `make run-rights` holds that against what their roles grant, so what an earlier run has left is taken away.
asked() {
	local log=$PWD/.tarn/asked/$1.log
	[ -n "${KEEP:-}" ] || rm -f "$log" "${log%.log}.until"
	mkdir -p "${log%/*}"
	printf -- '--kube-apiserver-arg=%s ' "--audit-policy-file=$PWD/hack/audit.yaml" "--audit-log-path=$log" --audit-log-maxsize=4000
}

# asked_until_now CLUSTER has what is asked for from now on left out of that, as Tarn is taken away, and its rights before it has ended.
asked_until_now() { date -u +%FT%TZ >"$PWD/.tarn/asked/$1.until"; }
