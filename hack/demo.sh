#!/usr/bin/env bash
# The demo: from a fresh checkout to a pod that reads its volume.
set -euo pipefail
cd "$(dirname "$0")/.."

began=$SECONDS
stage() { printf '\n== %s\n   (%s; %d s so far)\n' "$1" "$2" $((SECONDS - began)); }

stage "1/5 what this machine lacks" "usually seconds; Debian packages are installed by name"
make --no-print-directory deps

stage "2/5 building Tarn" "about 2 minutes the first time, then seconds"
make --no-print-directory bin/tarn

stage "3/5 building Kubernetes, etcd, containerd and runc" "about 8 minutes the first time on 2 cores, then seconds"
make --no-print-directory cluster-binaries

stage "4/5 starting the cluster" "about 20 seconds, or nothing if it runs"
# A cluster that runs another Tarn than the one just built goes on with this one.
built=.tarn/demo-runs
now=$(sha256sum bin/tarn bin/tarn-cluster)
if bin/tarn-cluster status >/dev/null 2>&1 && [ "$(cat "$built" 2>/dev/null)" != "$now" ]; then
	echo "   Tarn is another one than when the cluster was started: restarting it, its data stays"
	bin/tarn-cluster down --keep-data
fi
bin/tarn-cluster up
mkdir -p .tarn
echo "$now" >"$built"

stage "5/5 hello, world" "usually 5 seconds"
KUBECONFIG=$(bin/tarn-cluster kubeconfig) go run ./hack/demo
printf '\nThe demo took %d s. `make down` removes the cluster.\n' $((SECONDS - began))
