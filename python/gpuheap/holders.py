"""Who keeps a tensor alive, in the words of the program: `gpuheap.holders(x)`."""

from __future__ import annotations

import gc
import html
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from gpuheap._arrays import Array, array_of
from gpuheap._bytes import bytes_text
from gpuheap._names import Names
from gpuheap._objects import class_name, is_instance
from gpuheap._paths import Place, describe, file_text
from gpuheap._referrers import Found, Node, Search
from gpuheap._tensors import Storage, loaded_torch, needed_bytes, storages_of, tensor_text
from gpuheap._world import Link, World

__all__ = ["Holder", "Holders", "holders"]

_MAX_SHARERS = 64
_FROZEN_AT_START = 5_000


@dataclass(frozen=True, slots=True)
class Holder:
    """One reason why something is alive. Text and numbers only: it keeps nothing alive itself."""

    path: str
    """In the user's words: `train.history[17]`, `local 'outputs'[3] in train.py:42 (step)`, `closure cell 'acc' of
    on_end (train.py:12), forward hook of train.model[0]`."""
    kind: str
    """What holds it last: `global`, `local`, `closure`, `hook`, `autograd`, `traceback`, `cache`, `generator`, `view`,
    `storage`, `method`, `default argument`, `thread`, `notebook`, `last error`, `cycle`, `unseen`, and others."""
    root: str
    """Where the path begins: `global`, `local`, `class`, `exception`, `cycle` or `unseen`."""
    file: str | None
    """The file of the last named function, frame or module of the path."""
    line: int | None
    """The line there: of the running or failed call, or where the function begins."""
    function: str | None
    """The function there."""
    thread: str | None
    """The name of the thread whose call holds it, unless it is the thread that asked."""
    bytes: int | None
    """How much memory is kept alive (whole storages); None for what is no tensor."""
    needed_bytes: int | None
    """What the holder itself needs of them: less than `bytes` if it is a view."""
    distance: int
    """How many objects lie between the root and the target."""

    def __str__(self) -> str:
        """The path."""
        return self.path


class Holders(Sequence[Holder]):
    """The answer of `holders`: a sequence of `Holder`, the shortest paths first, that prints as a short report."""

    __slots__ = ("_items", "bytes", "complete", "needed_bytes", "notes", "seconds", "subject")

    def __init__(
        self,
        items: Sequence[Holder],
        *,
        subject: str,
        bytes: int | None,
        needed_bytes: int | None = None,
        complete: bool,
        seconds: float,
        notes: Sequence[str],
    ) -> None:
        """Made by `holders`."""
        self._items = tuple(items)
        self.subject = subject
        """What was asked about: `Tensor[256, 1024] float32 on cuda:0`."""
        self.bytes = bytes
        """How much memory is behind it, in bytes; None for what is no tensor."""
        self.needed_bytes = needed_bytes
        """What it needs of them itself: less than `bytes` if it is a view of something larger."""
        self.complete = complete
        """False if the search ended before it had looked everywhere; `notes` say why."""
        self.seconds = seconds
        """How long the search took."""
        self.notes = tuple(notes)
        """What the reader should know about the answer."""

    def __len__(self) -> int:
        """How many holders were found."""
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Holder: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Holder, ...]: ...
    def __getitem__(self, index: int | slice) -> Holder | tuple[Holder, ...]:
        """One holder, or some of them."""
        return self._items[index]

    def text(self) -> str:
        """The report as text, without a line break at its end."""
        lines = [f"{self.subject}{self._size()}" + (", held by" if self._items else ": no holder found")]
        for holder in self._items:
            remarks = [file_text(holder.file)] if holder.file and holder.kind == holder.root == "global" else []
            # Asked by address, each holder may be a view of another size.
            kept, needed = holder.bytes, holder.needed_bytes
            if self.needed_bytes is None and kept is not None and needed is not None and needed < kept:
                remarks.append(f"a view that needs {bytes_text(needed)}")
            lines.append(f"  {holder.path}" + (f"  ({', '.join(remarks)})" if remarks else ""))
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _size(self) -> str:
        if self.bytes is None:
            return ""
        if self.needed_bytes is not None and self.needed_bytes < self.bytes:
            return f", a view that needs {bytes_text(self.needed_bytes)} and pins {bytes_text(self.bytes)}"
        return f", {bytes_text(self.bytes)}"

    __str__ = text

    def __repr__(self) -> str:
        """Short; `str()` has the report."""
        return f"<Holders: {len(self._items)} of {self.subject}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><code>{html.escape(holder.path)}</code></td><td>{html.escape(holder.kind)}</td>"
            f"<td>{html.escape(holder.file or '')}{f':{holder.line}' if holder.line else ''}</td></tr>"
            for holder in self._items
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            f"<p>{html.escape(self.subject)}{self._size()}</p>"
            "<table><thead><tr><th>held by</th><th>kind</th><th>place</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>{notes}"
        )


