"""The optional packages: which extra brings each, and one sentence for whoever lacks one."""

from __future__ import annotations

from importlib.util import find_spec

from tilewright.errors import UsageError

_EXTRA_OF = {
    "jax": "jax",
    "jaxlib": "jax",
    "optax": "embed",
    "orbax": "embed",
    "pyarrow": "embed",
    "tensorstore": "embed",
    "ray": "ray",
    "perfetto": "trace",
    "starlette": "explore",
    "uvicorn": "explore",
    "mcp": "mcp",
}


class MissingExtra(UsageError):
    """A package that an extra brings is not installed."""


def installed(package: str) -> bool:
    """Whether a package can be imported, found without importing it."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def need(*packages: str, what: str = "this", how: str = "") -> None:
    """MissingExtra unless all packages are installed; called before work begins.

    ``what`` needs them. ``how``: another way than to install them, if there is one.
    """
    lacking = [package for package in packages if not installed(package)]
    if lacking:
        raise _missing(lacking, what, how)


def missing_extra(error: ImportError) -> MissingExtra | None:
    """What an import's failure says in words of ours, where the package is one that an extra brings."""
    package = (error.name or "").partition(".")[0]
    return _missing([package], "this", "") if package in _EXTRA_OF and not installed(package) else None


def _missing(packages: list[str], what: str, how: str) -> MissingExtra:
    extras = ",".join(dict.fromkeys(_EXTRA_OF[package] for package in packages))
    names, verb = " and ".join(packages), "is" if len(packages) == 1 else "are"
    install = f"pip install 'tilewright[{extras}]'"
    return MissingExtra(f"{what} needs {names}, which {verb} not installed", how=f"{install}{how and f', or {how}'}")
