"""Puts the program back to where it was before the steps, bit for bit, from copies on the host.

Put back are: parameters, buffers and other tensors in attributes of the modules, plain attributes of the modules (such
as `training`, or a counter), gradients, optimizers (state, groups, counters), learning-rate schedulers and gradient
scalers that are alive, and the random numbers of Python, NumPy and PyTorch. What the steps have put into containers of
the program stays there, and a data iterator stays where it is.

The copies hold no tensor of the program: a step may drop any of them, and that must show.
"""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

from gpuheap._doctor.subject import Subject
from gpuheap._names import _table
from gpuheap._objects import class_name, instance_dict, is_instance, mro
from gpuheap._tensors import gradient_of, plain
from gpuheap.errors import described

__all__ = ["Saved"]

_PLAIN = (int, float, bool, str, type(None), complex, bytes)
_TABLES = ("_parameters", "_buffers")
# So many interruptions are put off until everything is back.
_PATIENCE = 5


class _Copy:
    """One tensor: its content on the host, and where it was."""

    def __init__(self, torch: Any, tensor: Any, saved: Saved) -> None:
        self.where = weakref.ref(tensor)
        self.kind = type(tensor)
        self.requires_grad = bool(tensor.requires_grad)
        self.device = tensor.device
        self.content: Any = None
        self.gradient: _Copy | None = None
        try:
            with torch.no_grad(), plain(torch):
                if tensor.device.type == "meta" or "Uninitialized" in class_name(type(tensor)):
                    return
                self.content = tensor.detach().to("cpu", copy=True)
            saved.bytes += int(tensor.numel()) * int(tensor.element_size())
        except Exception as error:
            saved.unsaved.append(f"a {type(tensor).__name__} ({type(error).__name__})")

    def put_back(self, torch: Any) -> Any:
        """The original with its former content; a new tensor if the program has dropped the original."""
        target = self.where()
        if self.content is None:
            return target
        with torch.no_grad(), plain(torch):
            if target is None:
                # What is there now may be someone else's, too: it is not written to.
                fresh = self.content.to(self.device)
                target = (
                    torch.nn.Parameter(fresh, self.requires_grad) if torch.nn.Parameter in mro(self.kind) else fresh
                )
            elif self._fits(target):
                self._write(torch, target.detach())
            else:
                # Its data has been exchanged for something of another shape or type.
                target.data = self.content.to(self.device)
            if target.is_leaf and target.requires_grad != self.requires_grad:
                target.requires_grad_(self.requires_grad)
        return target

    def _write(self, torch: Any, target: Any) -> None:
        try:
            target.copy_(self.content)
        except RuntimeError:
            # Several elements in one place (`expand`), or no way to write there: fine if nothing has changed.
            if not torch.equal(target.to("cpu"), self.content):
                raise

    def _fits(self, target: Any) -> bool:
        return bool(
            target.shape == self.content.shape
            and target.dtype == self.content.dtype
            and target.device == self.device
            and target.layout == self.content.layout
        )


