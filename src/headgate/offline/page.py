"""The pages that reports fill in: type, colours for light and dark, and pieces of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

_TOP = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title · Headgate</title>
<style>
:root {
  --font: Inter, "Segoe UI", "Helvetica Neue", "Noto Sans", system-ui, sans-serif;
  --page: #f6f5f1; --card: #ffffff; --ink: #1d2226; --soft: #626a70; --line: #e2e0d8;
  --grid: #e4e2da; --accent: #0b7285;
  --series-1: #0f7f93; --series-2: #e08a1e; --series-3: #7b5ea7; --series-4: #3f9b62;
  --series-5: #c9504f; --series-6: #8a8f98;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161a; --card: #1a2026; --ink: #e6e9eb; --soft: #9aa4ab; --line: #2b333a;
    --grid: #313a42; --accent: #5cc8dc;
    --series-1: #3fb6cb; --series-2: #f0a94a; --series-3: #a98bd6; --series-4: #69c48c;
    --series-5: #ec7a78; --series-6: #8e979f;
  }
}
* { box-sizing: border-box; margin: 0; }
body { background: var(--page); color: var(--ink); font: 16px/1.55 var(--font);
  -webkit-font-smoothing: antialiased; }
main { max-width: 1120px; margin: 0 auto; padding: 56px 28px 72px; }
header p { color: var(--soft); }
h1 { font-size: 2.1rem; line-height: 1.15; letter-spacing: -0.022em; font-weight: 680;
  margin-bottom: 6px; }
h2 { font-size: 1.16rem; letter-spacing: -0.01em; margin: 44px 0 14px; font-weight: 640; }
h3 { font-size: 0.98rem; font-weight: 640; }
.brand { font-size: 0.78rem; letter-spacing: 0.14em; text-transform: uppercase;
  color: var(--accent); font-weight: 650; margin-bottom: 10px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(158px, 1fr)); gap: 12px;
  margin-top: 30px; }
.tile, figure, .card { background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
.tile { padding: 15px 17px 13px; }
.tile dt, .tile p, figcaption p { color: var(--soft); font-size: 0.82rem; line-height: 1.4; }
.tile dd { font-size: 1.58rem; font-weight: 640; letter-spacing: -0.02em; line-height: 1.3;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr));
  gap: 14px; }
figure { padding: 18px 18px 10px; }
figcaption { margin-bottom: 8px; }
figure svg { width: 100%; height: auto; display: block; }
.card { padding: 20px; overflow-x: auto; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 550; font-size: 0.82rem; }
th, td { padding: 8px 16px; white-space: nowrap; }
tbody tr { border-top: 1px solid var(--line); }
.number { text-align: right; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr));
  gap: 14px; align-items: start; }
.good::before { content: "✓ "; color: var(--series-4); font-weight: 700; }
.bad::before { content: "✗ "; color: var(--series-5); font-weight: 700; }
.verdict { margin-bottom: 14px; }
.aside { color: var(--soft); font-size: 0.84rem; margin-top: 10px; }
details summary { cursor: pointer; color: var(--soft); margin: 44px 0 14px; }
footer { margin-top: 48px; color: var(--soft); font-size: 0.84rem; }
code { font: 0.9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.flow { display: block; width: 100%; margin: 0 auto; }
.flow text { text-anchor: middle; fill: currentColor; font: 13px var(--font); }
.flow .name { font-weight: 640; }
.flow .note, .flow .carried { font-size: 11.5px; fill: var(--soft); }
.flow rect { fill: var(--page); stroke: var(--line); stroke-width: 1.2; }
.flow .stateful rect { stroke: var(--accent); stroke-width: 1.8; }
.flow .edge { fill: none; stroke: var(--soft); stroke-width: 1.4; }
.flow .tip { fill: var(--soft); }
</style>
</head>
<body>
<main>
<header>
<p class="brand">Headgate</p>
<h1>$title</h1>
<p>$subtitle</p>
</header>
<dl class="tiles">$tiles</dl>
"""

PAGE = Template(
    _TOP
    + """\
<section><h2>The flow</h2><div class="card">$diagram</div></section>
$extras
<section><h2>Over time</h2><div class="figures">$figures</div></section>
<section><h2>Operators</h2>$operators</section>
$events
<details><summary>All $epoch_count epochs as a table</summary>$epochs</details>
<footer>Made from the flow's journal by <code>headgate report</code>. Times are advisory: a task
that Spark ran twice counts twice.</footer>
</main>
</body>
</html>
"""
)

SECTIONS_PAGE = Template(
    _TOP
    + """\
$sections
<footer>$footer</footer>
</main>
</body>
</html>
"""
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """An HTML table whose first `words` columns are text and whose others are numbers."""

    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = ["" if i < words else ' class="number"' for i in range(len(values))]
        return "".join(
            f"<{tag}{kind}>{escape(v)}</{tag}>" for kind, v in zip(kinds, values, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def tiles_html(tiles: Sequence[tuple[str, str, str]]) -> str:
    """The figures on top of a page: name, value, note."""
    return "".join(
        f"<div class='tile'><dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
        f"<p>{escape(note)}</p></div>"
        for name, value, note in tiles
    )


def figures_html(drawn: Sequence[tuple[str, str, str]]) -> str:
    """Drawings with heading and note; one without data is left out."""
    return "".join(
        f"<figure><figcaption><h3>{escape(name)}</h3><p>{escape(note)}</p></figcaption>{svg}"
        "</figure>"
        for name, note, svg in drawn
        if svg
    )


def section(title: str, html: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{html}</section>"
