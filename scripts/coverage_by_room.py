"""Prints which share of each room's lines the last `make unit` ran."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import coverage

PRODUCT = Path("src/headgate").resolve()


def room_of(file: str) -> str:
    """`state` for what lies in that folder; a module beside the rooms is one of its own."""
    return Path(file).relative_to(PRODUCT).parts[0].removesuffix(".py")


def main() -> None:
    measured = coverage.Coverage()
    measured.load()
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in measured.get_data().measured_files():
        _, statements, _, missing, _ = measured.analysis2(file)
        for name in (room_of(file), "together"):
            rooms[name][0] += len(statements)
            rooms[name][1] += len(statements) - len(missing)
    print("== coverage by the examples of tests/unit, lines")
    for name, (lines, run) in sorted(rooms.items(), key=lambda room: (room[0] == "together", room)):
        print(f"{name:12}{lines:7,}{run / max(lines, 1):8.1%}")


if __name__ == "__main__":
    main()
