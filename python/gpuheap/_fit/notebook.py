"""A plan in a notebook: what its text says, as tables."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from gpuheap._bytes import bytes_text, signed_bytes_text
from gpuheap._fit.explain import head, title

__all__ = ["notebook"]

_HOLDERS = 5


def notebook(found: Mapping[str, Any]) -> str:
    """Verdict and peaks, the plan, and who holds memory at the peak, as HTML."""
    verdict, *facts = head(found)
    parts = [f"<p><strong>{html.escape(verdict)}</strong></p>"]
    parts += [f"<p>{html.escape(line.strip())}</p>" for line in facts]
    if found["plan"]:
        parts.append(_table(("change", "memory", "step", "why"), [_lever(lever) for lever in found["plan"]]))
    holders = found.get("peak", {}).get("holders", [])[:_HOLDERS]
    if holders:
        rows = [(bytes_text(int(one["bytes"])), str(one["class"]), str(one.get("module", ""))) for one in holders]
        parts.append(_table(("held at the peak", "class", "by"), rows))
    parts += [f"<p>note: {html.escape(str(note))}</p>" for note in found.get("notes", [])]
    return "".join(parts)


def _lever(lever: Mapping[str, Any]) -> tuple[str, ...]:
    saves = signed_bytes_text(-int(lever.get("saves_bytes", 0)))
    costs = f"{float(lever.get('costs_us', 0.0)) / 1e3:+.1f} ms"
    return title(lever), saves, costs, str(lever.get("why", ""))


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"
