"""A movement report as plain values, and back: what `report --json` writes and `--baseline` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tilewright.errors import UsageError
from tilewright.hlo.reporting._report_types import MovementReport, MovementRow, PaddedTensor, Peak, ProfileSummary

__all__ = ["SCHEMA_VERSION", "from_json", "row_json", "to_json"]

#: Counts changes that break readers. 2: totals count loops by their trips; ``tensors`` has every tensor.
SCHEMA_VERSION = 2

_ROW = tuple(field.name for field in fields(MovementRow))
_TENSOR = tuple(field.name for field in fields(PaddedTensor))


def to_json(report: MovementReport) -> dict[str, Any]:
    """Plain values: the version, the input, totals, peaks, rows and tensors in the program's order."""
    from tilewright.version import __version__

    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "movement_report",
        "tilewright": __version__,
        "input": report.source,
        "program": {"name": report.program, "kind": report.kind},
        "target": report.target,
        "predicted": report.predicted,
        "tiled": report.tiled,
        "unoptimized": report.unoptimized,
        "register_bytes": report.register_bytes,
        "unsized": list(report.unsized),
        "unknown_loops": list(report.unknown_loops),
        "notes": list(report.notes),
        "totals": _totals(report),
        "profile": _profile_json(report.profile),
        "peaks": [_peak_json(peak) for peak in report.peaks],
        "rows": [row_json(row) for row in report.rows],
        "tensors": [_tensor_json(tensor) for tensor in report.tensors],
    }


def _totals(report: MovementReport) -> dict[str, Any]:
    before, after = report.registers
    return {
        "rows": len(report.rows),
        "bitcasts": report.bitcasts,
        "moved_bytes": report.moved_bytes,
        "moved_by_op": report.moved_by_op,
        "moved_by_category": report.moved_by_category,
        "hidden_bytes": report.hidden_bytes,
        "registers_before": before,
        "registers_after": after,
        "tensors": len(report.tensors),
        "logical_bytes": report.logical_bytes,
        "padded_bytes": report.padded_bytes,
        "wasted_bytes": report.wasted_bytes,
        "peak_bytes": report.peak.padded_bytes if report.peak else 0,
    }


def row_json(row: MovementRow) -> dict[str, Any]:
    """One row as plain values, with what is derived from them."""
    plain: dict[str, Any] = {name: getattr(row, name) for name in _ROW}
    plain["trips"] = list(row.trips)
    return {**plain, "total_bytes": row.total_bytes, "padding_ratio": row.padding_ratio}


def _tensor_json(tensor: PaddedTensor) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(tensor, name) for name in _TENSOR}
    return {**plain, "wasted_bytes": tensor.wasted_bytes, "padding_ratio": tensor.padding_ratio}


def _peak_json(peak: Peak) -> dict[str, Any]:
    return {
        "memory_space": peak.memory_space,
        "padded_bytes": peak.padded_bytes,
        "logical_bytes": peak.logical_bytes,
        "at": peak.at,
        "path": peak.path,
        "tensors": [_tensor_json(tensor) for tensor in peak.tensors],
    }


def _profile_json(profile: ProfileSummary | None) -> dict[str, Any] | None:
    if profile is None:
        return None
    return {
        "source": profile.source,
        "total_us": profile.total_us,
        "matched_us": profile.matched_us,
        "rows_us": profile.rows_us,
        "unmatched_share": profile.unmatched_share,
        "unmatched": list(profile.unmatched),
    }


def from_json(plain: Mapping[str, Any], where: str = "") -> MovementReport:
    """The report that :func:`to_json` wrote. Raises UsageError for anything else, naming what is wrong.

    >>> from tilewright.hlo import load, report
    >>> found = report(load("HloModule m\\nENTRY e { ROOT p = f32[4,2]{1,0:T(8,128)} parameter(0) }"))
    >>> from_json(to_json(found)) == found
    True
    """
    _check_head(plain, where)
    try:
        program, profile = plain["program"], plain["profile"]
        return MovementReport(
            *(str(program["name"]), str(program["kind"]), plain["target"]),
            *(bool(plain["predicted"]), bool(plain["tiled"]), tuple(plain["unsized"])),
            rows=tuple(_row(row) for row in plain["rows"]),
            tensors=tuple(_tensor(tensor) for tensor in plain["tensors"]),
            peaks=tuple(_peak(peak) for peak in plain["peaks"]),
            unknown_loops=tuple(plain["unknown_loops"]),
            register_bytes=plain["register_bytes"],
            profile=None if profile is None else _profile(profile),
            unoptimized=bool(plain.get("unoptimized", False)),
            source=str(plain.get("input", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"not a whole movement report: {what}", where=where, how="write it with: tilewright report X -o report.json"
        ) from None


def _check_head(plain: Mapping[str, Any], where: str) -> None:
    how = "write it with: tilewright report X -o report.json"
    if not isinstance(plain, Mapping) or plain.get("kind") != "movement_report":
        raise UsageError("this JSON is not a movement report", where=where, how=how)
    if plain.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"schema_version {plain.get('schema_version')!r}, but this version reads {SCHEMA_VERSION}",
            where=where,
            how=f"{how} of this version",
        )


def _row(plain: Mapping[str, Any]) -> MovementRow:
    found = {name: plain[name] for name in _ROW}
    return MovementRow(**{**found, "trips": tuple(found["trips"])})


def _tensor(plain: Mapping[str, Any]) -> PaddedTensor:
    return PaddedTensor(**{name: plain[name] for name in _TENSOR})


def _peak(plain: Mapping[str, Any]) -> Peak:
    names = ("memory_space", "padded_bytes", "logical_bytes", "at", "path")
    return Peak(**{name: plain[name] for name in names}, tensors=tuple(map(_tensor, plain["tensors"])))


def _profile(plain: Mapping[str, Any]) -> ProfileSummary:
    names = ("source", "total_us", "matched_us", "rows_us")
    return ProfileSummary(**{name: plain[name] for name in names}, unmatched=tuple(plain["unmatched"]))
