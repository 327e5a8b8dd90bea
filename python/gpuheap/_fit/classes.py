"""What every storage is for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuheap._fit.modules import Modules
from gpuheap._fit.recorder import Recorder
from gpuheap._fit.storages import local, pieces

__all__ = ["Classes"]


class Classes:
    """Classes of storages, by who holds them at the ends of phases."""

    def __init__(self, recorder: Recorder) -> None:
        """Class the storages of a recorder."""
        self._recorder = recorder
        self._name_of: dict[int, str] = {}

    def _find(self, tensor: Any) -> int:
        if tensor is None or not hasattr(tensor, "untyped_storage") or tensor.device.type != "cuda":
            return -1
        return self._recorder.storages.find(local(tensor))

    def _set(self, number: int, kind: str, module: int, name: str) -> None:
        if number >= 0:
            storages = self._recorder.storages
            storages.classes[number] = kind
            storages.modules[number] = module
            storages.names[number] = name

    def built(self, model: Any, modules: Modules) -> None:
        """The model is on the GPU."""
        for name, parameter in model.named_parameters():
            self._name_of.setdefault(id(parameter), name)
            self._set(self._find(parameter), "parameter", modules.of_parameter(parameter), name)
        owners = {id(module): number for number, module in enumerate(modules._modules)}
        for path, module in model.named_modules():
            for key, buffer in module._buffers.items():
                self._set(self._find(buffer), "buffer", owners.get(id(module), -1), f"{path}.{key}" if path else key)

    def gradient(self, number: int, parameter: Any) -> None:
        """A storage becomes the gradient of a parameter, or is part of how it is added up."""
        name = self._name_of.get(id(parameter))
        if number >= 0 and name is not None and self._recorder.storages.classes[number] not in ("parameter", "buffer"):
            self._set(number, "gradient", self._recorder.module, name)

    def loss(self, tensor: Any) -> None:
        """The loss."""
        number = self._find(tensor)
        if number >= 0:
            self._recorder.storages.classes[number] = "loss"

    def stepped(self, model: Any, optimizers: tuple[Any, ...], modules: Modules) -> None:
        """A step is over: what optimizers and parameters hold now has its class."""
        for name, parameter in model.named_parameters():
            self._set(self._find(parameter.grad), "gradient", modules.of_parameter(parameter), name)
        for optimizer in optimizers:
            for parameter, state in getattr(optimizer, "state", {}).items():
                name = self._name_of.get(id(parameter), "")
                values = state.values() if isinstance(state, dict) else ()
                for piece in (piece for value in values for piece in pieces(value)):
                    number = self._find(piece)
                    if number >= 0 and self._recorder.storages.classes[number] not in ("parameter", "gradient"):
                        self._set(number, "optimizer", modules.of_parameter(parameter), name)

    def finish(self) -> None:
        """What the forward pass made and dropped before the backward pass, unless it was saved, was temporary.

        What a step made and the program keeps is neither: the scale of a `GradScaler`, averages of losses.
        """
        recorder = self._recorder
        classes = recorder.storages.classes
        saved = {event[1] for event in recorder.events if event[0] == "saved"}
        for number in recorder.storages.alive():
            if classes[number] in ("activation", "temporary", "loss"):
                classes[number] = "unknown"
        phase = ""
        for event in recorder.events:
            if event[0] == "phase":
                phase = event[1]
            elif event[0] != "free" or phase not in ("forward", "loss") or event[1] in saved:
                continue
            elif classes[event[1]] == "activation":
                classes[event[1]] = "temporary"

    def model_figures(self, model: Any) -> dict[str, int]:
        """As in the trace."""
        parameters = list(model.parameters())
        return {
            "parameters": sum(int(local(one).numel()) for one in parameters),
            "parameter_bytes": _together(parameters),
            "trainable_bytes": _together(one for one in parameters if one.requires_grad),
            "buffers_bytes": _together(model.buffers()),
        }

    def optimizer_figures(self, optimizers: tuple[Any, ...]) -> dict[str, Any] | None:
        """As in the trace; of several optimizers the classes are joined."""
        if not optimizers:
            return None
        group = optimizers[0].param_groups[0] if optimizers[0].param_groups else {}
        held, trained = 0, 0
        for optimizer in optimizers:
            for parameter, state in getattr(optimizer, "state", {}).items():
                trained += int(local(parameter).numel())
                values = state.values() if isinstance(state, dict) else ()
                held += sum(
                    _bytes(one) for value in values for one in pieces(value) if self._find(one) >= 0 and one.dim()
                )
        return {
            "class": "+".join(dict.fromkeys(type(one).__name__ for one in optimizers)),
            "foreach": group.get("foreach"),
            "fused": group.get("fused"),
            "capturable": group.get("capturable"),
            "state_per_parameter_bytes": held / trained if trained else 0,
        }


def _together(tensors: Iterable[Any]) -> int:
    """Bytes of the storages behind tensors, each once."""
    return sum({local(one).untyped_storage()._cdata: _bytes(one) for one in tensors}.values())


def _bytes(tensor: Any) -> int:
    size: int = local(tensor).untyped_storage().nbytes()
    return size
