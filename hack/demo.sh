#!/usr/bin/env bash
# The demo: from a fresh checkout to a pod that reads its volume. It runs in the
# cluster TARN_CLUSTER_NAME, `tarn` if that is not set.
set -euo pipefail
cd "$(dirname "$0")/.."

began=$SECONDS
name=${TARN_CLUSTER_NAME:-tarn}
on_cluster() { bin/tarn-cluster "$@" --name "$name"; }
stage() { printf '\n== %s\n   (%s; %d s so far)\n' "$1" "$2" $((SECONDS - began)); }

stage "1/4 what this machine lacks" "usually seconds; Debian packages are installed by name"
make --no-print-directory deps

stage "2/4 building Tarn, Kubernetes, etcd, containerd and runc" "seconds, or minutes the first time"
make --no-print-directory build ALSO=demo

stage "3/4 starting the cluster" "about 20 seconds, or nothing if it runs"
# A cluster that runs another Tarn than the one just built goes on with this one.
built=.tarn/runs-in-$name
now=$(sha256sum bin/tarn bin/tarn-cluster)
if on_cluster status >/dev/null 2>&1 && [ "$(cat "$built" 2>/dev/null)" != "$now" ]; then
	echo "   Tarn is another one than when the cluster was started: restarting it, its data stays"
	on_cluster down --keep-data
fi
on_cluster up
echo "$now" >"$built"

stage "4/4 hello, world" "usually 5 seconds"
KUBECONFIG=$(on_cluster kubeconfig) .tarn/demo
printf '\nThe demo took %d s. `make down` removes the cluster.\n' $((SECONDS - began))
