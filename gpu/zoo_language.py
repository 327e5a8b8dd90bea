"""Language, speech, recommendation and other models of the zoo: built from a configuration, never fetched."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo_spec import USUAL, Spec, adagrad, adam, adamw, cross_entropy, sgd
from zoo_vision import of_class

HF = ("transformers",)


def hugging_face(model: str, config: str, **options: Any) -> Any:
    """A model of the transformers library with random weights."""

    def build() -> nn.Module:
        import transformers

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**options))
        return made

    return build


def tokens(vocabulary: int, length: int, *, mask: bool = False) -> Any:
    def batch(n: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(5, vocabulary, (n, length))
        made = {"input_ids": ids, "labels": ids}
        if mask:
            made["attention_mask"] = torch.ones(n, length, dtype=torch.int64)
        return made

    return batch


def sentences(vocabulary: int, length: int, classes: int) -> Any:
    """As a tokenizer gives them: with a mask, some of them padded."""

    def batch(n: int) -> dict[str, torch.Tensor]:
        lengths = torch.arange(n) * (length // 2) // max(n, 1) + length // 2
        mask = (torch.arange(length)[None] < lengths[:, None]).long()
        return {
            "input_ids": torch.randint(5, vocabulary, (n, length)),
            "attention_mask": mask,
            "labels": torch.randint(0, classes, (n,)),
        }

    return batch


def translation(n: int) -> dict[str, torch.Tensor]:
    source, target = torch.randint(5, 32000, (n, 512)), torch.randint(5, 32000, (n, 128))
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}


def llama_lora() -> nn.Module:
    """Frozen bf16-sized weights in fp32 as people load them, adapters on the four attention projections."""
    import peft

    base = hugging_face(
        "LlamaForCausalLM",
        "LlamaConfig",
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32000,
    )()
    config = peft.LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    model: nn.Module = peft.get_peft_model(base, config)
    return model


def pairs(n: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 49000, (n, 77))
    ids[:, -1] = 49407
    return {"input_ids": ids, "pixel_values": torch.randn(n, 3, 224, 224)}


def clip_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(**batch, return_loss=True).loss
    return loss


def speech(n: int) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(n, 80000), "labels": torch.randint(0, 12, (n,))}


def spectrogram(n: int) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(n, 80, 3000), "labels": torch.randint(5, 50000, (n, 128))}


class WaveNet(nn.Module):
    """The M5 of the audio tutorial, wider: one-dimensional convolutions over raw samples."""

    def __init__(self, channels: int = 64, classes: int = 35) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(1, channels, 80, stride=4), nn.BatchNorm1d(channels), nn.ReLU()]
        for a, b in ((1, 1), (1, 2), (2, 2), (2, 4)):
            layers += [nn.MaxPool1d(4)] if a != b else []
            layers += [nn.Conv1d(channels * a, channels * b, 3, padding=1), nn.BatchNorm1d(channels * b), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(4 * channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.features(x).mean(-1))
        return out


def waves(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 1, 16000), torch.randint(0, 35, (n,))


class LSTMModel(nn.Module):
    """A word-level language model, two layers."""

    def __init__(self, vocabulary: int = 20000, width: int = 512, hidden: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(self.embed(ids))
        out: torch.Tensor = self.head(self.drop(hidden))
        return out


class GRUModel(nn.Module):
    """A classifier of sequences: both directions, three layers, dropout between them."""

    def __init__(self, features: int = 128, hidden: int = 512, classes: int = 20) -> None:
        super().__init__()
        self.rnn = nn.GRU(features, hidden, num_layers=3, batch_first=True, bidirectional=True, dropout=0.3)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(x)
        out: torch.Tensor = self.head(hidden[:, -1])
        return out


def words(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 20000, (n, 128)), torch.randint(0, 20000, (n, 128))


def word_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def sequences(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 256, 128), torch.randint(0, 20, (n,))


class PlainTransformer(nn.Module):
    """torch.nn's own encoder and decoder, post-norm, as in the tutorials."""

    def __init__(self, vocabulary: int = 16000, width: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 8, 6, 6, 2048, 0.1, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        mask = mask.to(self.head.weight.dtype)
        hidden = self.transformer(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        out: torch.Tensor = self.head(hidden)
        return out


def sentence_pairs(n: int) -> tuple[Any, torch.Tensor]:
    return (
        torch.randint(0, 16000, (n, 128)),
        torch.randint(0, 16000, (n, 128)),
    ), torch.randint(0, 16000, (n, 128))


def mlp() -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(1024, 4096), nn.GELU()]
    for _ in range(4):
        layers += [nn.Linear(4096, 4096), nn.BatchNorm1d(4096), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(4096, 100))


def rows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 1024), torch.randint(0, 100, (n,))


