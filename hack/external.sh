#!/usr/bin/env bash
# Runs Kubernetes' storage tests for drivers outside its tree against ready provisioners, on a
# cluster of their own. hack/external/drivers/NAME.yaml says what a provisioner is tested for.
#
#   hack/external.sh [NAME]...
#
# Without names, each that has such a file. FOCUS is a regular expression of the tests to run, and
# PROCS how many at once. KEEP=1 leaves the cluster running, and uses it if it runs. The output is
# left in .tarn/external.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 PATH=$PWD/bin:$PATH
unset KUBECONFIG # what ends the run must not find the caller's cluster
cluster=${TARN_CLUSTER_NAME:-tarn-external} prefix=external pool=4Gi
logs=$PWD/.tarn/external
names=("$@")
[ $# -gt 0 ] || names=(btrfs xfs shared bucket encrypted)
for name in "${names[@]}"; do
	[ -e "hack/external/drivers/$name.yaml" ] || { echo "external: there is no hack/external/drivers/$name.yaml" >&2; exit 1; }
done
scratch=$(mktemp -d /var/tmp/tarn-external.XXXXXX)
chmod 0711 "$scratch"
. hack/shelf.sh

finish() {
	status=$?
	set +e
	[ -z "${KUBECONFIG:-}" ] || finish_shelf
	[ -n "${KEEP:-}" ] || tarn-cluster down --name "$cluster" >&2 || status=1
	rm -rf --one-file-system "$scratch"
	exit "$status"
}
trap finish EXIT

mkdir -p "$logs"
for each in ./agnhost github.com/onsi/ginkgo/v2/ginkgo; do go build -C hack/external -o "$scratch/" "$each"; done
go test -C hack/external -c -o "$scratch/external.test" .
tarn-cluster up --name "$cluster" >&2
KUBECONFIG=$(tarn-cluster kubeconfig --name "$cluster")
export KUBECONFIG

# The tests' images: busybox stands for all, with the part of agnhost that is used.
(cd "$scratch" && apt-get -qq download busybox-static && dpkg-deb -x busybox-static_*.deb busybox) 2>/dev/null
mkdir -p "$scratch/root/"{bin,tmp,etc}
find "$scratch/busybox" -name busybox -type f -exec install {} "$scratch/root/bin/" \;
for applet in $("$scratch/root/bin/busybox" --list); do [ "$applet" = busybox ] || ln -s busybox "$scratch/root/bin/$applet"; done
cp "$scratch/agnhost" "$scratch/root/"
for tag in $("$scratch/external.test" --list-images | sed -n 's#^registry.k8s.io/e2e-test-images/##p' | grep -E '^(agnhost|busybox|glibc-dns-testing|nginx):'); do
	entrypoint=()
	[[ $tag != agnhost:* ]] || entrypoint=(/agnhost)
	tarn-cluster image build --name "$cluster" --tag "registry.k8s.io/e2e-test-images/$tag" --rootfs "$scratch/root" "${entrypoint[@]}" >&2
done

# Left out is what other test images, nodes to log in to, Windows or SELinux are needed for.
skipped='any volume data source|\[Disruptive\]|\[Feature:Windows\]|\[Feature:SELinux'
failed=()
for name in "${names[@]}"; do
	ready "$name"
	# The kubelet cannot unmount what FUSE reports as missing; the README of each says what to do. A
	# bucket has no symbolic links, with which these tests lead out of a volume.
	lacking=
	case $name in bucket | encrypted) lacking='|unmount after the subpath directory is deleted' ;; esac
	[ "$name" != bucket ] || lacking+='|should fail if .*subpath .*is outside the volume'
	echo "external: $name; the tests write to .tarn/external/$name.log" >&2
	"$scratch/ginkgo" --procs "${PROCS:-3}" --no-color --focus "External Storage.*${FOCUS:-}" --skip "$skipped$lacking" --silence-skips \
		--output-dir "$logs" --junit-report "$name.xml" \
		"$scratch/external.test" -- --kubeconfig "$KUBECONFIG" --provider local --storage.testdriver "$PWD/hack/external/drivers/$name.yaml" \
		>"$logs/$name.log" 2>&1 || failed+=("$name")
	grep -E '^(Ran |FAIL!|SUCCESS!|  \[FAIL\])' "$logs/$name.log" | sed "s/^/$name: /" || tail -n 5 "$logs/$name.log"
done
[ ${#failed[@]} = 0 ] || { echo "external: failed: ${failed[*]}; see .tarn/external" >&2; exit 1; }
