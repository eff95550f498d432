#!/usr/bin/env bash
# Measures what controller and node agent hold of memory, each on a cluster of its own:
# 10,000 volumes on an API server alone, 100 stages on a node. About 7 minutes on 2 cores.
# One that misses its limit takes nothing from the other; the exit status says so in the end.
#
#   hack/bench-memory.sh [FOLDER FOR HEAP PROFILES]
set -euo pipefail
cd "$(dirname "$0")/.."

name=tarn-bench-memory
profiles=${1:-}
folder=$(mktemp -d)
on_cluster() { bin/tarn-cluster "$@" --name "$name"; }

# A container's memory is what its cgroup is charged, so either process gets one; and a page of a file is charged to whoever
# reads it first, so either has a copy of the program that nobody has read.
groups=/sys/fs/cgroup/memory
[ -d "$groups" ] || groups=/sys/fs/cgroup
for part in controller node; do
	cp bin/tarn "$folder/$part"
	sync "$folder/$part"
	mkdir -p "$groups/$name-$part"
done
cat >"$folder/tarn" <<END
#!/bin/sh
case \$1 in
controller | node)
	dd if="$folder/\$1" iflag=nocache count=0 status=none # as an earlier start has read it
	echo \$\$ >"$groups/$name-\$1/cgroup.procs"
	exec "$folder/\$1" "\$@"
	;;
esac
exec "$PWD/bin/tarn" "\$@"
END
chmod +x "$folder/tarn"

finish() {
	on_cluster down >&2
	rmdir "$groups/$name-controller" "$groups/$name-node"
	rm -f "$folder/tarn" "$folder/controller" "$folder/node"
	rmdir "$folder"
}
trap finish EXIT

on_cluster up --control-plane-only >&2
KUBECONFIG=$(on_cluster kubeconfig)
export KUBECONFIG
status=0
go run ./bench/memory controller -tarn "$folder/tarn" ${profiles:+-profile "$profiles/controller"} || status=1
on_cluster down >&2

on_cluster up --tarn-binary "$folder/tarn" --tarn-node-arg=--pprof-bind-address=127.0.0.1:16060 >&2
pid=$(on_cluster status | awk '$1 == "tarn-node" { print $3 }')
go run ./bench/memory node -pid "$pid" ${profiles:+-profile "$profiles/node" -pprof 127.0.0.1:16060} || status=1
exit "$status"
