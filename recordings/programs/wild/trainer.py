"""A trainer class in the manner of Lightning: a module with a training step, callbacks, and a loop that calls them."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class Regressor(nn.Module):
    def __init__(self, width=256, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, width)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Task:
    def __init__(self, keep_outputs):
        self.model = Regressor().to(DEVICE)
        self.keep_outputs = keep_outputs
        self.outputs = []

    def training_step(self, batch):
        inputs, targets = batch
        predictions = self.model(inputs)
        loss = F.mse_loss(predictions, targets)
        if self.keep_outputs:
            self.outputs.append({"loss": loss.detach(), "predictions": predictions.detach()})
        return loss

    def validation_step(self, batch):
        inputs, targets = batch
        return F.mse_loss(self.model(inputs), targets).item()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)
        return optimizer, schedule


class MarkCallback:
    def __init__(self, mark):
        self.mark = mark

    def on_step_end(self, trainer):
        self.mark()


class Trainer:
    def __init__(self, epochs, callbacks, clip=1.0):
        self.epochs = epochs
        self.callbacks = callbacks
        self.clip = clip
        self.history = []

    def fit(self, task, train_loader, valid_loader):
        self.optimizer, self.schedule = task.configure_optimizers()
        for epoch in range(self.epochs):
            self.run_epoch(task, train_loader)
            self.history.append(self.validate(task, valid_loader))

    def run_epoch(self, task, loader):
        for batch in loader:
            batch = self.to_device(batch)
            self.run_step(task, batch)
            for callback in self.callbacks:
                callback.on_step_end(self)

    def run_step(self, task, batch):
        loss = task.training_step(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(task.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def validate(self, task, loader):
        losses = []
        for batch in loader:
            losses.append(task.validation_step(self.to_device(batch)))
        return sum(losses) / len(losses)

    def to_device(self, batch):
        return [tensor.to(DEVICE) for tensor in batch]


def make_loader(batches):
    inputs = torch.randn(batches * 1024, 256)
    targets = torch.randn(batches * 1024, 256)
    return DataLoader(TensorDataset(inputs, targets), batch_size=1024, shuffle=True)


def main(mark, keep_outputs):
    task = Task(keep_outputs)
    trainer = Trainer(epochs=3, callbacks=[MarkCallback(mark)])
    trainer.fit(task, make_loader(16), make_loader(4))
