#!/usr/bin/env bash
# Runs every fuzz target of the module for a number of inputs each: scripts/fuzz.sh 500000x
# By count and not by time: at the end of its time Go 1.26 can report its own deadline as a failure (go.dev/issue/75804).
set -euo pipefail
cd "$(dirname "$0")/.."
inputs=${1:-500000x}
[[ $inputs =~ ^[1-9][0-9]*x$ ]] || { echo "fuzz: $inputs is no number of inputs; write it as 500000x" >&2; exit 2; }
count=0
while IFS=: read -r file target; do
	echo "fuzz: $target in $(dirname "$file") for $inputs"
	"${GO:-go}" test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$inputs" -fuzzminimizetime 1000x
	count=$((count + 1))
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]*' | sed 's/:func /:/' | sort)
test "$count" -gt 0 || { echo "fuzz: no target found" >&2; exit 1; }
echo "fuzz: $count targets, nothing found"