_LIBRARIES = tuple(
    sorted({path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))})
)


def _is_library(file: str | None) -> bool:
    return file is not None and (file.startswith(_LIBRARIES) or "site-packages" in file)


BUDGET_S = 5.0
"""Seconds that a search may take by default."""


def holders(x: Any, *, limit: int = 8, depth: int = 48, budget: float | None = None) -> Holders:
    """Who keeps `x` alive: the shortest paths from something that lives by itself, in the words of the program.

    Found are module globals, local variables of running calls (of all threads), closures, default arguments, hooks,
    functools caches, classes' attributes, generators and coroutines, exceptions and the frames in their tracebacks
    (`sys.last_exc` and the outputs of a notebook included), parameters by name, optimizer state, gradients, views and
    other tensors on the same storage, and what autograd has saved, by the tensor from whose `grad_fn` it is reached.
    Weak references are no holders.

    Nothing of the program is run: no `__getattr__`, `__eq__` or `__repr__`, no unpack hook of autograd. Nothing is kept
    alive by the search once it is over, or by its result.

    Args:
        x: a tensor, an array, any other object, or the address of a tensor's memory as an `int` (`x.data_ptr()`, or an
            address out of a recording).
        limit: how many holders are enough. All at the distance where the last of them is found are returned.
        depth: how long a path may be, in objects (an attribute is two: the instance and its dictionary).
        budget: how long the search may take, in seconds [default: 5]. One look at the references of the whole heap
            cannot be interrupted and takes about 0.1 s per million objects; the search ends at the first look past the
            budget and says so.

    Returns:
        A sequence of `Holder`; `str()` of it is a report.

    Raises:
        ValueError: `limit`, `depth` or `budget` is not positive.

    Example:
        >>> import gpuheap
        >>> history = [bytearray(8)]
        >>> def keeper(kept=[]):
        ...     kept.append(history)
        >>> keeper()
        >>> [holder.kind for holder in gpuheap.holders(history)]
        ['global', 'default argument']
    """
    budget = BUDGET_S if budget is None else budget
    if limit < 1 or depth < 1 or not budget > 0:
        raise ValueError("`limit`, `depth` and `budget` must be positive")
    started = time.monotonic()
    deadline = started + budget
    # A collection in the middle would take longer than the search: it makes objects, but no garbage.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _search(x, limit, depth, deadline, started)
    finally:
        if collecting:
            gc.enable()


def _search(x: Any, limit: int, depth: int, deadline: float, started: float) -> Holders:
    torch = loaded_torch()
    search = Search(deadline, depth, limit)
    world = World(torch, deadline, search.held_by_calls) if torch is not None else None
    storages: tuple[Storage, ...] = ()
    targets: list[Node] = []
    by_address = type(x) is int
    array: Array | None = None
    if world is not None and by_address:
        storage = world.at_address(x)
        if storage is None:
            return _nothing(f"memory at {x:#x}", "no tensor that Python knows of has its memory there", started)
        storages = (storage,)
        subject = f"storage at {storage.address:#x} on {storage.device}"
    elif by_address:
        return _nothing(f"memory at {x:#x}", "an address needs PyTorch, and the program has not loaded it", started)
    elif world is not None and is_instance(x, world.torch.Tensor):
        storages = storages_of(world.torch, x)
        subject = tensor_text(world.torch, x)
        targets.append(Node(x, None, None))
    else:
        array = array_of(x)
        subject = _a(class_name(type(x))) if array is None else array.text
        targets.append(Node(x, None, None))
    ignore: list[Any] = [targets]
    if world is not None and storages:
        _add_sharers(world, storages, None if by_address else x, targets, search.notes)
        world.exclude([node.value for node in targets])
        targets += _saved_on(world, storages)
        search.use(world)
    elif world is not None:
        search.use(world)
    search.run(targets, ignore)
    names = Names()
    kept = needed = None
    if storages and world is not None:
        kept = sum(storage.bytes for storage in storages)
        needed = None if by_address else needed_bytes(world.torch, x)
    elif array is not None:
        kept, needed = array.bytes, array.needed_bytes
    items = _items(search, names, world, storages)
    notes = [*search.notes, *(world.notes if world is not None else ())]
    # The interpreter freezes some hundred of its own objects since 3.12.
    if gc.get_freeze_count() > _FROZEN_AT_START:
        notes.append("objects frozen by `gc.freeze()` were not looked at")
    if not gc.is_tracked(x) and not by_address and not items:
        notes.append(f"{_a(class_name(type(x)))} is not tracked by the garbage collector: some holders may not be seen")
    return Holders(
        items,
        subject=subject,
        bytes=kept,
        needed_bytes=needed,
        complete=search.complete,
        seconds=time.monotonic() - started,
        notes=notes,
    )


