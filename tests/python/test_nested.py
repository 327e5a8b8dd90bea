"""Structures of batches."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from gpuheap._nested import map_leaves


class Pair(NamedTuple):
    first: Any
    second: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    checked: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        assert isinstance(self.value, int)
        object.__setattr__(self, "checked", True)


class Movable(NamedTuple):
    value: int

    def to(self, device: object) -> Movable:
        return self


def double(value: Any) -> Any:
    return value * 2 if type(value) is int else value


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (1, 2),
        ("text", "text"),
        ((1, [2, {"a": 3}]), (2, [4, {"a": 6}])),
        (Pair(1, (2,)), Pair(2, (4,))),
        (OrderedDict(b=1, a=2), OrderedDict(b=2, a=4)),
        (UserDict({"a": 1}), UserDict({"a": 2})),
        (MappingProxyType({"a": 1}), MappingProxyType({"a": 2})),
        ([], []),
        (None, None),
    ],
)
def test_structures_are_kept(batch: Any, expected: Any) -> None:
    result = map_leaves(batch, double)
    assert result == expected
    assert type(result) is type(expected)


def test_what_is_no_item_is_kept() -> None:
    batch: defaultdict[str, Any] = defaultdict(list, a=1)
    result = map_leaves(batch, double)
    assert (result["a"], result["new"], dict(batch)) == (2, [], {"a": 1})


def test_dataclasses_are_not_built_anew() -> None:
    result = map_leaves(Frozen(1), lambda value: "placeholder" if type(value) is int else value)
    assert (result.value, result.checked) == ("placeholder", True)


def test_what_can_move_itself_is_a_leaf() -> None:
    batch = Movable(1)
    assert map_leaves([batch], lambda leaf: leaf)[0] is batch
    Plain = namedtuple("Plain", ["value"])
    assert map_leaves(Plain(1), double) == Plain(2)
