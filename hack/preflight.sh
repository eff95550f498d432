#!/usr/bin/env bash
# Says in one line what keeps this machine from building Tarn; silent if nothing does.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
	echo "make: $*" >&2
	exit 1
}

[ "$(uname -s)" = Linux ] || fail "Tarn's embedded cluster runs on Linux; this is $(uname -s)"
command -v go >/dev/null || fail "Go 1.26 or newer is needed and not installed: https://go.dev/dl"

# Asked in the module, where a Go that can fetch a newer one answers with the newer one.
version=$(go env GOVERSION 2>/dev/null) || fail "go does not run here: $(go env GOVERSION 2>&1 | head -n 1)"
IFS=. read -r major minor _ <<<"${version#go}"
minor=${minor%%[!0-9]*}
if [ "$major" -lt 1 ] || { [ "$major" -eq 1 ] && [ "$minor" -lt 26 ]; }; then
	fail "Go 1.26 or newer is needed, found $version at $(command -v go): https://go.dev/dl"
fi
