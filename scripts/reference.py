"""Writes the API reference, HTML from the docstrings of what users import: reference.py FOLDER."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import pdoc

MODULES = ("headgate", "headgate.errors", "headgate.testing")


def public_modules() -> list[pdoc.doc.Module]:
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            getattr(module, public)  # headgate loads names when first used; pdoc sees only loaded
    return [pdoc.doc.Module.from_name(name) for name in MODULES]


def main(folder: Path) -> None:
    public_modules()
    warnings.simplefilter("ignore")  # types that pdoc cannot link, and so shows as text
    pdoc.render.configure(docformat="google")
    pdoc.pdoc(*MODULES, output_directory=folder)
    print(f"API reference: {folder / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