def _a(name: str) -> str:
    return f"{'an' if name[:1] in tuple('aeiouAEIO') else 'a'} {name}"


def _nothing(subject: str, note: str, started: float) -> Holders:
    seconds = time.monotonic() - started
    return Holders((), subject=subject, bytes=None, complete=True, seconds=seconds, notes=(note,))


def _add_sharers(world: World, storages: tuple[Storage, ...], x: Any, targets: list[Node], notes: list[str]) -> None:
    """Other tensors on the same storages keep the memory, though not the object."""
    base = targets[0] if targets else None
    sharers = 0
    for storage in storages:
        for tensor in world.on_storage(storage.key):
            if tensor is x:
                continue
            sharers += 1
            if sharers > _MAX_SHARERS:
                continue
            # Asked by address there is no object in the middle: whatever is on the storage is what was asked about.
            link = None if base is None else Link(tensor, "view" if world.is_view_of(tensor, x) else "storage")
            targets.append(Node(tensor, base, link))
    if sharers > _MAX_SHARERS:
        notes.append(f"{sharers} tensors share the storage; {_MAX_SHARERS} of them were followed")


def _saved_on(world: World, storages: tuple[Storage, ...]) -> list[Node]:
    nodes: list[Node] = []
    anything = Node(None, None, None)
    for storage in storages:
        seen: set[tuple[int, str]] = set()
        for link in world.links_to_storage(storage):
            if (id(link.holder), link.node) not in seen:
                seen.add((id(link.holder), link.node))
                nodes.append(Node(link.holder, anything, link))
    return nodes


def _target(node: Node) -> tuple[Node, int]:
    """The node nearest to the target that is an object of the program, and the distance from there."""
    steps = 0
    while node.held is not None:
        node = node.held
        steps += 1
    return node, steps


def _item(found: Found, names: Names, world: World | None, storages: tuple[Storage, ...]) -> Holder:
    try:
        place = describe(found, names, world)
    except Exception as error:  # an object in the middle of its destruction, say: the path is still worth a line
        place = Place(kind=found.root.kind, root=found.root.kind)
        place.expression = f"{found.root.name or found.root.kind} (the rest of the path is not readable: {error})"
    needed = kept = None
    if storages and world is not None:
        kept = sum(storage.bytes for storage in storages)
        last: Node | None = found.node
        needed = kept
        while last is not None:
            if is_instance(last.value, world.torch.Tensor) and any(
                storage in storages for storage in storages_of(world.torch, last.value)
            ):
                needed = min(kept, needed_bytes(world.torch, last.value))
                break
            last = last.held
    return Holder(
        path=place.text,
        kind=place.kind,
        root=place.root,
        file=place.file,
        line=place.line,
        function=place.function,
        thread=place.thread,
        bytes=kept,
        needed_bytes=needed,
        distance=found.node.depth + 1,
    )


def _items(search: Search, names: Names, world: World | None, storages: tuple[Storage, ...]) -> list[Holder]:
    found = list(search.found)
    if not found and search.complete:
        found = search.cycles[:2]
        if found:
            search.notes.append("only a reference cycle keeps it: `gc.collect()` frees it")
    # A bare storage or the target itself without a reference: made by the question.
    hidden = [one for one in search.unseen if one.node.depth > 0 and one.node.link is None]
    found += hidden[:2] if search.found else hidden[:4]
    items: list[Holder] = []
    seen: set[str] = set()
    for one in found:
        item = _item(one, names, world, storages)
        if item.path not in seen:
            seen.add(item.path)
            items.append(item)
    if not items and search.unseen and search.complete:
        search.notes.append(
            "nothing visible to Python keeps it: C or C++ code does, or a value of a running call that has no name"
        )
    # Unseen last; of equal distances the program's own code first.
    return sorted(items, key=lambda item: (item.root == "unseen", item.distance, _is_library(item.file)))
