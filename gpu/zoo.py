"""Models to plan for and to measure: what `gpuheap fit` is held against. Importing this makes nothing.

    gpuheap fit gpu/zoo.py:resnet50                       the model at its middle batch, as people train it
    gpuheap fit gpu/zoo.py:resnet50__b64                  at batch 64
    gpuheap fit gpu/zoo.py:bert_large__b8__autocast_bf16  at batch 8, under a setting of `zoo_steps.SETTINGS`

Rules and constants are learnt from the models marked `calibration` only; every other one validates them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from zoo_language import MODELS as LANGUAGE
from zoo_spec import Spec
from zoo_steps import DEVICE, SETTINGS, Place, assemble, run_step
from zoo_vision import MODELS as VISION

__all__ = ["CALIBRATION", "EXAMINED", "MODELS", "SETTINGS", "Spec", "make_for", "run_step", "settings_of"]

MODELS: dict[str, Spec] = {**VISION, **LANGUAGE}
CALIBRATION = tuple(name for name, spec in MODELS.items() if spec.calibration)
EXAMINED = (
    # Recordings of these were there before, and rules of the allocator and of kernels were learnt from them.
    *("bert_large", "resnet152", "gpt2_medium"),
    # What these took was looked at while errors of the tracer were sought.
    *(
        "t5_small",
        "nn_transformer",
        "llama_lora",
        "distilbert",
        "clip",
        "convnext_tiny",
        "dlrm",
        "wav2vec2",
        "whisper_tiny",
    ),
    # The same for convolutions; the rules themselves are from single operators.
    *("vgg16", "efficientnet_b0", "autoencoder", "gan", "deeplabv3", "r3d_18", "resnet18", "audio_m5"),
    # A rule for groups, from single operators, was restricted because of it.
    "timm_regnety_032",
)
"""Models that were not learnt from, but are no longer unseen either: tables keep them apart."""
MORE: dict[str, tuple[str, ...]] = {
    "resnet50": ("adamw", "keep_gradients", "channels_last"),
    "resnet152": ("checkpoint_autocast_bf16", "channels_last"),
    "vit_b_16": ("sgd", "checkpoint_autocast_bf16"),
    "bert_base": ("sgd", "keep_gradients", "checkpoint_autocast_bf16"),
    "bert_large": ("sgd", "keep_gradients", "checkpoint_autocast_bf16"),
    "gpt2_medium": ("sgd", "checkpoint_autocast_bf16"),
    "convnext_tiny": ("channels_last", "keep_gradients"),
    "llama_1b": ("checkpoint_autocast_bf16",),
}
"""Settings beyond a model's own list."""


def settings_of(name: str) -> list[str]:
    """The settings, beyond "none", that this model is measured at."""
    spec = MODELS[name]
    chosen = [*spec.settings, *MORE.get(name, ())]
    return [one for one in chosen if spec.blocks is not None or "checkpoint" not in one]


def make_for(
    name: str,
    batch: int | None = None,
    levers: list[dict[str, Any]] | str = "none",
    place: Place | None = None,
) -> Callable[[], tuple[Any, Any, Any, Any]]:
    """The `make()` of a model at a batch size, with levers given as such or by their setting's name.

    `place`: moves the model to the device; left out, the caller does it.
    """
    if name not in MODELS:
        raise KeyError(f"no model {name!r} in the zoo; there are: {', '.join(sorted(MODELS))}")
    spec = MODELS[name]
    size = spec.batches[len(spec.batches) // 2] if batch is None else batch
    chosen = SETTINGS[levers] if isinstance(levers, str) else levers

    def make() -> tuple[Any, Any, Any, Any]:
        return assemble(spec, size, chosen, place)

    return make


def __getattr__(name: str) -> Callable[[], tuple[Any, Any, Any, Any]]:
    parts = re.fullmatch(r"(?P<model>.+?)(__b(?P<batch>\d+))?(__(?P<setting>[a-z0-9_]+))?", name)
    if name.startswith("__") or parts is None or parts["model"] not in MODELS:
        raise AttributeError(name)
    size = int(parts["batch"]) if parts["batch"] else None
    return make_for(parts["model"], size, parts["setting"] or "none", place=to_device)


def to_device(model: Any) -> Any:
    """As every program writes it."""
    return model.to(DEVICE)
