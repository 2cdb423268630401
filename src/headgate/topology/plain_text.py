"""Text that a terminal shows and does not obey."""

from __future__ import annotations


def plain_text(value: object) -> str:
    r"""`str(value)` on one line, with every character that does not print spelled out.

    Control characters, line ends, bidirectional overrides and invisible marks become what a Python
    string literal says for them. All else, backslashes too, stays as it is.

    Examples:
        >>> plain_text("né 日本 \x1b[31m\u202e\n")
        'né 日本 \\x1b[31m\\u202e\\n'
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
