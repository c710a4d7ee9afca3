#!/usr/bin/env bash
# Installs what the tests need beside Go: MariaDB, as binaries without a service (scripts/testenv starts it), and what makes file systems
# (scripts/chaos has disks of its own). As root on Debian it installs; elsewhere it prints the line to run and fails only where the tests cannot do without.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in git "${GO:-go}"; do
	command -v "$tool" >/dev/null || { echo "deps: $tool is missing: install it" >&2; exit 1; }
done
if ! command -v gcc >/dev/null; then
	echo "deps: gcc is missing: the tests with -race need it (the product does not)" >&2
	exit 1
fi

# Not mariadb-server: that one brings a service which would start by itself, here or at the next boot.
packages=(mariadb-server-core mariadb-client-core e2fsprogs xfsprogs)

have() { # a program, also where a user's PATH does not look
	command -v "$1" >/dev/null || test -x "/usr/sbin/$1" || test -x "/sbin/$1" || test -x "/usr/libexec/$1"
}

if [ -n "${JMQ_TEST_MYSQL:-}" ] && ! have mariadbd; then
	echo "deps: MariaDB is missing; JMQ_TEST_MYSQL names a server, so only the tests that stop and kill one need it"
elif have mariadbd && have mariadb-install-db && { have mkfs.ext4 && have mkfs.xfs || [ "$(id -u)" != 0 ]; }; then
	: # only root can mount file systems
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "deps: installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	lock=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
	install=(apt-get "${lock[@]}" install -y -qq --no-install-recommends "${packages[@]}")
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	# The lists that are there will do, if they name packages that can be fetched still. An update does not wait for another's lock: it is tried again.
	for try in 1 2 3 4 5; do
		"${install[@]}" >"$log" 2>&1 && break
		{ apt-get "${lock[@]}" update -qq && "${install[@]}"; } >"$log" 2>&1 && break
		test "$try" != 5 || { tail -n 20 "$log" >&2; echo "deps: cannot install ${packages[*]}" >&2; exit 1; }
		sleep 3
	done
	echo "deps: installed ${packages[*]}"
else
	echo "deps: MariaDB is missing: the tests that need it cannot run; on Debian and Ubuntu:" >&2
	echo "  sudo apt-get install --no-install-recommends ${packages[*]}" >&2
	echo "deps: or name a MySQL or MariaDB server for them: JMQ_TEST_MYSQL='user:password@tcp(host:port)/'" >&2
	exit 1
fi
echo "deps: all is there"
