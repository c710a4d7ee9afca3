#!/usr/bin/env bash
# Installs what the tests need beside Go. Nothing yet: the broker keeps everything in its own files. The scripts of
# services that later roles need (Redis, MySQL, HBase) are called from here.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in git "${GO:-go}"; do
	command -v "$tool" >/dev/null || { echo "deps: $tool is missing: install it" >&2; exit 1; }
done
if ! command -v gcc >/dev/null; then
	echo "deps: gcc is missing: the tests with -race need it (the product does not)" >&2
	exit 1
fi
echo "deps: nothing to install"
