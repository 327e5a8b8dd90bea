"""Amounts of memory as text and back, by the rules of the `gpuheap` command."""

from __future__ import annotations

import re

__all__ = ["bytes_text", "parse_bytes", "signed_bytes_text"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FACTORS = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tib": 1 << 40,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "tb": 1_000_000_000_000,
}


def bytes_text(amount: int) -> str:
    """`amount` bytes in binary units with three digits.

    >>> bytes_text(27_130_997_760)
    '25.3 GiB'
    >>> bytes_text(1023)
    '1023 B'
    """
    if amount < 0:
        return "-" + bytes_text(-amount)
    unit = 0
    value = float(amount)
    # 1023.5 would round up to "1024" of the smaller unit: move on a little before.
    while value >= 1023.5 and unit + 1 < len(_UNITS):
        value /= 1024.0
        unit += 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def signed_bytes_text(amount: int) -> str:
    """Like `bytes_text`, with a sign: a change rather than an amount.

    >>> signed_bytes_text(2 << 20), signed_bytes_text(0), signed_bytes_text(-512)
    ('+2.00 MiB', '0 B', '-512 B')
    """
    return ("+" if amount > 0 else "") + bytes_text(amount)


def parse_bytes(amount: int | float | str) -> int:
    """Reads `24GiB` (binary), `24GB` (decimal), `24G` (binary, as the tools of the field mean it) or plain bytes.

    Raises:
        ValueError: the text is not an amount of memory, or it is negative.

    >>> parse_bytes("1.5 GiB")
    1610612736
    """
    if isinstance(amount, (int, float)):
        if not 0 <= amount < 1 << 64:
            raise ValueError(f"`{amount}` is not an amount of memory: it must lie between 0 and 16 EiB")
        return int(amount)
    match = re.fullmatch(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)", amount.strip())
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise ValueError(
            f"`{amount}` is not an amount of memory: write `24GiB`, `24GB`, `512MiB` or a plain number of bytes"
        )
    number = match.group(1).replace("_", "")
    return int(number) * factor if number.isdigit() else round(float(number) * factor)
