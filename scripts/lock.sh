#!/usr/bin/env bash
# Writes requirements.lock again from both pyproject.toml, keeping the pins that still fit.
# Give package names to move them to their newest version: scripts/lock.sh numpy ruff
# Needs the network, and a few minutes, because it reads the digest of every published file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pip-tools

upgrades=()
for name in "$@"; do upgrades+=(--upgrade-package "$name"); done

# What the laboratory needs, with its extras; all but the product itself, which no index has.
"$work/venv/bin/python" - > "$work/lab.in" <<'END'
import tomllib
from pathlib import Path

project = tomllib.loads(Path("lab/pyproject.toml").read_text())["project"]
wanted = [project["dependencies"], *project["optional-dependencies"].values()]
print("\n".join(w for part in wanted for w in part if not w.startswith("headgate")))
END

grep -v '^#' requirements.lock > "$work/lock.txt" || true
"$work/venv/bin/pip-compile" pyproject.toml "$work/lab.in" --quiet --output-file "$work/lock.txt" \
    --extra dev --extra figures --all-build-deps --allow-unsafe --generate-hashes --strip-extras \
    --no-header --no-annotate --no-emit-index-url --no-emit-options --no-emit-trusted-host \
    --no-emit-find-links ${upgrades[@]+"${upgrades[@]}"}
{
    grep '^#' requirements.lock
    echo
    grep -v '^#' "$work/lock.txt"
} > "$work/new.lock"
mv "$work/new.lock" requirements.lock
