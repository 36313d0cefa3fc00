#!/bin/sh
# Makes a virtual environment in ~/project/.venv once, and installs the packages that were asked for.
set -eu

cd "$HOME/project"
if [ ! -x .venv/bin/python ]; then
    echo "Making a virtual environment in $HOME/project/.venv"
    if ! python3 -m venv .venv; then
        echo "This machine's python3 cannot make virtual environments: install its venv package there."
        rm -rf .venv
        exit 1
    fi
fi

# The parameter is a JSON list; the shell cannot read one, Python can. One package for each line of a requirements file.
wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
python3 -c '
import json, os
for package in json.loads(os.environ.get("ROOKERY_PARAM_packages") or "[]"):
    print(package)
' >"$wanted"

if [ -s "$wanted" ]; then
    echo "Installing: $(tr '\n' ' ' <"$wanted")"
    .venv/bin/python -m pip install --quiet --requirement "$wanted"
fi
echo "Python $(.venv/bin/python -c 'import platform; print(platform.python_version())') is ready."
