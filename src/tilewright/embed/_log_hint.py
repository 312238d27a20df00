"""What a reader of a text log may not expect: whole numbers that are hashed, because all of a CSV is text."""

from __future__ import annotations

import csv
from itertools import islice

from tilewright.embed._log import Log
from tilewright.embed._log_values import SEPARATOR

__all__ = ["hashed_numbers"]

_LINES = 100


def hashed_numbers(log: Log) -> tuple[str, ...]:
    """Features of a CSV or TSV whose first cells are whole numbers of their table, and which are hashed by default.

    () for every other kind of log, and where the configuration says ``ids``.
    """
    if log.kind != "text":
        return ()
    try:
        with open(log.path, encoding="utf-8", errors="replace", newline="") as file:
            head = file.readline()
            names = next(csv.reader([head], delimiter="\t" if "\t" in head else ","), [])
            rows = list(islice(csv.reader(file, delimiter="\t" if "\t" in head else ","), _LINES))
    except (OSError, csv.Error):
        return ()  # reading the log will say what is wrong
    found = []
    for feature, column in zip(log.features, log.columns):
        if column.ids == "auto" and column.name in names:
            at = names.index(column.name)
            cells = [cell for row in rows if at < len(row) for cell in row[at].split(SEPARATOR) if cell.strip()]
            if cells and all(c.strip().isdecimal() and int(c) < feature.table.vocab for c in cells):
                found.append(feature.name)
    return tuple(found)