class Saved:
    """What is to be put back."""

    def __init__(self, subject: Subject) -> None:
        """Copies everything now."""
        self.torch = subject.torch
        self.bytes = 0
        """How much was copied to the host."""
        self.unsaved: list[str] = []
        """What could not be copied."""
        self._undo: list[Callable[[], None]] = []
        self._copies: dict[int, _Copy] = {}
        for _, module in subject.modules():
            self._module(module)
        for _, buffer, _, tensor in subject.tensors():
            if not buffer:
                self._gradient(tensor)
        for optimizer in subject.optimizers():
            self._optimizer(optimizer)
        self._helpers(subject)
        self._random()
        self._copies.clear()

    def put_back(self) -> list[str]:
        """Restores everything; returns what could not be, as text."""
        failed = [f"could not be copied: {one}" for one in self.unsaved[:5]]
        interrupted: list[BaseException] = []
        while self._undo:
            # Each can be done twice: one that was interrupted is done again.
            undo = self._undo[-1]
            try:
                with plain(self.torch):
                    undo()
            except Exception as error:  # one that fails must not keep the others from coming back
                failed.append(described(error))
            except BaseException as error:  # Ctrl-C: half of the weights would be worse than to wait
                interrupted.append(error)
                if len(interrupted) < _PATIENCE:
                    continue
            self._undo.pop()
        if interrupted:
            raise interrupted[0]
        return failed

    def _copy(self, tensor: Any) -> _Copy:
        known = self._copies.get(id(tensor))
        if known is None:
            known = self._copies[id(tensor)] = _Copy(self.torch, tensor, self)
        return known

    def _module(self, module: Any) -> None:
        attributes = instance_dict(module)
        if attributes is None:
            return
        torch = self.torch
        for name in _TABLES:
            table = _table(module, name)
            copies = {
                key: self._copy(tensor) if is_instance(tensor, torch.Tensor) else None
                for key, tensor in list(table.items())
            }
            self._undo.append(lambda table=table, copies=copies: self._table_back(table, copies))  # type: ignore[misc]
        simple = {key: value for key, value in attributes.items() if type(value) in _PLAIN}
        tensors = {key: self._copy(value) for key, value in attributes.items() if is_instance(value, torch.Tensor)}

        def undo() -> None:
            for key, value in simple.items():
                if key not in attributes or attributes[key] is not value:
                    attributes[key] = value
            for key, one in tensors.items():
                attributes[key] = one.put_back(torch)

        self._undo.append(undo)

    def _table_back(self, table: dict[Any, Any], copies: dict[Any, _Copy | None]) -> None:
        for key in [key for key in table if key not in copies]:
            del table[key]
        for key, one in copies.items():
            value = None if one is None else one.put_back(self.torch)
            if key not in table or table[key] is not value:
                table[key] = value

    def _gradient(self, parameter: Any) -> None:
        torch = self.torch
        reference = weakref.ref(parameter)
        gradient = gradient_of(parameter)
        kept = None if gradient is None else _Copy(torch, gradient, self)

        def undo() -> None:
            there = reference()
            if there is None or (kept is not None and kept.content is None):
                return
            value = None if kept is None else kept.put_back(torch)
            if gradient_of(there) is not value:
                there.grad = value

        self._undo.append(undo)

    def _optimizer(self, optimizer: Any) -> None:
        attributes = instance_dict(optimizer)
        if attributes is None:
            return
        simple = {key: value for key, value in attributes.items() if type(value) in _PLAIN}
        # An optimizer's hooks may wrap it under any class: the values are read, not its methods.
        groups = [
            (
                [self._reference(one) for one in group.get("params", ())],
                {key: self._content(value) for key, value in group.items() if key != "params"},
            )
            for group in attributes.get("param_groups") or ()
        ]
        state = [
            (self._reference(key), self._content(value)) for key, value in list((attributes.get("state") or {}).items())
        ]

        def undo() -> None:
            attributes.update(simple)
            now = attributes.get("param_groups")
            if now is not None:
                for position, (references, values) in enumerate(groups):
                    if position >= len(now):
                        now.append({})
                    group = now[position]
                    parameters = [one for one in (reference() for reference in references) if one is not None]
                    for key in [key for key in group if key != "params" and key not in values]:
                        del group[key]
                    if [id(one) for one in group.get("params", ())] != [id(one) for one in parameters]:
                        group["params"] = parameters
                    for key, content in values.items():
                        group[key] = content(group.get(key))
                del now[len(groups) :]
            states = attributes.get("state")
            if states is not None:
                former = dict(states)
                states.clear()
                for reference, content in state:
                    key = reference()
                    if key is not None:
                        states[key] = content(former.get(key))

        self._undo.append(undo)

    @staticmethod
    def _reference(value: Any) -> Callable[[], Any]:
        try:
            return weakref.ref(value)
        except TypeError:
            return lambda: value

    def _content(self, value: Any) -> Callable[[Any], Any]:
        """A function that makes the value as it was; of what cannot be copied it leaves what is there."""
        torch = self.torch
        if is_instance(value, torch.Tensor):
            copied = _Copy(torch, value, self)
            return lambda now: copied.put_back(torch)
        if type(value) is dict:
            parts = {key: self._content(part) for key, part in value.items()}
            return lambda now: {key: part(now.get(key) if type(now) is dict else None) for key, part in parts.items()}
        if type(value) in (list, tuple):
            items = [self._content(part) for part in value]
            kind = type(value)
            return lambda now: kind(
                part(now[at] if type(now) in (list, tuple) and at < len(now) else None) for at, part in enumerate(items)
            )
        if type(value) in _PLAIN:
            return lambda now: value
        # Anything else may hold the optimizer, or the model: it is not ours to copy.
        reference = self._reference(value)
        return lambda now: now if now is not None else reference()

    def _helpers(self, subject: Subject) -> None:
        """Schedulers of these optimizers, and gradient scalers."""
        torch = self.torch
        scheduler = getattr(getattr(torch.optim, "lr_scheduler", None), "LRScheduler", None)
        scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
        wanted = {kind for kind in (scheduler, scaler) if kind is not None}
        objects = gc.get_objects()
        kinds = {kind for kind in set(map(type, objects)) if wanted.intersection(mro(kind))}
        found = [one for one in objects if type(one) in kinds]
        del objects
        optimizers = {id(one) for one in subject.optimizers()}
        for one in found:
            attributes = instance_dict(one) or {}
            if scheduler in mro(type(one)) and id(attributes.get("optimizer")) not in optimizers:
                continue
            contents = {
                key: self._content(value)
                for key, value in attributes.items()
                if type(value) in _PLAIN or is_instance(value, torch.Tensor) or type(value) is list
            }

            def undo(attributes: dict[Any, Any] = attributes, contents: dict[str, Any] = contents) -> None:
                for key, content in contents.items():
                    attributes[key] = content(attributes.get(key))

            self._undo.append(undo)

    def _random(self) -> None:
        torch = self.torch
        python = random.getstate()
        self._undo.append(lambda: random.setstate(python))
        host = torch.get_rng_state()
        self._undo.append(lambda: torch.set_rng_state(host))
        cuda = getattr(torch, "cuda", None)
        if cuda is not None and cuda.is_available() and cuda.is_initialized():
            states = cuda.get_rng_state_all()
            self._undo.append(lambda: cuda.set_rng_state_all(states))
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            state = numpy.get_state()
            self._undo.append(lambda: numpy.set_state(state))
