"""Trains a small classifier, with a validation pass after each epoch."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda"
FEATURES = 512
CLASSES = 10
BATCH_SIZE = 256


class BlobDataset(Dataset):
    def __init__(self, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.centers = torch.randn(CLASSES, FEATURES, generator=generator)
        self.labels = torch.randint(0, CLASSES, (length,), generator=generator)
        self.noise = torch.randn(length, FEATURES, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = self.labels[index]
        return self.centers[label] + self.noise[index], label


class Classifier(nn.Module):
    def __init__(self, hidden=1024):
        super().__init__()
        self.inp = nn.Linear(FEATURES, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        x = F.gelu(self.inp(x))
        x = self.drop(x)
        x = F.gelu(self.mid(x))
        x = self.drop(x)
        return self.head(x)


def train_one_epoch(model, loader, optimizer, mode, mark):
    model.train()
    total_loss = 0.0
    correct = 0
    for inputs, targets in loader:
        inputs = inputs.to(DEVICE)
        targets = targets.to(DEVICE)
        logits = model(inputs)
        loss = F.cross_entropy(logits, targets)
        optimizer.zero_grad()
        if mode == "retain":
            loss.backward(retain_graph=True)
        else:
            loss.backward()
        optimizer.step()
        if mode == "item":
            total_loss += loss.item()
        else:
            total_loss += loss
        correct += (logits.argmax(dim=1) == targets).sum().item()
        if mode != "eval":
            mark()
    return float(total_loss) / len(loader), correct / len(loader.dataset)


def evaluate(model, loader, mode, mark):
    model.eval()
    total_loss = 0.0
    for inputs, targets in loader:
        inputs = inputs.to(DEVICE)
        targets = targets.to(DEVICE)
        if mode == "eval":
            logits = model(inputs)
        else:
            with torch.no_grad():
                logits = model(inputs)
        loss = F.cross_entropy(logits, targets)
        total_loss += loss
        if mode == "eval":
            mark()
    return float(total_loss) / len(loader)


def main(mark, mode):
    epochs = 1
    train_batches = 8 if mode == "eval" else 48
    valid_batches = 48 if mode == "eval" else 2
    train_loader = DataLoader(BlobDataset(BATCH_SIZE * train_batches, 1), batch_size=BATCH_SIZE, shuffle=True)
    valid_loader = DataLoader(BlobDataset(BATCH_SIZE * valid_batches, 2), batch_size=BATCH_SIZE)
    model = Classifier().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        train_loss, accuracy = train_one_epoch(model, train_loader, optimizer, mode, mark)
        valid_loss = evaluate(model, valid_loader, mode, mark)
        print(f"epoch {epoch}: train {train_loss:.4f} accuracy {accuracy:.3f} valid {valid_loss:.4f}")
