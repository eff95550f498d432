#!/usr/bin/env bash
# Part of hack/addon.sh, which runs it: the cases, and then each way to take Tarn away, as `go test -json` tells of tests.
set -euo pipefail
. hack/parts.sh
. hack/addon-uninstall.sh
. hack/addon-uninstall-more.sh

go test -json -tags e2e -count=1 -timeout 60m "$@" ./e2e
[ -z "${KEEP:-}" ] || exit 0

# The same tree and version give the same bytes, also in another folder.
the_image_is_the_same_anywhere() {
	local other file
	other=$(mktemp -d)
	tar --exclude=./.git --exclude=./.tarn --exclude=./bin --create . | tar --extract --directory "$other"
	image "$other" "$other/images" "$first"
	for file in tarn.tar tarn.cdx.json; do
		cmp "$TARN_IMAGES/$first/$file" "$other/images/$file" || fail "$file differs when it is made in another folder"
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
