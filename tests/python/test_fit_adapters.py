"""Programs of Trainers, Lightning modules and names: what is planned is what they would train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpuheap

torch = pytest.importorskip("torch")
if not hasattr(torch, "nn") or not hasattr(torch.nn, "Linear"):
    pytest.skip("the PyTorch here is none", allow_module_level=True)

from gpuheap._fit.program import as_program, loss_of  # noqa: E402


def trains(program: Any) -> float:
    """One step of a program; its loss."""
    made = as_program(program)
    loss = loss_of(made.model, made.loss, made.batch)
    loss.backward()
    made.optimizer.step()
    return float(loss.detach())


class Module(torch.nn.Module):
    """What Lightning asks of a module."""

    automatic_optimization = True

    def __init__(self, form: str = "one") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.form = form

    def log(self, *_: Any) -> None:
        raise RuntimeError("there is no trainer")

    def training_step(self, batch: Any, index: int) -> Any:
        inputs, target = batch
        loss = torch.nn.functional.cross_entropy(self.layer(inputs), target)
        self.log("loss", loss)
        return {"loss": loss} if self.form == "dict" else loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        forms = {
            "one": optimizer,
            "dict": {"optimizer": optimizer, "lr_scheduler": scheduler},
            "lists": ([optimizer], [scheduler]),
            "two": [optimizer, torch.optim.SGD(self.parameters(), lr=0.2)],
        }
        return forms[self.form]


class Data:
    def setup(self, stage: str) -> None:
        self.stage = stage

    def train_dataloader(self) -> Any:
        assert self.stage == "fit"
        pairs = [(torch.randn(4), number % 2) for number in range(12)]
        return torch.utils.data.DataLoader(pairs, batch_size=6)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["one", "dict", "lists"])
def test_a_lightning_module(form: str) -> None:
    module = Module(form)
    before = module.layer.weight.detach().clone()
    make = gpuheap.fit.from_lightning(module, Data())
    program = make()
    assert isinstance(program, gpuheap.Fit) and program.batch[0].shape == (6, 4)
    assert trains(program) > 0
    assert torch.equal(module.layer.weight, before) and program.model is not module
    assert make().model is not program.model


def test_what_lightning_modules_cannot_be_planned() -> None:
    batch = (torch.randn(6, 4), torch.zeros(6, dtype=torch.long))
    with pytest.raises(gpuheap.Error, match="has 2 optimizers"):
        gpuheap.fit.from_lightning(Module("two"), batch)()
    by_hand = Module()
    by_hand.automatic_optimization = False
    with pytest.raises(gpuheap.Error, match="optimizes by hand"):
        gpuheap.fit.from_lightning(by_hand, batch)
    with pytest.raises(gpuheap.Error, match="has no `training_step`"):
        gpuheap.fit.from_lightning(torch.nn.Linear(2, 2), batch)
    with pytest.raises(gpuheap.Error, match="gives no batch"):
        gpuheap.fit.from_lightning(Module(), [])


@pytest.mark.parametrize(
    "name", ["torchvision:", "resnet50", "keras:resnet", "torchvision:resnet51", "timm:vit_bas_patch16"]
)
def test_names_that_are_none(name: str) -> None:
    if name.partition(":")[0] in ("torchvision", "timm"):
        pytest.importorskip(name.partition(":")[0])
    with pytest.raises(gpuheap.Error) as caught:
        gpuheap.fit.from_name(name)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["resnet18", "googlenet", "lraspp_mobilenet_v3_large"])
def test_models_of_torchvision(name: str) -> None:
    pytest.importorskip("torchvision")
    program = gpuheap.fit.from_name(f"torchvision:{name}", batch=2)()
    assert program.model.training and program.batch[0].shape == (2, 3, 224, 224)
    assert trains(program) > 0


def test_a_model_of_timm() -> None:
    pytest.importorskip("timm")
    assert trains(gpuheap.fit.from_name("timm:resnet18", batch=2)()) > 0


def test_a_model_of_transformers_by_its_configuration(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=90,
        max_position_embeddings=24, architectures=["BertForMaskedLM"],
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    program = gpuheap.fit.from_name(f"transformers:{tmp_path}", batch=3)()
    assert program.batch["input_ids"].shape == (3, 24)
    assert type(program.model).__name__ == "BertForMaskedLM" and trains(program) > 0
    with pytest.raises(gpuheap.Error, match="neither a folder"):
        gpuheap.fit.from_name("transformers:BertForMaskedLn")


def test_a_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=90,
        max_position_embeddings=24,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    rows = [
        {"input_ids": torch.randint(90, (length,)), "attention_mask": torch.ones(length, dtype=torch.long), "labels": 1}
        for length in (4, 4, 20, 7)
    ]

    def collate(samples: Any) -> Any:
        longest = max(len(one["input_ids"]) for one in samples)
        pad = torch.nn.functional.pad
        return {
            **{name: torch.stack([pad(one[name], (0, longest - len(one[name]))) for one in samples])
               for name in ("input_ids", "attention_mask")},
            "labels": torch.tensor([one["labels"] for one in samples]),
        }  # fmt: skip

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, bf16=True, weight_decay=0.1, learning_rate=0.01,
        use_cpu=True, report_to=[], optim="adamw_torch",
    )  # fmt: skip
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    program = gpuheap.fit.from_trainer(trainer)()
    # The longest samples that it will meet.
    assert program.batch["input_ids"].shape == (2, 20)
    decays = [group["weight_decay"] for group in program.optimizer.param_groups]
    assert decays == [0.1, 0.0] and type(program.optimizer) is torch.optim.AdamW
    assert program.optimizer.param_groups[0]["lr"] == 0.01
    assert trains(program) > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert trainer.optimizer is None
    arguments.gradient_accumulation_steps = 3
    program = gpuheap.fit.from_trainer(trainer)()
    passes = []
    program.model.register_forward_hook(lambda *_: passes.append(program.model.classifier.weight.grad is not None))
    program.step(program.model, program.optimizer, program.batch)
    # All passes but the first run beside gradients.
    assert passes == [False, True, True] and program.model.classifier.weight.grad is None
    with pytest.raises(gpuheap.Error, match="is no Hugging Face Trainer"):
        gpuheap.fit.from_trainer(model)
    trainer.train_dataset = None
    with pytest.raises(gpuheap.Error, match="no `train_dataset`"):
        gpuheap.fit.from_trainer(trainer)
