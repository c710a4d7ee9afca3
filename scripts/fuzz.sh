#!/usr/bin/env bash
# Runs every fuzz target of the module for a number of inputs each: scripts/fuzz.sh 500000x
# Each package is built once, for all its targets; JOBS targets run at once, one per processor unless set.
# By count and not by time: at the end of its time Go 1.26 can report its own deadline as a failure (go.dev/issue/75804).
set -euo pipefail
cd "$(dirname "$0")/.."
inputs=${1:-500000x} jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
[[ $inputs =~ ^[1-9][0-9]*x$ ]] || { echo "fuzz: $inputs is no number of inputs; write it as 500000x" >&2; exit 2; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export go="${GO:-go}" dir inputs
module=$("$go" list -m) found=$("$go" env GOCACHE)/fuzz # where go test -fuzz keeps what it finds interesting
export module found

build() { # package
	"$go" test -c -fuzz=. -o "$dir/${1//\//_}.test" "./$1"
}
run() { # package target
	cd "$1"
	"$dir/${1//\//_}.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$inputs" -test.fuzzminimizetime 1000x -test.parallel 1 \
		-test.fuzzcachedir "$found/$module/$1" >"$dir/$2.$$" 2>&1 && echo "fuzz: $2 in $1: $(grep execs: "$dir/$2.$$" | tail -1 | sed 's/^fuzz: //')" && return
	echo "fuzz: $2 in $1 FAILED"
	cat "$dir/$2.$$"
	return 1
}
export -f build run

git ls-files -co --exclude-standard '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]*' | sed 's/:func / /' |
	while read -r file target; do echo "$(dirname "$file") $target"; done | sort >"$dir/targets"
test -s "$dir/targets" || { echo "fuzz: no target found" >&2; exit 1; }
cut -d' ' -f1 "$dir/targets" | sort -u | xargs -n1 -P "$jobs" bash -c 'build "$@"' -
xargs -n2 -P "$jobs" bash -c 'run "$@"' - <"$dir/targets" || exit 1
echo "fuzz: $(wc -l <"$dir/targets") targets, nothing found"
