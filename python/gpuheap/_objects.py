"""Looks at objects without running any of their code.

What a program keeps can be hostile by accident: `__getattr__` that raises, proxies that lie about their class, `__eq__`
that returns a tensor, a `__repr__` that loads a file. Everything here reads slots, instance dictionaries and type
attributes through the descriptors of the interpreter, and compares by identity.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

__all__ = [
    "class_module",
    "class_name",
    "instance_dict",
    "is_instance",
    "key_text",
    "mro",
    "slot_name",
]

_TYPE_MRO = type.__dict__["__mro__"]
_TYPE_DICT = type.__dict__["__dict__"]
_TYPE_MODULE = type.__dict__["__module__"]
_TYPE_QUALNAME = type.__dict__["__qualname__"]
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_MAX_KEY = 40


def mro(cls: type) -> tuple[type, ...]:
    """The classes that `cls` inherits from, itself first, whatever its metaclass says."""
    classes: tuple[type, ...] = _TYPE_MRO.__get__(cls)
    return classes


def is_instance(value: Any, cls: type) -> bool:
    """`isinstance` by the real type alone: no `__class__` property and no `__instancecheck__` is asked."""
    return cls in mro(type(value))


def class_name(cls: type) -> str:
    """The name of a class as its author wrote it, with the classes and functions around it."""
    try:
        return str(_TYPE_QUALNAME.__get__(cls))
    except Exception:  # a metaclass or a half-made type can do anything
        return "object"


def class_module(cls: type) -> str:
    """The name of the module that a class says it comes from, or an empty text."""
    try:
        module = _TYPE_MODULE.__get__(cls)
    except Exception:
        return ""
    return module if type(module) is str else ""


def instance_dict(value: Any) -> dict[Any, Any] | None:
    """The attributes of an object as the dictionary that really holds them; None if it has none."""
    if type(value) is type or is_instance(value, type):
        return None
    for cls in mro(type(value)):
        descriptor = _TYPE_DICT.__get__(cls).get("__dict__")
        if type(descriptor) in _DESCRIPTORS:
            try:
                attributes = descriptor.__get__(value)
            except Exception:
                return None
            # By the real type again: a C type may hand out something else, or nothing yet.
            return attributes if attributes is not None and dict in mro(type(attributes)) else None
    return None


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for cls in mro(type(value)):
        for name, descriptor in list(_TYPE_DICT.__get__(cls).items()):
            if type(descriptor) is types.MemberDescriptorType and name != "__dict__":
                try:
                    yield name, descriptor.__get__(value)
                except Exception:  # an empty slot
                    continue


def slot_name(value: Any, held: Any) -> str | None:
    """The slot of `value` in which `held` lies: `__slots__`, or a field of a C type such as `partial.func`."""
    for name, content in _slots(value):
        if content is held:
            return name
    return None


def key_text(key: Any) -> str:
    """A dictionary's key as short text. Only exact built-in types are shown by value.

    >>> key_text("fc"), key_text((1, "a")), key_text(object())
    ("'fc'", "(1, 'a')", '<object>')
    """
    kind = type(key)
    if kind in (str, bytes):
        text = repr(key[: _MAX_KEY + 1])
        return text if len(text) <= _MAX_KEY else text[: _MAX_KEY - 1] + "…" + text[0]
    if kind in (int, float, bool, complex, type(None)):
        return repr(key) if kind is not int or key.bit_length() < 128 else hex(key >> (key.bit_length() - 64)) + "…"
    if kind is tuple and len(key) <= 4:
        return "(" + ", ".join(key_text(part) for part in key) + ("," if len(key) == 1 else "") + ")"
    return f"<{class_name(kind)}>"


def module_dict_names() -> dict[int, str]:
    """The dictionaries of all loaded modules by identity, and under which name each is loaded."""
    names: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        attributes = instance_dict(module)
        if attributes is not None and type(name) is str:
            names.setdefault(id(attributes), name)
    return names
