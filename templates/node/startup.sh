#!/bin/sh
# Makes sure that there is a package.json, installs what it names, and adds the packages that were asked for.
set -eu

cd "$HOME/project"
if ! command -v node >/dev/null 2>&1; then
    echo "There is no node on this machine. Install Node.js there, or choose another template."
    exit 1
fi

if [ -f package-lock.json ]; then
    if [ ! -d node_modules ]; then
        echo "Installing what package-lock.json names"
        npm ci --no-audit
    fi
elif [ ! -f package.json ]; then
    echo '{"name": "project", "private": true, "type": "module"}' >package.json
fi

# The parameter is a JSON list; npm gets each entry as one argument, whatever is in it.
node -e '
const wanted = JSON.parse(process.env.ROOKERY_PARAM_packages || "[]");
if (wanted.length === 0) process.exit(0);
console.log("Installing: " + wanted.join(" "));
const { spawnSync } = require("node:child_process");
const done = spawnSync("npm", ["install", "--no-audit", "--", ...wanted], { stdio: "inherit" });
process.exit(done.status === null ? 1 : done.status);
'
echo "Node.js $(node --version) is ready."
