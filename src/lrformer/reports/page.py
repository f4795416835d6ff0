"""The page around the report: one file, its style inside, light and dark, narrow and wide, nothing from elsewhere."""

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f6f7f9; --ink: #1c2330; --soft: #5a6475; --faint: #b9c0cc; --line: #e1e5eb;
  --series-0: #2563a8; --series-1: #d9730d; --series-2: #2a8a57; --series-3: #a03b8f;
  --series-4: #7a6a1a; --series-5: #c0392b; --series-6: #4b5563; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12161d; --card: #1a2029; --ink: #e6e9ef; --soft: #9aa5b5; --faint: #566070; --line: #2b3340;
  --series-0: #6ea8e6; --series-1: #f0a355; --series-2: #63c192; --series-3: #d583c6;
  --series-4: #cdbb55; --series-5: #ef7b6d; --series-6: #a3adbb; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 8px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 48px 0 8px; padding-top: 8px; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 24px 0 6px; overflow-wrap: anywhere; }
p { margin: 8px 0; max-width: 75ch; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 12px 0 0; font-size: .9rem; }
a { color: var(--series-0); }
.soft, small { color: var(--soft); }
small { font-size: .8rem; }
.findings { padding-left: 1.2em; max-width: 75ch; }
.findings li { margin: 6px 0; }
.tiles { display: grid; gap: 12px; margin: 20px 0; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 1.45rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { font-size: .85rem; overflow-wrap: anywhere; } .tile small { display: block; }
.figures { display: grid; gap: 20px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px; min-width: 0; }
figure > svg { display: block; width: 100%; max-width: 560px; height: auto; margin: 0 auto; }
figcaption { font-size: .9rem; color: var(--soft); margin-top: 8px; }
figcaption strong { color: var(--ink); }
.narrow { max-width: 760px; }
.wide { overflow-x: auto; margin: 12px 0; border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td:first-child { min-width: 104px; }
th, td { text-align: left; padding: 8px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
th { background: var(--card); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; } th.number { white-space: normal; }
td small { display: block; } td em { font-style: normal; font-size: .75rem; color: var(--series-0); }
td.text { overflow-wrap: anywhere; }
.images { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); margin: 12px 0; }
.images figure { padding: 8px; }
.images img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 6px; }
.images img.tiny { image-rendering: pixelated; }
.images figcaption { font-size: .8rem; line-height: 1.35; overflow-wrap: anywhere; margin-top: 6px; }
.right { color: var(--series-2); } .wrong { color: var(--series-5); }
details { margin: 12px 0; } summary { cursor: pointer; }
dl { margin: 8px 0; } dt { font-weight: 600; margin-top: 8px; } dd { margin: 0; color: var(--soft); max-width: 85ch; }
code { font-size: .88em; overflow-wrap: anywhere; }
@media (max-width: 480px) { .images { grid-template-columns: repeat(3, 1fr); gap: 8px; } .images figure { padding: 6px; } }
@media print {
  figure, tr, .tile { break-inside: avoid; } h2, h3, h3 + p { break-after: avoid; }
  .wide { overflow: visible; } table { font-size: .72rem; } th, td { padding: 6px; }
  th, td.number, th.number { white-space: normal; } td:first-child { min-width: 0; }
}
"""


def page(*, title: str, sections: Sequence[tuple[str, str, str]], opening: str) -> str:
    """Return the whole page.

    Args:
        sections: identifier, heading and HTML of each.
        opening: HTML between the title and the first section.
    """
    links = "".join(f'<a href="#{key}">{escape(heading)}</a>' for key, heading, _ in sections)
    body = "".join(
        f'<section id="{key}"><h2>{escape(heading)}</h2>{content}</section>'
        for key, heading, content in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{opening}<nav>{links}</nav>{body}</main></body></html>\n"
    )


def figure(svg: str, *, title: str, meaning: str) -> str:
    """Return a figure with what it shows and how to read it."""
    return (
        f"<figure>{svg}<figcaption><strong>{escape(title)}.</strong> "
        f"{escape(meaning)}</figcaption></figure>"
    )
