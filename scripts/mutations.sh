#!/usr/bin/env bash
# Gives every decoder mutations until each has had so many, over as many runs as it takes: scripts/mutations.sh 100000000 FILE [PACKAGE...]
# FILE gets a line for each run of a target; lines of the same code count together, and their seeds are not run again.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:?how many mutations of each decoder} file=${2:?file of lines} each=${EACH:-10000000}
shift 2
code=$("${GO:-go}" run ./scripts/chaos digest)
test -s "$file" || echo code,package,target,seed,mutations,taken,found >"$file"
bad=0
while IFS=: read -r source target; do
	package=./$(dirname "$source")
	test $# -eq 0 || [[ " $* " == *" $package "* ]] || continue
	while
		read -r had seed < <(awk -F, -v c="$code" -v p="$package" -v t="$target" '$1==c&&$2==p&&$3==t{n+=$5;s=$4} END{print n+0, s+1}' "$file")
		((had < want))
	do
		out=$(JMQ_TEST_MUTATIONS=$each JMQ_TEST_SEED=$seed "${GO:-go}" test -count=1 -timeout 0 -run "^$target\$" -v "$package" 2>&1) && found=0 || found=1
		line=$(grep -oE "$target: [0-9]+ mutations, [0-9]+ taken" <<<"$out" | head -1 || true)
		read -r _ given _ taken _ <<<"${line:-x 0 x 0 x}"
		echo "$code,$package,$target,$seed,$given,$taken,$found" >>"$file"
		echo "$package $target: seed $seed, $given mutations, $taken taken"
		if ((found || given == 0)); then # no line: the target has no mutations, and is fuzzed by scripts/fuzz.sh only
			((found)) && { printf '%s\n' "$out"; bad=1; }
			break
		fi
	done
done < <(git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]*' | sed 's/:func /:/' | sort)
exit $bad
