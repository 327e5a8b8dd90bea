"""Image models of the zoo: torchvision's and timm's, a diffusion UNet, a detector, a GAN: made here, never fetched."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo_spec import Spec, adam, adamw, cross_entropy, sgd

CLASSES = 1000


def images(size: int, classes: int = CLASSES) -> Any:
    def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(n, 3, size, size), torch.randint(0, classes, (n,))

    return batch


def torchvision_model(name: str, **arguments: Any) -> Any:
    def build() -> nn.Module:
        import torchvision

        model: nn.Module = getattr(torchvision.models, name)(weights=None, **arguments)
        return model

    return build


def timm_model(name: str, **arguments: Any) -> Any:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, **arguments)
        return model

    return build


def of_class(*names: str) -> Any:
    """The modules of these classes: what people put activation checkpoints around."""

    def blocks(model: nn.Module) -> list[str]:
        return [name for name, module in model.named_modules() if type(module).__name__ in names]

    return blocks


class TimedBlock(nn.Module):
    """Two convolutions with group norm, the time's embedding added in between, and a way around them."""

    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedding, outputs)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.drop = nn.Dropout(0.1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.around = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(self.drop(F.silu(self.norm2(h))))
        out: torch.Tensor = h + self.around(x)
        return out


class ImageAttention(nn.Module):
    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, height, width = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(n, 3, self.heads, c // self.heads, height * width).transpose(3, 4).unbind(1)
        )
        h = F.scaled_dot_product_attention(q, k, v)
        out: torch.Tensor = x + self.out(h.transpose(2, 3).reshape(n, c, height, width))
        return out


class UNet(nn.Module):
    """The denoiser of a DDPM: four scales, two blocks at each, attention at the two small ones."""

    def __init__(self, width: int = 128, multiples: tuple[int, ...] = (1, 2, 2, 4)) -> None:
        super().__init__()
        embedding = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList()
        self.down_attention = nn.ModuleList()
        channels, kept = width, [width]
        for level, multiple in enumerate(multiples):
            for _ in range(2):
                self.down.append(TimedBlock(channels, width * multiple, embedding))
                self.down_attention.append(ImageAttention(width * multiple) if level >= 2 else nn.Identity())
                channels = width * multiple
                kept.append(channels)
            if level < len(multiples) - 1:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                self.down_attention.append(nn.Identity())
                kept.append(channels)
        self.middle = TimedBlock(channels, channels, embedding)
        self.middle_attention = ImageAttention(channels)
        self.up = nn.ModuleList()
        self.up_attention = nn.ModuleList()
        for level, multiple in reversed(list(enumerate(multiples))):
            for _ in range(3):
                self.up.append(TimedBlock(channels + kept.pop(), width * multiple, embedding))
                self.up_attention.append(ImageAttention(width * multiple) if level >= 2 else nn.Identity())
                channels = width * multiple
            if level:
                self.up.append(nn.Conv2d(channels, channels, 3, padding=1))
                self.up_attention.append(nn.Identity())
        self.last = nn.Sequential(nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def embed(self, when: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(-9.2 * torch.arange(half, device=when.device) / half)
        angles = when[:, None].float() * rates[None]
        weight = self.time[0].weight
        out: torch.Tensor = self.time(torch.cat((angles.sin(), angles.cos()), 1).to(weight.dtype))
        return out

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        time = self.embed(when)
        x = self.first(x)
        kept = [x]
        for block, attention in zip(self.down, self.down_attention, strict=True):
            x = attention(block(x, time) if isinstance(block, TimedBlock) else block(x))
            kept.append(x)
        x = self.middle_attention(self.middle(x, time))
        for block, attention in zip(self.up, self.up_attention, strict=True):
            if isinstance(block, TimedBlock):
                x = attention(block(torch.cat((x, kept.pop()), 1), time))
            else:
                x = block(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        out: torch.Tensor = self.last(x)
        return out


def noise_batch(n: int) -> dict[str, torch.Tensor]:
    return {
        "image": torch.randn(n, 3, 64, 64),
        "when": torch.randint(0, 1000, (n,)),
        "noise": torch.randn(n, 3, 64, 64),
    }


def noise_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    level = (batch["when"].float() / 1000)[:, None, None, None].to(batch["image"].dtype)
    noisy = batch["image"] * (1 - level) + batch["noise"] * level
    return F.mse_loss(model(noisy, batch["when"]), batch["noise"])


class Autoencoder(nn.Module):
    """Strided convolutions down to a vector and transposed ones back."""

    def __init__(self) -> None:
        super().__init__()
        down: list[nn.Module] = []
        for a, b in ((3, 32), (32, 64), (64, 128), (128, 256)):
            down += [nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
        up: list[nn.Module] = []
        for a, b in ((256, 128), (128, 64), (64, 32)):
            up += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU()]
        self.encoder = nn.Sequential(*down, nn.Flatten(), nn.Linear(256 * 64, 256))
        self.widen = nn.Linear(256, 256 * 64)
        self.decoder = nn.Sequential(*up, nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        code = self.widen(self.encoder(x)).view(-1, 256, 8, 8)
        out: torch.Tensor = self.decoder(code)
        return out


def picture_pairs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    # A copy: a program that moves both to the device has both there.
    picture = torch.rand(n, 3, 128, 128)
    return picture, picture.clone()


def generator() -> nn.Sequential:
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU(True)]
    for a, b in ((512, 256), (256, 128), (128, 64)):
        layers += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


def critic() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for a, b in ((64, 128), (128, 256), (256, 512)):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def gan() -> nn.Module:
    return nn.ModuleDict({"generator": generator(), "critic": critic()})


def gan_optimizers(model: Any, **options: Any) -> tuple[torch.optim.Optimizer, ...]:
    return tuple(
        torch.optim.Adam(model[part].parameters(), 2e-4, (0.5, 0.999), **options) for part in ("generator", "critic")
    )


def gan_batch(n: int) -> dict[str, torch.Tensor]:
    return {"real": torch.randn(n, 3, 64, 64), "latent": torch.randn(n, 100, 1, 1)}


def gan_step(model: Any, optimizers: Any, batch: dict[str, torch.Tensor]) -> None:
    """The critic on real and made pictures, then the generator, as in PyTorch's own DCGAN example."""
    for_generator, for_critic = optimizers
    criterion = nn.BCEWithLogitsLoss()
    for_critic.zero_grad()
    scores = model["critic"](batch["real"])
    criterion(scores, torch.ones_like(scores)).backward()
    made = model["generator"](batch["latent"])
    scores = model["critic"](made.detach())
    criterion(scores, torch.zeros_like(scores)).backward()
    for_critic.step()
    for_generator.zero_grad()
    scores = model["critic"](made)
    criterion(scores, torch.ones_like(scores)).backward()
    for_generator.step()


def detector() -> nn.Module:
    import torchvision

    # Fixed size in and out: min_size = max_size = the pictures' own, so that nothing is resized.
    model: nn.Module = torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=91, min_size=512, max_size=512
    )
    return model


def scenes(n: int) -> dict[str, Any]:
    corner = torch.tensor([[16.0, 16.0, 200.0, 220.0], [100.0, 80.0, 400.0, 300.0], [240.0, 260.0, 500.0, 480.0]])
    targets = [{"boxes": corner + i % 8, "labels": torch.tensor([1, 7, 18])} for i in range(n)]
    return {"images": [torch.rand(3, 512, 512) for _ in range(n)], "targets": targets}


def detection_loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    losses: dict[str, torch.Tensor] = model(batch["images"], batch["targets"])
    return torch.stack(list(losses.values())).sum()


def masks(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 3, 256, 256), torch.randint(0, 21, (n, 256, 256))


def segmentation_loss(output: dict[str, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output["out"], target)


def segmenter() -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=21
    )
    return model


def clips(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 3, 16, 112, 112), torch.randint(0, 400, (n,))


def video() -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.video.r3d_18(weights=None)
    return model


def classifier(build: Any, batches: tuple[int, ...], optimizer: Any, *, size: int = 224, **more: Any) -> Spec:
    return Spec(build, images(size), cross_entropy, optimizer, batches, **more)


MODELS: dict[str, Spec] = {
    "resnet50": classifier(
        torchvision_model("resnet50"), (16, 64, 128), sgd, blocks=of_class("Bottleneck"), calibration=True
    ),
    "resnet18": classifier(torchvision_model("resnet18"), (32, 128, 256), sgd, blocks=of_class("BasicBlock")),
    "resnet152": classifier(torchvision_model("resnet152"), (16, 32, 64), sgd, blocks=of_class("Bottleneck")),
    "vgg16": classifier(torchvision_model("vgg16"), (16, 32, 64), sgd),
    "densenet121": classifier(torchvision_model("densenet121"), (16, 32, 64), sgd),
    "efficientnet_b0": classifier(torchvision_model("efficientnet_b0"), (32, 64, 128), adamw),
    "convnext_tiny": classifier(torchvision_model("convnext_tiny"), (16, 32, 64), adamw, blocks=of_class("CNBlock")),
    "mobilenet_v3": classifier(torchvision_model("mobilenet_v3_large"), (64, 128, 256), sgd),
    "vit_b_16": classifier(torchvision_model("vit_b_16"), (16, 32, 64), adamw, blocks=of_class("EncoderBlock")),
    "swin_t": classifier(torchvision_model("swin_t"), (16, 32, 64), adamw, blocks=of_class("SwinTransformerBlock")),
    "timm_mixer_b16": classifier(
        timm_model("mixer_b16_224"), (16, 32, 64), adamw, blocks=of_class("MixerBlock"), needs=("timm",)
    ),
    "timm_regnety_032": classifier(timm_model("regnety_032"), (16, 32, 64), sgd, needs=("timm",)),
    "timm_eva02_small": classifier(
        timm_model("eva02_small_patch14_224", num_classes=CLASSES),
        (16, 32, 64),
        adamw,
        blocks=of_class("EvaBlock"),
        needs=("timm",),
    ),
    "unet": Spec(UNet, noise_batch, noise_loss, adamw, (8, 16, 32), blocks=of_class("TimedBlock"), calibration=True),
    "retinanet": Spec(detector, scenes, detection_loss, sgd, (2, 4, 8), settings=("autocast_bf16", "foreach_off")),
    "deeplabv3": Spec(segmenter, masks, segmentation_loss, sgd, (4, 8, 16), blocks=of_class("Bottleneck")),
    "r3d_18": Spec(video, clips, cross_entropy, sgd, (4, 8, 16), blocks=of_class("BasicBlock")),
    "autoencoder": Spec(Autoencoder, picture_pairs, F.mse_loss, adam, (32, 128, 256)),
    "gan": Spec(gan, gan_batch, gan_step, gan_optimizers, (64, 128, 256), settings=("foreach_off", "fused")),
}
