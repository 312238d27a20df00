"""The day of a time, however a log writes times."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from tilewright.errors import UsageError

_DAY_NUMBERS = 10**8
"""Numbers below are of days (also 20261124); above, of seconds since 1970, of which a thousand times as many are
milliseconds, and so on."""


def day_of(value: Any, where: str) -> str:
    """The day of a time, in UTC: 2026-11-24, or a number.

    >>> day_of(1_795_478_400, ""), day_of("2026-11-24 23:59", ""), day_of(17, "")
    ('2026-11-24', '2026-11-24', '17')
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            value = int(value) if value.strip().isdecimal() else value
    if isinstance(value, datetime):
        value = value.astimezone(UTC).date() if value.tzinfo else value.date()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int | float) and 0 <= value < 2**63:
        while value >= _DAY_NUMBERS * 1000:
            value //= 1000
        if value < _DAY_NUMBERS:
            return str(int(value))
        return datetime.fromtimestamp(value, UTC).date().isoformat()
    how = "timestamps, dates, texts such as 2026-11-24, seconds since 1970, or numbers of days"
    raise UsageError(f"{value!r} is no time", where=where, how=how)
