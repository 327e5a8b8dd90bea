"""Models of libraries by name, with random weights and data, such as `torchvision:resnet152`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuheap.errors import Error

if TYPE_CHECKING:
    from gpuheap.fit import Fit

__all__ = ["LIBRARIES", "is_name", "make_of"]

LIBRARIES = ("torchvision", "timm", "transformers")
_BATCH = 8
_SEQUENCE = 512


def is_name(text: str) -> bool:
    """Whether this names a model of a library, and no file or module with a function."""
    library, colon, name = text.partition(":")
    return bool(colon and name and library in LIBRARIES)


def make_of(name: str, batch: int | None = None) -> Callable[[], Fit]:
    """A `make()` of the model.

    Raises:
        Error: the library is not installed, or has no such model.
    """
    library, colon, model = name.partition(":")
    if not colon or not model or library not in LIBRARIES:
        raise Error(
            f"`{name}` names no model", "Write `torchvision:resnet152`, `timm:NAME` or `transformers:CLASS or FOLDER`."
        )
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise Error(
            f"`{name}` needs {library}, which cannot be imported: {error}", f"`pip install {library}`"
        ) from error
    made = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[library]
    return made(model, batch or _BATCH)


def _torchvision(name: str, batch: int) -> Callable[[], Fit]:
    from torchvision import models  # type: ignore[import-not-found, unused-ignore]

    if name not in models.list_models():
        raise Error(f"torchvision has no model `{name}`", _near(name, models.list_models()))

    def make() -> Fit:
        import torch

        from gpuheap.fit import Fit

        detects = name in models.list_models(module=models.detection)
        options: dict[str, Any] = (
            {"weights_backbone": None} if detects or name in models.list_models(models.segmentation) else {}
        )
        if name in ("googlenet", "inception_v3"):
            # Their own initialisation takes minutes, and weights do not matter here.
            options = {"init_weights": False}
        model = models.get_model(name, weights=None, **options).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if detects:
            return Fit(model, optimizer, None, _detection(batch))
        video = name in models.list_models(module=models.video)
        side = 299 if name == "inception_v3" else 224
        shape = (3, 16, 112, 112) if video else (3, side, side)
        images = torch.randn(batch, *shape)
        if name in models.list_models(module=models.segmentation):
            target = torch.randint(0, 21, (batch, *shape[1:]))
        else:
            target = torch.randint(0, 1000 if not video else 400, (batch,))
        return Fit(model, optimizer, _classes, (images, target))

    return make


def _classes(output: Any, target: Any) -> Any:
    """Cross entropy, with the heads that some models have beside their own."""
    import torch.nn.functional as F

    if isinstance(output, dict):
        extra = F.cross_entropy(output["aux"], target) if "aux" in output else 0
        return F.cross_entropy(output["out"], target) + 0.5 * extra
    if hasattr(output, "_fields"):
        main, *others = (one for one in output if one is not None)
        return F.cross_entropy(main, target) + 0.3 * sum(F.cross_entropy(one, target) for one in others)
    return F.cross_entropy(output, target)


def _detection(batch: int) -> Any:
    import torch

    images = [torch.rand(3, 800, 800) for _ in range(batch)]
    corners = torch.tensor([[10.0, 10.0, 200.0, 200.0], [50.0, 60.0, 400.0, 300.0]])
    targets = [
        {"boxes": corners, "labels": torch.tensor([1, 2]), "masks": torch.zeros(2, 800, 800, dtype=torch.uint8)}
        for _ in range(batch)
    ]
    return images, targets


def _timm(name: str, batch: int) -> Callable[[], Fit]:
    import timm  # type: ignore[import-not-found, unused-ignore]

    if not timm.is_model(name.partition(".")[0]):
        raise Error(f"timm has no model `{name}`", _near(name, timm.list_models()))

    def make() -> Fit:
        import torch

        from gpuheap.fit import Fit

        model = timm.create_model(name, pretrained=False).train()
        size = model.default_cfg.get("input_size", (3, 224, 224)) if hasattr(model, "default_cfg") else (3, 224, 224)
        classes = getattr(model, "num_classes", 1000) or 1000
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return Fit(model, optimizer, _classes, (torch.randn(batch, *size), torch.randint(0, classes, (batch,))))

    return make


def _transformers(name: str, batch: int) -> Callable[[], Fit]:
    import transformers  # type: ignore[import-not-found, unused-ignore]

    kind, config = _kind_and_config(transformers, name)

    def make() -> Fit:
        import torch

        from gpuheap.fit import Fit

        model = kind(config).train()
        model.config.use_cache = False
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        return Fit(model, optimizer, None, _text_or_images(model, config, batch))

    return make


def _kind_and_config(transformers: Any, name: str) -> tuple[Any, Any]:
    path = Path(name)
    if path.exists():
        file = path / "config.json" if path.is_dir() else path
        try:
            said = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Error(f"cannot read the configuration of `{name}`: {error}") from error
        config = transformers.AutoConfig.from_pretrained(str(file))
        classes = said.get("architectures") or []
        kind = getattr(transformers, classes[0], None) if classes else None
        if kind is None:
            raise Error(f"{file} does not say which class it is for", 'It needs "architectures", as saved models have.')
        return kind, config
    kind = getattr(transformers, name, None)
    config_class = getattr(kind, "config_class", None)
    if kind is None or config_class is None:
        classes = [one for one in dir(transformers) if "For" in one and not one.startswith(("TF", "Flax", "Auto", "_"))]
        raise Error(
            f"`{name}` is neither a folder with a `config.json` nor a model class of transformers", _near(name, classes)
        )
    return kind, config_class()


def _text_or_images(model: Any, config: Any, batch: int) -> dict[str, Any]:
    """A batch by what the model's forward pass takes."""
    import inspect

    import torch

    takes = inspect.signature(model.forward).parameters
    labels = int(getattr(config, "num_labels", 2) or 2)
    if "pixel_values" in takes and "input_ids" not in takes:
        size, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
        pixels = torch.randn(batch, channels, size, size)
        return {"pixel_values": pixels, "labels": torch.randint(0, labels, (batch,))}
    if "input_ids" not in takes or "labels" not in takes:
        raise Error(
            f"{type(model).__name__} takes neither `input_ids` with `labels` nor `pixel_values`",
            "Write a `make()` with a batch of your own.",
        )
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or _SEQUENCE
    # Some models keep positions for padding.
    length = min(int(longest) - (2 if int(longest) % 2 == 0 and int(longest) % 8 == 2 else 0), _SEQUENCE)
    tokens = torch.randint(0, int(config.vocab_size), (batch, length))
    kind = type(model).__name__
    if kind.endswith(("SequenceClassification", "MultipleChoice")):
        return {"input_ids": tokens, "labels": torch.randint(0, labels, (batch,))}
    if kind.endswith("TokenClassification"):
        return {"input_ids": tokens, "labels": torch.randint(0, labels, (batch, length))}
    return {"input_ids": tokens, "labels": tokens.clone()}


def _near(name: str, names: Any) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(names), 3, 0.5)
    return f"Did you mean {', '.join(f'`{one}`' for one in near)}?" if near else "Look its name up in the library."
