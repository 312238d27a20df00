"""Attributes that are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["once"]

T = TypeVar("T")


class once(Generic[T]):
    """``functools.cached_property`` without the lock it has on Python 3.11, one for all instances.

    Under that lock one plan waits for another's kernel to be compiled, and a child forked meanwhile waits for ever.
    Threads that ask at the same time may each make one, but all are given the same.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> once[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._make(instance))  # found there at once from now on
