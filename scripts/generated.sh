#!/usr/bin/env bash
# Fails if generated code is not what its source gives. Leaves the tree alone.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp wire/jmq.proto "$dir/"
"${GO:-go}" -C scripts/tools run ./protogen "$dir" jmq.proto
diff -u wire/jmq.pb.go "$dir/jmq.pb.go" || { echo "wire/jmq.pb.go is not what wire/jmq.proto gives: run make generate" >&2; exit 1; }
echo "generated code: unchanged"
