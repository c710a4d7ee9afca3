#!/usr/bin/env bash
# Gives every decoder mutations until each has had so many, over as many runs as it takes: scripts/mutations.sh 100000000 FILE [PACKAGE...]
# FILE gets a line for each run of a target; lines of the same code, which is that of the target's package and of what it imports, count together, and their
# seeds are not run again. It is resumed by the same command. A target in which something was found is not run again until the code is another, or its line is deleted because the check was wrong.
# At the end, and with 0 at once, it prints what FILE has. JOBS=2 runs two at once, each on one processor; EACH=N are the mutations of a line.
set -euo pipefail
cd "$(dirname "$0")/.."
want=${1:?how many mutations of each decoder} file=${2:?file of lines} each=${EACH:-10000000} jobs=${JOBS:-1}
shift 2
test -s "$file" || echo code,package,target,seed,mutations,taken,found,seconds >"$file"
file=$(cd "$(dirname "$file")" && pwd)/$(basename "$file")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOMAXPROCS=${GOMAXPROCS:-1} JMQ_TEST_MUTATIONS JMQ_TEST_SEED

git ls-files '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]*' | sed 's/:func / /' | while read -r source target; do
	package=./$(dirname "$source")
	test "$package" != ./server/servertest/mutate || continue # its own example
	test $# -eq 0 || [[ " $* " == *" $package "* ]] || continue
	echo "$package $target"
done >"$dir/named"
"${GO:-go}" run ./scripts/chaos digest $(cut -d' ' -f1 "$dir/named" | sort -u) >"$dir/codes"
awk 'NR == FNR { code[$1] = $2; next } { print $0, code[$1] }' "$dir/codes" "$dir/named" >"$dir/targets" # package, target, code

# Fast ones first, as far as FILE knows them of whatever code; what was found in a target once ends it.
awk -F'[, ]' -v want="$want" -v each="$each" '
	FILENAME != last { file++; last = FILENAME }
	file == 1 { code[$1] = $2; next }
	file == 2 { k = $2 " " $3; if ($8 > 0) { all[k] += $5; s[k] += $8 } if ($1 == code[$2]) { n[k] += $5; bad[k] += $7; if ($4 > seed[k]) seed[k] = $4 } next }
	{ k = $1 " " $2; rate = s[k] > 0 ? all[k] / s[k] : 1e9
	  if (!bad[k]) for (left = want - n[k]; left > 0; left -= each) printf "%d %s %s %d %d\n", rate, k, $3, ++seed[k], (left < each ? left : each) }
' "$dir/codes" "$file" "$dir/targets" | sort -s -rn -k1,1 | cut -d' ' -f2- >"$dir/runs"

for package in $(cut -d' ' -f1 "$dir/runs" | sort -u); do
	"${GO:-go}" test -c -o "$dir/${package//\//_}.test" "$package"
done

# worker takes runs that no other has taken.
worker() {
	local i=0 package target code JMQ_TEST_SEED JMQ_TEST_MUTATIONS line child=
	trap 'test -z "$child" || kill "$child"; exit 1' TERM
	while read -r package target code JMQ_TEST_SEED JMQ_TEST_MUTATIONS; do
		i=$((i + 1))
		mkdir "$dir/$i" 2>/dev/null || continue
		test ! -e "$dir/bad.${package//\//_}.$target" || continue
		(cd "$package" && exec "$dir/${package//\//_}.test" -test.run "^$target\$" -test.timeout 0 -test.v) >"$dir/$i/out" 2>&1 </dev/null &
		child=$!
		wait "$child" && found=0 || found=1
		child=
		line=$(grep -oE "$target: [0-9]+ mutations, [0-9]+ taken, seed [0-9]+, [0-9.]+ s" "$dir/$i/out" | head -1 || true)
		read -r _ given _ taken _ _ _ seconds _ <<<"${line:-x 0 x 0 x x x 0 x}"
		test "$given" -gt 0 || found=1 # every target has mutations
		echo "$code,$package,$target,$JMQ_TEST_SEED,$given,${taken},$found,$seconds" >>"$file"
		echo "$package $target: seed $JMQ_TEST_SEED, $given mutations, $taken taken, $seconds s"
		test "$found" = 0 || { cat "$dir/$i/out"; : >"$dir/bad.${package//\//_}.$target"; }
	done <"$dir/runs"
}
workers=()
trap 'kill "${workers[@]}" 2>/dev/null; wait; exit 1' TERM INT
for ((w = 0; w < jobs; w++)); do
	worker &
	workers+=($!)
done
wait

awk -F'[, ]' '
	FILENAME != last { file++; last = FILENAME }
	file == 1 { code[$1] = $2; next }
	file == 2 { k = $2 " " $3; if ($1 == code[$2]) { n[k] += $5; taken[k] += $6; bad[k] += $7; s[k] += $8 } next }
	{ k = $1 " " $2; all++; found += bad[k]; if (all == 1 || n[k] < least) least = n[k]
	  printf "%-44s %12d mutations  %5.1f %% taken  %8d a second%s\n", k, n[k], 100 * taken[k] / (n[k] + !n[k]), (s[k] > 0 ? n[k] / s[k] : 0), (bad[k] ? "  FOUND" : "") }
	END { printf "%d decoders, at least %d mutations of each, %d found\n", all, least, found; exit (found > 0) }
' "$dir/codes" "$file" "$dir/targets"
