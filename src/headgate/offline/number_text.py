"""Numbers as people read them; a dash for what was not measured."""

from __future__ import annotations


def short(number: float, unit: str = "") -> str:
    """A number in three digits: 1.23 M, 45.6 k, 0.50.

    Examples:
        >>> short(1_234_567), short(4_560, "B"), short(0.5), short(12), short(0, "B")
        ('1.23 M', '4.56 kB', '0.50', '12', '0 B')
    """
    if unit == "s":
        return f"{number:.2f} s" if number < 10 else f"{number:.0f} s"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            scaled = number / size
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            return f"{scaled:.{digits}f} {letter}{unit}"
    text = f"{number:.0f}" if float(number).is_integer() else f"{number:.2f}"
    return f"{text} {unit}".strip()


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else short(value, unit)
