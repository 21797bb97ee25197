#!/usr/bin/env bash
# Make a virtual environment: venv.sh FOLDER [PYTHON]. Without PYTHON the first that is new enough.
set -u
folder=$1
shift
candidates=("$@")
[ ${#candidates[@]} -gt 0 ] || candidates=(python3 python3.13 python3.12 python3.11 python3.10 python3.14)

python=
for candidate in "${candidates[@]}"; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "slurmmesh needs Python 3.10 or later; tried: ${candidates[*]}." >&2
    echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$python cannot make virtual environments (its ensurepip is missing). On Debian or Ubuntu:" >&2
    echo "    sudo apt-get install -y python$version-venv" >&2
    exit 1
fi
exec "$python" -m venv "$folder"
