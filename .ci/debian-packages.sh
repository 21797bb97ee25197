#!/usr/bin/env bash
# The Debian packages that the tests run a real Slurm with: installed if missing and if root.
# Ends with 0 if all are there, 10 if not and we may not install them, 1 if installing failed.
set -u
packages=(slurm-wlm slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2
    slurmdbd mariadb-server)

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null)
    [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if ! command -v apt-get >/dev/null; then
    echo "Not a Debian system: tests that need a real Slurm skip (it needs: ${packages[*]})." >&2
    exit 10
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Tests that need a real Slurm skip. To run them, install it first:" >&2
    echo "    sudo ${install[*]}" >&2
    exit 10
fi

# The packages would start Slurm, munge and MariaDB for the whole machine; tests bring their own.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
fi
echo "installing Debian packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# An unrelated source that does not answer fails the update, not what we need: the install tells.
apt-get -o DPkg::Lock::Timeout=120 update >"$log" 2>&1
if "${install[@]}" -o DPkg::Lock::Timeout=120 >>"$log" 2>&1 </dev/null; then
    rm -f "$log"
    exit 0
fi
tail -n 40 "$log" >&2
rm -f "$log"
echo "Could not install: ${missing[*]}. The tests need them: ${install[*]}" >&2
exit 1
