"""A gather whose indices are constants: strided slices, or rows repeated, as the indices turn out."""

from __future__ import annotations

import numpy as np

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.constants import elements_of
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule

#: More slices than these beside each other are left a gather.
_MOST = 2

Run = tuple[int, int, int]  # first, step, count


def _runs(places: list[int]) -> list[Run] | None:
    """Equal steps upwards: [4, 5, 6, 0, 1] is two runs; None where there would be too many."""
    runs: list[Run] = []
    at = 0
    while at < len(places):
        step = places[at + 1] - places[at] if at + 1 < len(places) else 1
        count = 1
        while at + count < len(places) and places[at + count] - places[at + count - 1] == step:
            count += 1
        if step < 1 or len(runs) == _MOST:
            return None
        runs.append((places[at], step, count))
        at += count
    return runs


def _repeats(places: list[int], size: int) -> int:
    """How often each place comes, behind itself, in order and all of them: 0 where they do not."""
    times = len(places) // size
    return times if times > 1 and places == [k // times for k in range(size * times)] else 0


def _axes(node: Node) -> dict[int, tuple[int, list[int]]] | None:
    """For each picked dim of the operand: (its dim in the result or -1, the places in order).

    The picked dims must be independent: places along each depend on one dim of the indices alone.
    """
    own, (operand, indices) = node.attributes, node.operands
    if own["batch"] or set(own["index_map"]) != {d for d in own["index_map"] if own["sizes"][d] == 1}:
        return None
    if set(own["collapsed"]) != set(own["index_map"]) or len(own["index_map"]) > 3:
        return None
    if any(own["sizes"][d] != operand.sizes[d] for d in range(len(operand.sizes)) if d not in own["collapsed"]):
        return None
    held = elements_of(indices)
    if held is None:
        return None
    held = held[..., None] if own["index_dim"] == held.ndim else np.moveaxis(held, own["index_dim"], -1)
    batch_dims = [d for d in range(len(node.result.sizes)) if d not in own["offset_dims"]]
    axes: dict[int, tuple[int, list[int]]] = {}
    for k, d in enumerate(own["index_map"]):
        places = np.clip(held[..., k], 0, operand.sizes[d] - 1)
        varying = [a for a in range(places.ndim) if places.shape[a] > 1 and (np.diff(places, axis=a) != 0).any()]
        if len(varying) > 1:
            return None
        axis = varying[0] if varying else -1
        line = np.moveaxis(places, axis, 0).reshape(places.shape[axis], -1)[:, 0] if varying else places.reshape(-1)[:1]
        axes[d] = (batch_dims[axis] if varying else -1, [int(place) for place in line])
    used = [axis for axis, _ in axes.values() if axis >= 0]
    spread = [d for d in batch_dims if node.result.sizes[d] > 1 and d not in used]
    return axes if len(set(used)) == len(used) and not spread else None


def _fits(node: Node) -> bool:
    axes = _axes(node)
    if axes is None:
        return False
    return all(
        _runs(places) is not None or _repeats(places, node.operands[0].sizes[d]) for d, (_, places) in axes.items()
    )


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    axes = _axes(root)
    if axes is None:
        return None
    value = root.operands[0]
    for d, (_, places) in axes.items():
        size = value.sizes[d]
        if times := _repeats(places, size):
            wide = (*value.sizes[: d + 1], times, *value.sizes[d + 1 :])
            spread = make.broadcast(value, wide, [k for k in range(len(wide)) if k != d + 1])
            value = make.reshape(spread, (*value.sizes[:d], size * times, *value.sizes[d + 1 :]))
            continue
        runs = _runs(places) or []
        pieces = [make.part(value, d, first, first + (count - 1) * step + 1, step) for first, step, count in runs]
        value = make.concatenate(pieces, d)
    # From the operand's order to the result's: what stays at the offset dims, what was picked at its own.
    own = root.attributes
    stays = [d for d in range(len(value.sizes)) if d not in own["collapsed"]]
    goes = dict(zip(stays, sorted(own["offset_dims"]))) | {d: axis for d, (axis, _) in axes.items() if axis >= 0}
    kept = sorted(goes, key=goes.__getitem__)
    value = make.reshape(value, [size for d, size in enumerate(value.sizes) if d in goes])
    now = sorted(goes)
    return make.reshape(make.transpose(value, [now.index(d) for d in kept]), root.result.sizes)


def _pays(match: Match, root: Node) -> bool:
    """Places along the last dim, with a step: whole rows, and rolls of them, are gathered well as they are."""
    axes, last = _axes(root), len(root.operands[0].sizes) - 1
    assert axes is not None
    places = axes[last][1] if last in axes else []
    return len(places) > 1 and all(step > 1 for _, step, count in _runs(places) or [] if count > 1)


RULE = Rule(
    name="gather-at-fixed-places",
    phase="work",
    summary="a gather whose indices are constants: strided slices, or repeated rows",
    finding="elements at places known beforehand are gathered one by one",
    change="slice instead: x[..., ::2], jnp.roll, jnp.repeat (old releases of JAX lower x[..., ::2] to a gather)",
    source="the TPU compiler's estimate",
    pattern=op("gather", anything("operand"), anything("indices"), where=_fits),
    roots=frozenset({"gather"}),
    pays=_pays,
    build=_build,
    example=Example(
        before="""
            return x[:, :, (2 * jnp.arange(h))[:, None], 2 * jnp.arange(w)]
        """,
        after="""
            return x[:, :, ::2, ::2]
        """,
        shapes="x: T[b,c,2*h,2*w]",
        sizes="b=4 c=96 h=28 w=28",
        small="b=2 c=2 h=3 w=2",
        draw="b=1..3 c=1..3 h=2..4 w=2..4",
        types=("f32", "bf16"),
        away="""
            return x[:, :, (2 * jnp.arange(h) * (x[0, 0, 0, 0] > 0).astype(int))[:, None], 2 * jnp.arange(w)]
        """,
    ),
)
