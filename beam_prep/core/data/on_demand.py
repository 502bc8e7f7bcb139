"""Sequences whose elements are made when they are accessed."""

from collections.abc import Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class OnDemand(Sequence[T]):
    """A subclass defines `__len__`, and `_at`, which makes the element at an index from 0 on."""

    def _at(self, index: int) -> T:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        places = range(len(self))
        return [self._at(place) for place in places[index]] if isinstance(index, slice) else self._at(places[index])
