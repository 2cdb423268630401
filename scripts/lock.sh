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

# One project that asks for what both ask for; all but the product itself, which no index has.
"$work/venv/bin/python" - > "$work/pyproject.toml" <<'END'
import json
import tomllib
from pathlib import Path

wanted = []
for file, extras in (("pyproject.toml", ("dev", "figures", "kafka")), ("lab/pyproject.toml", ("examples",))):
    project = tomllib.loads(Path(file).read_text(encoding="utf-8"))["project"]
    wanted += project["dependencies"]
    wanted += [w for extra in extras for w in project["optional-dependencies"][extra]]
build = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["build-system"]
print(f"""
[build-system]
requires = {json.dumps(build["requires"])}
build-backend = {json.dumps(build["build-backend"])}
[project]
name = "both"
version = "0"
dependencies = {json.dumps([w for w in wanted if not w.startswith("headgate")])}
[tool.setuptools]
py-modules = []
""")
END

grep -v '^#' requirements.lock > "$work/lock.txt" || true
"$work/venv/bin/pip-compile" "$work/pyproject.toml" --quiet --output-file "$work/lock.txt" \
    --all-build-deps --allow-unsafe --generate-hashes --strip-extras \
    --no-header --no-annotate --no-emit-index-url --no-emit-options --no-emit-trusted-host \
    --no-emit-find-links ${upgrades[@]+"${upgrades[@]}"}
{
    grep '^#' requirements.lock
    echo
    grep -v '^#' "$work/lock.txt"
} > "$work/new.lock"
mv "$work/new.lock" requirements.lock