class DLRM(nn.Module):
    """Dense features through an MLP, 16 tables of embeddings, dot products of all pairs, an MLP on top."""

    def __init__(self, tables: int = 16, width: int = 64) -> None:
        super().__init__()
        sizes = [1000 * (1 + 12 * (i % 8)) for i in range(tables)]
        self.tables = nn.ModuleList(nn.EmbeddingBag(size, width, mode="sum") for size in sizes)
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        pairs_of = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs_of, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )
        row, column = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("row", row, persistent=False)
        self.register_buffer("column", column, persistent=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        low = self.bottom(dense)
        looked_up = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([low, *looked_up], 1)
        products = features @ features.transpose(1, 2)
        out: torch.Tensor = self.top(torch.cat((low, products[:, self.row, self.column]), 1)).squeeze(1)
        return out


def clicks(n: int) -> tuple[Any, torch.Tensor]:
    return (torch.randn(n, 13), torch.randint(0, 1000, (n, 16, 4))), torch.rand(n).round()


def click_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(output, target.to(output.dtype))


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
MIXTRAL = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
CLIP = {
    "text_config": {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "intermediate_size": 2048},
    "vision_config": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "patch_size": 32,
    },
}
WAV2VEC2 = {
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    "layerdrop": 0.0,
    "num_labels": 12,
    "apply_spec_augment": False,
}


def transformer(build: Any, batch: Any, batches: tuple[int, ...], *blocks: str, **more: Any) -> Spec:
    return Spec(build, batch, None, adamw, batches, blocks=of_class(*blocks), needs=HF, **more)


MODELS: dict[str, Spec] = {
    "bert_base": transformer(
        hugging_face("BertForMaskedLM", "BertConfig"), tokens(30000, 512), (4, 16, 32), "BertLayer", calibration=True
    ),
    "gpt2": transformer(
        hugging_face("GPT2LMHeadModel", "GPT2Config"), tokens(50000, 1024), (2, 4, 8), "GPT2Block", calibration=True
    ),
    "bert_large": transformer(
        hugging_face("BertForMaskedLM", "BertConfig", **LARGE), tokens(30000, 512), (4, 8, 16), "BertLayer"
    ),
    "gpt2_medium": transformer(
        hugging_face("GPT2LMHeadModel", "GPT2Config", n_embd=1024, n_layer=24, n_head=16),
        tokens(50000, 1024),
        (1, 4, 8),
        "GPT2Block",
    ),
    "distilbert": transformer(
        hugging_face("DistilBertForSequenceClassification", "DistilBertConfig", num_labels=4),
        sentences(30000, 256, 4),
        (16, 32, 64),
        "TransformerBlock",
    ),
    "t5_small": transformer(
        hugging_face("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0),
        translation,
        (8, 16, 32),
        "T5Block",
    ),
    "llama_1b": transformer(
        hugging_face("LlamaForCausalLM", "LlamaConfig", **LLAMA_1B), tokens(32000, 1024), (1, 2, 4), "LlamaDecoderLayer"
    ),
    "llama_lora": Spec(
        llama_lora,
        tokens(32000, 512, mask=True),
        None,
        adamw,
        (4, 8, 16),
        blocks=of_class("LlamaDecoderLayer"),
        needs=(*HF, "peft"),
    ),
    "mixtral": transformer(
        hugging_face("MixtralForCausalLM", "MixtralConfig", **MIXTRAL),
        tokens(32000, 512),
        (2, 4, 8),
        "MixtralDecoderLayer",
    ),
    "clip": Spec(
        hugging_face("CLIPModel", "CLIPConfig", **CLIP),
        pairs,
        clip_loss,
        adamw,
        (32, 64, 128),
        blocks=of_class("CLIPEncoderLayer"),
        needs=HF,
    ),
    "wav2vec2": transformer(
        hugging_face("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **WAV2VEC2),
        speech,
        (2, 4, 8),
        "Wav2Vec2EncoderLayer",
    ),
    "whisper_tiny": transformer(
        hugging_face("WhisperForConditionalGeneration", "WhisperConfig", decoder_start_token_id=1),
        spectrogram,
        (4, 8, 16),
        "WhisperEncoderLayer",
        "WhisperDecoderLayer",
    ),
    "audio_m5": Spec(WaveNet, waves, cross_entropy, adam, (64, 128, 256)),
    "lstm": Spec(LSTMModel, words, word_loss, sgd, (16, 32, 64), calibration=True),
    # Calibrates, too: cuDNN's memory for its recurrent layers was learnt from what this model took.
    "gru": Spec(GRUModel, sequences, cross_entropy, adam, (32, 64, 128), calibration=True),
    "nn_transformer": Spec(
        PlainTransformer,
        sentence_pairs,
        word_loss,
        adam,
        (16, 32, 64),
        blocks=of_class("TransformerEncoderLayer", "TransformerDecoderLayer"),
    ),
    "mlp": Spec(mlp, rows, cross_entropy, adamw, (256, 2048, 8192), calibration=True),
    # Adagrad has no fused form on CUDA.
    "dlrm": Spec(
        DLRM,
        clicks,
        click_loss,
        adagrad,
        (2048, 8192, 32768),
        settings=tuple(one for one in USUAL if one not in ("fused", "checkpoint")),
    ),
}
