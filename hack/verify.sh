#!/usr/bin/env bash
# Checks what no test does: format, vet, that generated files are what the code
# generates, that go.mod is tidy, and lint. Says every check it makes.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=0
check() {
	local name=$1 began=$SECONDS
	shift
	if output=$("$@" 2>&1); then
		printf 'ok      %-34s %4d s\n' "$name" $((SECONDS - began))
	else
		printf 'FAILED  %-34s %4d s\n%s\n' "$name" $((SECONDS - began)) "$output"
		failed=1
	fi
}

formatted() {
	local wrong
	wrong=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -l)
	[ -z "$wrong" ] || { echo "not as gofmt has it: $wrong"; return 1; }
}

sums() { find api deploy charts docs/reference -type f -print0 | sort -z | xargs -0 sha256sum; }

generated() {
	local before after
	before=$(sums)
	make generate || return 1
	after=$(sums)
	[ "$before" = "$after" ] || { diff <(echo "$before") <(echo "$after") | sed -n 's/^> [^ ]* */generated anew, commit it: /p'; return 1; }
}

# Objects of the last release stay valid: the definitions only ever add.
additive() {
	local last old status=0
	last=$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null) || { echo "there is no release yet"; return 0; }
	old=$(mktemp -d)
	git archive "$last" api/crds | tar -x -C "$old" && go run ./hack/crds "$old/api/crds" api/crds || status=1
	rm -r "$old"
	return $status
}

check "format" formatted
check "vet" go vet ./...
check "vet, with every build tag" go vet -tags 'integration e2e others nodes rights' ./...
# What is different there, such as the numbers of system calls, no test on this machine compiles.
check "vet for arm64" env GOARCH=arm64 go vet ./cmd/tarn/... ./internal/...
for module in $(git ls-files --cached --others --exclude-standard '*/go.mod'); do
	folder=$(dirname "$module")
	# Modules that only pin tools have no code of their own.
	if git ls-files --cached --others --exclude-standard "$folder/*.go" | grep -q .; then
		check "vet of $folder" env -C "$folder" go vet ./...
	fi
done
check "generated files" generated
check "resources since the last release" additive
check "go.mod is tidy" go mod tidy -diff
check "OpenAPI document" bash -o pipefail -c 'go run ./cmd/tarn api openapi | go run -C hack/openapi .'
check "lint" go tool -modfile=hack/lint/go.mod golangci-lint run --build-tags integration,e2e,others,nodes,rights ./...
exit $failed
