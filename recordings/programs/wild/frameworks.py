"""The same small training in Lightning and with the Trainer of Transformers."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def lightning_main(mark, keep):
    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1000))
            self.seen = []

        def training_step(self, batch, batch_idx):
            inputs, targets = batch
            logits = self.body(inputs)
            loss = F.cross_entropy(logits, targets)
            if keep:
                self.seen.append(logits)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Mark(pl.Callback):
        def on_train_batch_end(self, *args, **kwargs):
            mark()

    data = TensorDataset(torch.randn(45 * 256, 512), torch.randint(0, 1000, (45 * 256,)))
    trainer = pl.Trainer(
        max_steps=45,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Mark()],
    )
    trainer.fit(Model(), DataLoader(data, batch_size=256, shuffle=True))


def hf_main(mark, keep):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Tokens(torch.utils.data.Dataset):
        def __len__(self):
            return 40 * 8

        def __getitem__(self, index):
            tokens = torch.randint(0, 5000, (128,))
            return {"input_ids": tokens, "labels": tokens}

    class Mark(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            mark()

    class KeepingTrainer(Trainer):
        logits = []

        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            if keep:
                self.logits.append(outputs.logits.detach())
            return (loss, outputs) if return_outputs else loss

    model = GPT2LMHeadModel(GPT2Config(vocab_size=5000, n_embd=256, n_layer=3, n_head=4))
    arguments = TrainingArguments(
        output_dir="/tmp/hf_trainer",
        per_device_train_batch_size=8,
        max_steps=40,
        report_to="none",
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        bf16=True,
    )
    KeepingTrainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Mark()]).train()
