# Part of hack/e2e.sh and hack/addon.sh, in the folder of the whole.
#
# What a cluster is asked for lies in .tarn/asked/SUITE/CLUSTER.log, as suites may have clusters of one name, one after the other.

# runs CLUSTER says whether a cluster is there, though it may not be ready: its API server writes on to the log that it has open.
runs() { [[ $("$TARN_CLUSTER_BINARY" status --name "$1" 2>/dev/null) != *": Down" ]]; }

# forget_asked SUITE takes away what clusters have left that run no more, of this name or another, before any of the suite is started.
forget_asked() {
	local log cluster
	for log in "$PWD/.tarn/asked/$1"/*.log; do
		cluster=${log##*/} cluster=${cluster%.log}
		[ ! -e "$log" ] || runs "$cluster" || rm -f "$log" "${log%.log}.until"
	done
}

# asked SUITE CLUSTER fills the array `asking` with the arguments for `tarn-cluster up` with which the API server writes down what
# Tarn's accounts ask for. `make run-rights` holds that against what their roles grant, so what an earlier run has left is taken away;
# that of a cluster which KEEP=1 has left running goes on, with Tarn in it again.
asked() {
	local log=$PWD/.tarn/asked/$1/$2.log
	mkdir -p "${log%/*}"
	rm -f "${log%.log}.until"
	runs "$2" || rm -f "$log"
	asking=()
	local argument
	for argument in "--audit-policy-file=$PWD/hack/audit.yaml" "--audit-log-path=$log" --audit-log-maxsize=4000; do
		asking+=("--kube-apiserver-arg=$argument")
	done
}

# asked_until_now SUITE CLUSTER has what is asked for from now on left out of that, as Tarn is taken away, and its rights before it has ended.
asked_until_now() { date -u +%FT%TZ >"$PWD/.tarn/asked/$1/$2.until"; }
