"""Paths in the user's words: from a root, step by step, to the object that is held.

Each step extends the expression (`model[0].weight`), or begins a new one where a reader thinks in another thing than
attributes and indices: a closure's cell, a hook, a graph, a traceback, a generator, a cache. Then the former expression
says by what that thing is held.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._frames import local_items, place, short_file
from gpuheap._names import Names
from gpuheap._objects import class_module, class_name, instance_dict, is_instance, key_text, slot_name
from gpuheap._referrers import Found, Node
from gpuheap._world import World

__all__ = ["Place", "describe"]

_MODULE_CHILDREN = frozenset(("_parameters", "_buffers", "_modules"))
_HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_post_accumulate_grad_hooks": "gradient hook",
    "_state_dict_hooks": "state_dict hook",
    "_state_dict_pre_hooks": "state_dict pre-hook",
    "_load_state_dict_pre_hooks": "load_state_dict pre-hook",
    "_load_state_dict_post_hooks": "load_state_dict hook",
    "_optimizer_step_pre_hooks": "optimizer step pre-hook",
    "_optimizer_step_post_hooks": "optimizer step hook",
    "_global_forward_hooks": "forward hook",
    "_global_forward_pre_hooks": "forward pre-hook",
    "_global_backward_hooks": "backward hook",
}
_GENERATORS: dict[type, tuple[str, str]] = {
    types.GeneratorType: ("gi_frame", "suspended generator"),
    types.CoroutineType: ("cr_frame", "suspended coroutine"),
    types.AsyncGeneratorType: ("ag_frame", "suspended async generator"),
}
_NOTEBOOK_OUTPUTS = ("Out", "_oh")
_PROMPT_RESULTS = ("_", "__", "___")
_LAST_ERRORS = ("last_exc", "last_value", "last_traceback")
_MAX_INDEX = 5_000_000


@dataclass
class Place:
    """A path as text, and what can be said about it in fields."""

    kind: str = ""
    """What holds the object last: `global`, `local`, `closure`, `hook`, `autograd`, `traceback`, …"""
    root: str = ""
    """Where the path begins: `global`, `local`, `class`, …"""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    thread: str | None = None
    head: str = ""
    expression: str = ""
    tail: str = ""
    also: list[str] = field(default_factory=list)
    """The kinds of the places before the last."""

    @property
    def text(self) -> str:
        """The whole sentence."""
        return self.head + self.expression + self.tail

    def begin(self, kind: str, head: str, expression: str, tail: str) -> None:
        """A new thing, held by what was said so far (which the caller has put into `tail` or `head`)."""
        self.also.append(self.kind)
        self.kind = kind
        self.head, self.expression, self.tail = head, expression, tail

    def at(self, code: types.CodeType, line: int | None = None) -> None:
        """The place in the program is that of `code`."""
        self.file = code.co_filename
        self.line = code.co_firstlineno if line is None else line
        self.function = code.co_name


def _held_by(outer: str, name: str) -> str:
    # `lru_cache of embed, held by train.embed` says nothing that the name did not say.
    bare = name.replace(".<locals>", "")
    if outer.endswith("." + bare) and all(part.isidentifier() for part in outer.split(".")):
        return ""
    return f", held by {outer}"


def _function_at(function: types.FunctionType) -> str:
    return f"{function.__code__.co_name} ({place(function.__code__)})"


class _Walk:
    """Goes along one path."""

    def __init__(self, found: Found, names: Names, world: World | None) -> None:
        self.names = names
        self.world = world
        self.place = Place()
        self.nodes: list[Node] = []
        node: Node | None = found.node
        while node is not None:
            self.nodes.append(node)
            node = node.held
        self.root(found)
        previous: Any = None
        index = 0
        while index + 1 < len(self.nodes):
            holder, held = self.nodes[index].value, self.nodes[index + 1].value
            if self.nodes[index].link is not None:
                self.link(self.nodes[index])
            else:
                self.step(previous, holder, held, index)
            previous = holder
            index += 1

    # Roots

    def root(self, found: Found) -> None:
        root, value, place_ = found.root, found.node.value, self.place
        place_.kind = place_.root = root.kind
        if root.kind == "local" and root.call is not None:
            frame = root.call.frame
            place_.expression = f"local '{root.name}'"
            place_.tail = f" in {place(frame.f_code, frame.f_lineno)} ({frame.f_code.co_name})"
            if not frame.f_code.co_flags & 1:  # not optimized: a class body
                place_.tail = f" in {place(frame.f_code, frame.f_lineno)} (class {frame.f_code.co_name})"
            place_.at(frame.f_code, frame.f_lineno)
            if root.call.thread is not None:
                place_.thread = root.call.thread
                place_.tail += f", thread '{root.call.thread}'"
        elif root.kind == "global":
            self.root_global(root.module, root.name, root.holder)
        elif root.kind == "class":
            module = class_module(root.holder)
            # A class's attributes lie in a dictionary of its own, which is the first step.
            place_.expression = f"{module}.{class_name(root.holder)}"
            place_.file = getattr(sys.modules.get(module), "__file__", None)
            attributes = type.__dict__["__dict__"].__get__(root.holder)
            if type(value) is not dict:
                for name, content in list(attributes.items()):
                    if content is value:
                        place_.expression += f".{name}"
                        break
        elif root.kind == "exception":
            place_.expression = f"the {type(value).__name__} that is being handled"
        elif root.kind == "cycle":
            place_.expression = f"a reference cycle through {class_name(type(value))}"
        else:
            place_.expression = f"a {class_name(type(value))}"
            place_.tail = " that nothing visible to Python holds (C or C++ code, or a temporary of a running call)"

    def root_global(self, module: str, name: str, namespace: dict[Any, Any]) -> None:
        place_ = self.place
        file = namespace.get("__file__")
        place_.file = file if type(file) is str else None
        place_.expression = f"{module}.{name}"
        if module == "__main__" and name in _NOTEBOOK_OUTPUTS:
            place_.kind = "notebook"
            place_.expression = "Out"
        elif (module in ("__main__", "builtins") and name in _PROMPT_RESULTS) or (
            module == "__main__" and name.startswith("_") and name[1:].isdigit()
        ):
            place_.kind = "notebook"
            place_.expression = name
            place_.tail = " (an earlier result at the prompt)"
        elif module == "sys" and name in _LAST_ERRORS:
            place_.kind = "last error"

    # Links in C++

    def link(self, node: Node) -> None:
        link, place_ = node.link, self.place
        if link is None:
            return
        outer = place_.text
        behind = f"{link.steps} step{'s' if link.steps > 1 else ''} behind the " if link.steps else ""
        if link.kind == "saved":
            place_.begin("autograd", f"saved for backward by {link.node} (", f"{behind}grad_fn of {outer}", ")")
        elif link.kind == "variable":
            place_.begin("autograd", "a leaf of the graph (", f"{behind}grad_fn of {outer}", ")")
        elif link.kind == "graph":
            place_.begin("autograd", "", "ctx", f" of {link.node} ({behind}grad_fn of {outer})")
        elif link.kind == "grad":
            place_.expression += ".grad"
        else:
            place_.kind = "view" if link.kind == "view" else "storage"
            self.sizes(node.value, "a view of it" if link.kind == "view" else "the same storage")

    def sizes(self, holder: Any, what: str) -> None:
        world = self.world
        if world is None:
            return
        if not is_instance(holder, world.torch.Tensor):
            self.place.tail += ", a bare storage"
            return
        from gpuheap._tensors import storages_of  # here, as only tensors come this far

        pinned = sum(storage.bytes for storage in storages_of(world.torch, holder))
        needed = world.needed(holder)
        if needed < pinned:
            what += f", needs {bytes_text(needed)}, pins {bytes_text(pinned)}"
        self.place.tail += f" ({what})"

    # References

    def step(self, before: Any, holder: Any, held: Any, index: int) -> None:
        kind = type(holder)
        if is_instance(holder, dict):
            self.dictionary(before, holder, held, index)
        elif kind is list or kind is tuple or is_instance(holder, deque):
            self.sequence(before, holder, held)
        elif is_instance(holder, list) or is_instance(holder, tuple):
            if not self.attribute_of(holder, held):
                self.sequence(before, holder, held)
        elif kind in (set, frozenset):
            self.place.begin("set", "", "an element", f" of {self.place.text}")
        elif kind is types.CellType:
            pass  # the closure has named it
        elif kind is types.FunctionType:
            self.function(holder, held)
        elif kind is types.MethodType:
            outer = self.place.text
            name = getattr(holder.__func__, "__qualname__", "?")
            self.place.begin(
                "method", "", "self", f" of the bound method {name.split('.<locals>.')[-1]}, held by {outer}"
            )
        elif kind is functools._lru_cache_wrapper:
            self.cache(holder)
        elif kind is types.TracebackType:
            pass  # the exception has named it, or the frame will
        elif is_instance(holder, BaseException):
            self.exception(holder, held)
        elif kind is types.FrameType:
            self.frame(before, holder, held)
        elif kind in _GENERATORS:
            self.generator(holder, held)
        elif kind is Context:
            self.context(holder, index)
        elif class_name(kind).startswith("hamt"):
            pass
        else:
            self.instance(holder, held)

    def instance(self, holder: Any, held: Any) -> None:
        if type(held) is dict and instance_dict(holder) is held:
            return  # its attributes: the next step names one
        if not self.attribute_of(holder, held):
            outer = self.place.text
            self.place.begin("object", "", f"inside a {class_name(type(holder))}", f", held by {outer}")

    def attribute_of(self, holder: Any, held: Any) -> bool:
        attributes = instance_dict(holder)
        if attributes is not None:
            if attributes is held:
                return True
            for name, value in list(attributes.items()):
                if value is held:
                    self.attribute(holder, str(name))
                    return True
        name = slot_name(holder, held)
        if name is None and self.world is not None and is_instance(holder, self.world.torch.Tensor):
            for candidate in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                if getattr(holder, candidate, None) is held:
                    name = candidate
        if name is None:
            return False
        self.attribute(holder, name)
        return True

    def attribute(self, holder: Any, name: str) -> None:
        self.place.expression += f".{name}"

    def dictionary(self, before: Any, holder: dict[Any, Any], held: Any, index: int) -> None:
        place_ = self.place
        if type(before) is types.FunctionType and before.__kwdefaults__ is holder:
            self.default(before, next((str(key) for key, value in list(holder.items()) if value is held), "?"))
            return
        if type(before) is functools._lru_cache_wrapper:
            return
        if before is not None and type(before) is not dict and instance_dict(before) is holder:
            for key, value in list(holder.items()):
                if value is held:
                    self.attribute(before, str(key))
                    return
        if before is None and place_.root == "class":
            for key, value in list(holder.items()):
                if value is held:
                    place_.expression += f".{key}"
                    return
        last = place_.expression.rpartition(".")
        for key, value in list(holder.items()):
            if value is not held:
                continue
            if last[2] in _MODULE_CHILDREN:
                place_.expression = last[0] + (f"[{key}]" if str(key).isdigit() else f".{key}")
            elif last[2] in _HOOKS and type(key) is int:
                place_.expression = last[0]
                outer = place_.text
                tensor = self.world is not None and is_instance(before, self.world.torch.Tensor)
                place_.begin("hook", "", "tensor hook" if tensor else _HOOKS[last[2]], f" of {outer}")
            else:
                place_.expression += f"[{self.key(key)}]"
                if place_.kind == "global" and place_.expression.startswith("threading._active["):
                    place_.kind = "thread"
                    place_.head = ""
                    place_.expression = f"thread '{getattr(value, '_name', '?')}'"
            return
        for key in list(holder):
            if key is held:
                place_.begin("key", "", self.names.of(key) or key_text(key), f", a key of {place_.text}")
                return
        # The parts of a key: (self, 3) in a cache, say.
        if index + 2 < len(self.nodes):
            place_.expression += "[…]"

    def key(self, key: Any) -> str:
        return self.names.of(key) or key_text(key)

    def sequence(self, before: Any, holder: Any, held: Any) -> None:
        place_ = self.place
        if type(before) is types.FunctionType and type(holder) is tuple:
            if before.__closure__ is holder:
                position = next((at for at, cell in enumerate(holder) if cell is held), 0)
                name = before.__code__.co_freevars[position]
                outer = place_.text
                by = outer if place_.kind == "hook" else ""
                tail = f" of {_function_at(before)}"
                tail += f", {by}" if by else _held_by(outer, before.__qualname__)
                place_.begin("closure", "closure cell ", f"'{name}'", tail)
                place_.at(before.__code__)
                return
            if before.__defaults__ is holder:
                position = next((at for at, value in enumerate(holder) if value is held), 0)
                names = before.__code__.co_varnames[: before.__code__.co_argcount]
                self.default(before, names[len(names) - len(holder) + position])
                return
        if type(before) is functools._lru_cache_wrapper:
            return  # a key of the cache
        for at, value in enumerate(holder):
            if value is held:
                place_.expression += f"[{at}]"
                return
            if at > _MAX_INDEX:
                break
        place_.expression += "[…]"

    def default(self, function: types.FunctionType, name: str) -> None:
        outer = self.place.text
        self.place.begin(
            "default argument",
            "default argument ",
            f"'{name}'",
            f" of {_function_at(function)}{_held_by(outer, function.__qualname__)}",
        )
        self.place.at(function.__code__)

    def function(self, holder: types.FunctionType, held: Any) -> None:
        if held is holder.__closure__ or held is holder.__defaults__ or held is holder.__kwdefaults__:
            return
        self.instance(holder, held)

    def cache(self, holder: Any) -> None:
        wrapped = getattr(holder, "__wrapped__", None)
        outer = self.place.text
        if type(wrapped) is types.FunctionType:
            tail = _held_by(outer, wrapped.__qualname__)
            self.place.begin("cache", "lru_cache of ", _function_at(wrapped), tail)
            self.place.at(wrapped.__code__)
        else:
            self.place.begin("cache", "", "an lru_cache", f", held by {outer}")

    def exception(self, holder: BaseException, held: Any) -> None:
        if type(held) is types.TracebackType:
            outer = self.place.text
            self.place.begin("traceback", f"the traceback of {type(holder).__name__} in ", outer, "")
            if self.place.also[-1] == "exception":
                self.place.head = "the traceback of "
            return
        for name in ("__context__", "__cause__"):
            if getattr(holder, name, None) is held:
                self.place.expression += f".{name}"
                return
        if held is holder.args:
            self.place.expression += ".args"
            return
        self.instance(holder, held)

    def frame(self, before: Any, holder: types.FrameType, held: Any) -> None:
        if held is holder.f_back:
            return
        outer = self.place.text
        line = before.tb_lineno if type(before) is types.TracebackType else holder.f_lineno
        name = self.local(holder, held)
        if name is None:
            return
        at = f" in {place(holder.f_code, line)} ({holder.f_code.co_name}"
        if type(before) in _GENERATORS:
            # Before Python 3.11 a generator has its frame between itself and its variables.
            what = _GENERATORS[type(before)][1]
            self.place.begin("generator", "local ", f"'{name}'", f"{at}, {what}), held by {outer}")
        else:
            self.place.begin("traceback", "local ", f"'{name}'", f"{at}), kept by {outer}")
        self.place.at(holder.f_code, line)

    @staticmethod
    def local(frame: types.FrameType, held: Any) -> str | None:
        for name, value in local_items(frame):
            if value is held:
                return name
        if type(held) is types.CellType:
            for name, value in local_items(frame):
                if value is held.cell_contents:
                    return name
        return None

    def generator(self, holder: Any, held: Any) -> None:
        attribute, what = _GENERATORS[type(holder)]
        frame = getattr(holder, attribute)
        if frame is None or held is frame:
            return
        outer = self.place.text
        name = self.local(frame, held)
        if name is None:
            # What it waits for, or an unnamed value: the iterator of its loop.
            self.place.begin("generator", "", f"a value of {frame.f_code.co_name}", f" ({what}), held by {outer}")
            return
        self.place.begin(
            "generator",
            "local ",
            f"'{name}'",
            f" in {place(frame.f_code, frame.f_lineno)} ({frame.f_code.co_name}, {what}), held by {outer}",
        )
        self.place.at(frame.f_code, frame.f_lineno)

    def context(self, holder: Context, index: int) -> None:
        later = [node.value for node in self.nodes[index + 1 :]]
        for variable, value in list(holder.items()):
            if any(value is one for one in later):
                self.place.begin("context variable", "context variable ", f"'{variable.name}'", "")
                return


def describe(found: Found, names: Names, world: World | None) -> Place:
    """The path of `found` in words."""
    return _Walk(found, names, world).place


def file_text(file: str | None) -> str:
    """The file as it is shown beside a path, or an empty text."""
    return short_file(file) if file else ""
