"""The closing page of a run: what went in, what happened, what was left out. One file of HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .plots import bar_chart, line_chart, short_number

Figures = Mapping[str, float]

LINES: Mapping[str, Sequence[str]] = {
    "reward": ("reward/mean",),
    "trained tokens of a rollout": ("length/mean", "length/max"),
    "ratio of new to recorded probability": ("ratio/mean", "ratio/min", "ratio/max"),
    "share of tokens that the clip stops": ("ratio/clipped",),
    "divergence from the sampler (k3)": ("kl",),
    "entropy": ("entropy",),
    "loss": ("loss",),
    "share of taught tokens that are the likeliest": ("accuracy",),
    "norm of the gradient": ("grad_norm",),
    "exact share of calls": ("exact_share",),
    "versions that the sampler was behind": ("staleness/mean", "staleness/max"),
}
"""Title → the figures of `metrics.jsonl` in it; a chart without figures is left out."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #67707e; --line: #dfe3e8; --page: #fff;
  --c0: #2563eb; --c1: #d97706; --c2: #059669; --c3: #be185d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --dim: #97a1b0; --line: #333b47;
  --page: #14181f; --c0: #7aa2ff; --c1: #f0a84a; --c2: #4fcf9f; --c3: #f27bb4; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.2rem; }
figure { margin: 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
svg text { fill: var(--dim); font-size: 11px; } .end { text-anchor: end; }
.middle { text-anchor: middle; } svg line { stroke: var(--line); }
polyline { fill: none; stroke-width: 2; } .none { color: var(--dim); }
polyline.c0, circle.c0 { stroke: var(--c0); } circle.c0, rect.c0 { fill: var(--c0); }
polyline.c1, circle.c1 { stroke: var(--c1); } circle.c1 { fill: var(--c1); }
polyline.c2, circle.c2 { stroke: var(--c2); } circle.c2 { fill: var(--c2); }
polyline.c3, circle.c3 { stroke: var(--c3); } circle.c3 { fill: var(--c3); }
figcaption span { font-weight: 400; font-size: 12px; margin-left: .6em; }
.k0 { color: var(--c0); } .k1 { color: var(--c1); } .k2 { color: var(--c2); }
.k3 { color: var(--c3); } .warn { border-left: 4px solid var(--c1); padding-left: .8rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-size: 14px; }
td, th { padding: .15rem 1.2rem .15rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: top; } td.n { font-variant-numeric: tabular-nums; } h2 { margin-top: 2rem; }
"""


def page(about: Mapping[str, Any], steps: Sequence[Figures]) -> str:
    """Return the report of a run from its `run.json` and the lines of its `metrics.jsonl`."""
    title = f"{about.get('kind', 'training')} · {about.get('name', '')}"
    charts = [chart for name, keys in LINES.items() if (chart := _lines(name, keys, steps))]
    bars = about.get("bars", {})
    charts += [bar_chart(name, values) for name, values in bars.items()]
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
    ]
    notes = [f'<p class="warn">{escape(note)}</p>' for note in about.get("notes", ())]
    tables = [
        _table("The run", about.get("facts", {})),
        "<main>" + "".join(charts) + "</main>",
        _table("Left out, by reason", about.get("left_out", {})),
        _table("Settings", _flat(about.get("settings", {}))),
        _table("Versions", about.get("versions", {})),
    ]
    return "\n".join([*head, *notes, *tables, "</body></html>", ""])


def write_report(folder: Path) -> Path:
    """Write `report.html` of a run's folder and return its path."""
    about = json.loads((folder / "run.json").read_text("utf-8"))
    path = folder / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    out = folder / "report.html"
    out.write_text(page(about, [json.loads(line) for line in lines]), "utf-8")
    return out


def _lines(title: str, keys: Sequence[str], steps: Sequence[Figures]) -> str | None:
    series = {
        key.partition("/")[2] or key: [(s["step"], s[key]) for s in steps if s.get(key) is not None]
        for key in keys
    }
    if not any(series.values()):
        return None
    return line_chart(title, series)


def _table(title: str, values: Mapping[str, Any]) -> str:
    if not values:
        return ""
    rows = "".join(
        f'<tr><td>{escape(str(name))}</td><td class="n">{escape(_shown(value))}</td></tr>'
        for name, value in values.items()
    )
    return f"<h2>{escape(title)}</h2><table>{rows}</table>"


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return short_number(value) if isinstance(value, int | float) else str(value)


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return found
