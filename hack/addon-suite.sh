#!/usr/bin/env bash
# Part of hack/addon.sh, which runs it: the cases, and then each way to take Tarn away, as `go test -json` tells of tests.
set -euo pipefail
. hack/asked.sh
. hack/parts.sh
. hack/addon-uninstall.sh
. hack/addon-uninstall-more.sh

go test -json -tags e2e -count=1 -timeout 90m "$@" ./e2e
[ -z "${KEEP:-}${NODES:-}" ] || exit 0
asked_until_now addon "$TARN_CLUSTER_NAME"

# The same tree and version give the same bytes, also in another folder and where somebody has exported what suits
# other builds. Of the other architecture, which takes minutes to compile, the wide one shows that as well.
the_image_is_the_same_anywhere() {
	local other file architecture
	local -a architectures=("$(go env GOARCH)")
	other=$(mktemp -d)
	[ -z "${WIDE:-}" ] || architectures=(amd64 arm64)
	mkdir "$other/tree"
	tar --exclude=./.git --exclude=./.tarn --exclude=./bin --create . | tar --extract --directory "$other/tree"
	go -C hack/image build -o "$other/pack" .
	for architecture in "${architectures[@]}"; do
		image "$PWD" "$other/here/$architecture" "$first" "$architecture"
		GOAMD64=v3 GOARM64=v9.0 GOEXPERIMENT=jsonv2 GOFIPS140=latest GOFLAGS=-tags=other CGO_ENABLED=1 \
			"$other/pack" --root="$other/tree" --out="$other/there/$architecture" --arch="$architecture" --image="tarn.dev/tarn:$first" --version="v0.0.0-$first" >&2
		for file in tarn.tar tarn.cdx.json; do
			cmp "$other/here/$architecture/$file" "$other/there/$architecture/$file" || fail "$file for $architecture differs when it is made elsewhere"
		done
		# The bill of an image is that of its first binary.
		cmp "$other/here/${architectures[0]}/tarn.cdx.json" "$other/here/$architecture/tarn.cdx.json" || fail "$architecture is linked from other modules"
	done
	rm -r "$other"
}

# What the cases have left is nothing, so nothing is in the way. Most of this is waiting, so an image is packed meanwhile.
meanwhile=$(mktemp)
parts hack/image the_image_is_the_same_anywhere >"$meanwhile" &
packing=$!
set +e
parts hack/addon-uninstall "${ways[@]}"
status=$?
wait "$packing" || status=1
cat "$meanwhile"
rm "$meanwhile"
exit "$status"
