"""Runs the unit tests and one small Spark test in other environments than .venv.

    matrix.py             each Python version that pyproject.toml claims, newest dependencies
    matrix.py minimum     the lowest claimed Python, every dependency at its lower bound

A version that is not installed is named and skipped. Environments are made by uv if there is one,
else by venv and pip, and stay in build/matrix, so that a second run starts at once. What follows
`--` goes to pytest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "matrix"
WANTED = ["--editable", ".[dev,figures,kafka]", "--editable", "lab[examples]"]
UNIT = "-n auto --dist worksteal --ignore=tests/spark".split()
SPARK = ["tests/spark/test_flow.py::test_state_and_output_are_those_of_a_plain_fold"]


def project(folder: str) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))
    return found["project"]  # type: ignore[return-value]


def claimed_versions() -> list[str]:
    classifiers = "\n".join(project(".")["classifiers"])  # type: ignore[arg-type]
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)


def lower_bounds() -> list[str]:
    """`name==version` for each `name>=version` that the product or the laboratory depends on."""
    asked = [*project(".")["dependencies"], *project("lab")["dependencies"]]  # type: ignore[misc]
    bounds = {m[1]: m[2] for a in asked if (m := re.match(r"([\w-]+)>=([\d.]+)", a))}
    return [f"{name}=={version}" for name, version in sorted(bounds.items())]


def interpreter(version: str) -> str | None:
    """The newest installed Python of this version, on PATH or of pyenv."""
    candidates = [f"python{version}"]
    if shutil.which("pyenv"):
        root = subprocess.check_output(["pyenv", "root"], text=True).strip()
        installed = Path(root, "versions").glob(f"{version}.*/bin/python")
        candidates += map(str, sorted(installed, key=_patch, reverse=True))
    for candidate in candidates:
        # A shim of pyenv is on PATH also when the version behind it cannot be used.
        told = shutil.which(candidate) and subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if told and told.stdout.strip() == version:
            return candidate
    return None


def environment(name: str, python: str, constraints: list[str]) -> Path:
    """A Python with Headgate, the laboratory and the tools of the tests installed."""
    folder = PLACE / name
    inside = folder / "bin" / "python"
    limits = PLACE / f"{name}.txt"
    PLACE.mkdir(parents=True, exist_ok=True)
    limits.write_text("".join(line + "\n" for line in constraints))
    if uv := shutil.which("uv"):
        if not inside.exists():
            subprocess.run([uv, "venv", "--quiet", "--python", python, str(folder)], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", str(inside)]
    else:
        if not inside.exists():
            subprocess.run([python, "-m", "venv", str(folder)], check=True)
        install = [str(inside), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--constraint", str(limits), *WANTED], check=True, cwd=ROOT)
    return inside


def passes(name: str, python: str, constraints: list[str], extra: list[str]) -> bool:
    print(f"== {name}: installing", flush=True)
    inside = environment(name, python, constraints)
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    for tests in (UNIT, SPARK):
        print(f"== {name}: pytest {' '.join(tests)}", flush=True)
        ran = subprocess.run(
            [str(inside), "-m", "pytest", *tests, *extra], check=False, cwd=ROOT, env=clean
        )
        if ran.returncode:
            return False
    return True


def _patch(path: Path) -> int:
    found = re.match(r"3\.\d+\.(\d+)", path.parent.parent.name)
    return int(found[1]) if found else -1


def main(words: list[str]) -> int:
    cut = words.index("--") if "--" in words else len(words)
    asked, extra = words[:cut], words[cut + 1 :]
    versions = claimed_versions()
    runs = [(f"python{v}", v, []) for v in versions]
    if asked == ["minimum"]:
        runs = [("minimum", versions[0], lower_bounds())]
    elif asked:
        return f"unknown: {' '.join(asked)}; known: minimum"
    results = {}
    for name, version, constraints in runs:
        python = interpreter(version)
        results[name] = (
            f"skipped, Python {version} is not installed"
            if python is None
            else "passed"
            if passes(name, python, constraints, extra)
            else "FAILED"
        )
    print("\n".join(f"{name}: {result}" for name, result in results.items()))
    return int("FAILED" in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
