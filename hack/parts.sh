# For scripts that source it: counts their functions as tests are counted, by printing what `go test -json` prints.

# parts SUITE FUNCTION...: runs functions in turn, each in a shell of its own, which ends with its first command that fails.
# Where one fails the rest are skipped, as one leads to the next. No part of a condition, as bash would go on after failures then.
parts() {
	each "${@:2}" | go tool test2json -t -p "$1"
}

each() {
	local part failed='' status began
	for part in "$@"; do
		# The character has only lines count that were written here.
		printf '\026=== RUN   %s\n' "$part"
		if [ -n "$failed" ]; then
			printf '%s has failed, which leads to this\n\026--- SKIP: %s (0.00s)\n' "$failed" "$part"
			continue
		fi
		began=${EPOCHREALTIME/./}
		set +e
		(set -e; "$part") 2>&1
		status=$?
		set -e
		[ "$status" = 0 ] || failed=$part
		printf '\026--- %s: %s (%d.%02ds)\n' "$([ "$status" = 0 ] && echo PASS || echo FAIL)" "$part" $(((${EPOCHREALTIME/./} - began) / 1000000)) $(((${EPOCHREALTIME/./} - began) / 10000 % 100))
	done
	[ -z "$failed" ] || { printf '\026FAIL\n'; return 1; }
	printf '\026PASS\n'
}
