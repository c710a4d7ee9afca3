#!/usr/bin/env bash
# Runs every fuzz target of the module for a time each: scripts/fuzz.sh 60s
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-60s}
count=0
while IFS=: read -r file target; do
	echo "fuzz: $target in $(dirname "$file") for $time"
	"${GO:-go}" test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
	count=$((count + 1))
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]*' | sed 's/:func /:/' | sort)
test "$count" -gt 0 || { echo "fuzz: no target found" >&2; exit 1; }
echo "fuzz: $count targets, nothing found"
