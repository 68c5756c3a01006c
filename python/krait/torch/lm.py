"""Language models with the layout of the official package: MambaConfig, MambaLMHeadModel, Block, GatedMLP, generation.

    >>> model = MambaLMHeadModel(MambaConfig(d_model=64, n_layer=2, vocab_size=100, ssm_cfg={"layer": "Mamba2", "headdim": 16}))
    >>> tuple(model(torch.zeros(1, 5, dtype=torch.int64)).logits.shape)
    (1, 5, 104)
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import namedtuple
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from krait import _core
from krait.torch import functional as KF
from krait.torch.modules import Linear, Mamba, Mamba2, Mamba3, RMSNorm

Tensor = torch.Tensor
CausalLMOutput = namedtuple("CausalLMOutput", ["logits"])
GenerateOutput = namedtuple("GenerateOutput", ["sequences", "scores"])
_FAMILIES = {"Mamba1": Mamba, "Mamba2": Mamba2, "Mamba3": Mamba3}


@dataclass
class MambaConfig:
    """The keys of an official config.json."""

    d_model: int = 2560
    d_intermediate: int = 0
    n_layer: int = 64
    vocab_size: int = 50277
    ssm_cfg: dict[str, Any] = field(default_factory=dict)
    attn_layer_idx: list[int] = field(default_factory=list)
    attn_cfg: dict[str, Any] = field(default_factory=dict)
    rms_norm: bool = True
    residual_in_fp32: bool = True
    fused_add_norm: bool = True
    pad_vocab_size_multiple: int = 8
    tie_embeddings: bool = True

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "MambaConfig":
        """From the keys of an official config, or of one of transformers (model_type mamba or mamba2)."""
        if given.get("model_type") in ("mamba", "mamba2"):
            return _from_transformers(given)
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise _core.FormatError(f"config: unknown keys {', '.join(unknown)}; an official config has {', '.join(sorted(known))}")
        return cls(**given)


def _number(value: Any) -> float:
    """A number that may be spelled {"__float__": "Infinity"}."""
    return float(value["__float__"]) if isinstance(value, dict) else float(value)


def _from_transformers(given: Mapping[str, Any]) -> MambaConfig:
    ssm: dict[str, Any] = {"layer": "Mamba1", "d_state": given["state_size"], "d_conv": given["conv_kernel"],
                           "expand": given["expand"], "bias": given["use_bias"], "conv_bias": given["use_conv_bias"]}
    if given["model_type"] == "mamba":
        ssm["dt_rank"] = given["time_step_rank"]
    else:
        limit = given.get("time_step_limit", (0.0, math.inf))
        ssm |= {"layer": "Mamba2", "headdim": given["head_dim"], "ngroups": given["n_groups"],
                "dt_limit": (_number(limit[0]), _number(limit[1])), "norm_groups": 1}
    tied = given.get("tie_word_embeddings", given["model_type"] == "mamba")
    return MambaConfig(d_model=given["hidden_size"], n_layer=given["num_hidden_layers"], vocab_size=given["vocab_size"],
                       ssm_cfg=ssm, residual_in_fp32=given.get("residual_in_fp32", True), fused_add_norm=False,
                       pad_vocab_size_multiple=1, tie_embeddings=tied)


# ---- blocks ----


class GatedMLP(nn.Module):
    """fc2(value silu(gate)), value and gate being the halves of fc1; the width is rounded up to a multiple."""

    def __init__(self, in_features: int, hidden_features: int | None = None, out_features: int | None = None,
                 activation: Callable[[Tensor], Tensor] = F.silu, bias: bool = False, multiple_of: int = 128,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__()
        hidden = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden = (hidden + multiple_of - 1) // multiple_of * multiple_of
        self.fc1 = Linear(in_features, 2 * hidden, bias=bias, **kind)
        self.activation = activation
        self.fc2 = Linear(hidden, out_features or in_features, bias=bias, **kind)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.fc1(x).chunk(2, -1)
        y = KF.gate(value, gate) if self.activation is F.silu else value * self.activation(gate)
        out: Tensor = self.fc2(y)
        return out


class Block(nn.Module):
    """residual += hidden; hidden = mixer(norm(residual)); with an MLP the same once more."""

    def __init__(self, dim: int, mixer_cls: Callable[[int], nn.Module], mlp_cls: Callable[[int], nn.Module] = nn.Identity,
                 norm_cls: Callable[[int], nn.Module] = nn.LayerNorm, fused_add_norm: bool = False,
                 residual_in_fp32: bool = False) -> None:
        super().__init__()
        self.residual_in_fp32, self.fused_add_norm = residual_in_fp32, fused_add_norm
        self.norm = norm_cls(dim)
        self.mixer = mixer_cls(dim)
        self.mlp: nn.Module | None = None
        if mlp_cls is not nn.Identity:
            self.norm2 = norm_cls(dim)
            self.mlp = mlp_cls(dim)

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None, inference_params: Any = None,
                **mixer_kwargs: Any) -> tuple[Tensor, Tensor]:
        hidden, residual = self._add_norm(self.norm, hidden_states, residual)
        hidden = self.mixer(hidden, inference_params=inference_params, **mixer_kwargs)
        if self.mlp is not None:
            hidden, residual = self._add_norm(self.norm2, hidden, residual)
            hidden = self.mlp(hidden)
        return hidden, residual

    def _add_norm(self, norm: nn.Module, hidden: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return add_norm(norm, hidden, residual, self.fused_add_norm, self.residual_in_fp32)

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None,
                                 **kwargs: Any) -> Any:
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)  # type: ignore[operator]


def add_norm(norm: nn.Module, hidden: Tensor, residual: Tensor | None, fused: bool,
             in_fp32: bool) -> tuple[Tensor, Tensor]:
    """The norm of residual + hidden, and that sum. fused: the norm reads the sum before it is rounded to the weight's type."""
    weight: Tensor = norm.weight  # type: ignore[assignment]
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if fused and in_fp32 and hidden.is_cuda and isinstance(norm, RMSNorm) and norm.groups == 1:
        return KF.add_rms_norm(hidden, residual, weight, eps=norm.eps)
    if fused:
        total = hidden.to(wide) if residual is None else hidden.to(wide) + residual
        normed = norm(total.to(weight.dtype) if weight.dtype == wide else total)
        return normed.to(hidden.dtype), total if in_fp32 else total.to(hidden.dtype)
    total = hidden if residual is None else hidden + residual
    return norm(total.to(weight.dtype)), total.to(wide) if in_fp32 else total


# ---- the model ----


def _create_block(config: MambaConfig, layer_idx: int, kind: dict[str, Any]) -> Block:
    own = dict(config.ssm_cfg)
    name = own.pop("layer", "Mamba1")
    if name not in _FAMILIES:
        raise _core.ArgumentError(f"config: ssm_cfg.layer = {name!r} must be one of {', '.join(_FAMILIES)}")
    if layer_idx in config.attn_layer_idx:
        raise _core.UnsupportedError(
            f"config: layer {layer_idx} is attention, which krait.torch does not have")
    norm: Callable[[int], nn.Module] = partial(RMSNorm if config.rms_norm else nn.LayerNorm, eps=1e-5, **kind)
    mlp: Any = partial(GatedMLP, hidden_features=config.d_intermediate, out_features=config.d_model, **kind)
    return Block(config.d_model, partial(_FAMILIES[name], layer_idx=layer_idx, **own, **kind),
                 mlp if config.d_intermediate else nn.Identity, norm, config.fused_add_norm, config.residual_in_fp32)


def _init_weights(module: nn.Module, n_layer: int, initializer_range: float = 0.02, rescale_prenorm_residual: bool = True,
                  n_residuals_per_layer: int = 1) -> None:
    """The official rules: zero biases, normal embeddings, projections onto the residual stream scaled by depth."""
    if isinstance(module, nn.Linear) and module.bias is not None and not getattr(module.bias, "_no_reinit", False):
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if rescale_prenorm_residual:
        for name, p in module.named_parameters():
            if name in ("out_proj.weight", "fc2.weight"):
                nn.init.kaiming_uniform_(p, a=math.sqrt(5))
                with torch.no_grad():
                    p.div_(math.sqrt(n_residuals_per_layer * n_layer))


class MixerModel(nn.Module):
    """Embedding, layers and the final norm."""

    def __init__(self, config: MambaConfig, vocab_size: int, kind: dict[str, Any]) -> None:
        super().__init__()
        self.residual_in_fp32, self.fused_add_norm = config.residual_in_fp32, config.fused_add_norm
        self.embedding = nn.Embedding(vocab_size, config.d_model, **kind)
        self.layers = nn.ModuleList(_create_block(config, i, kind) for i in range(config.n_layer))
        self.norm_f = (RMSNorm if config.rms_norm else nn.LayerNorm)(config.d_model, eps=1e-5, **kind)

    def forward(self, input_ids: Tensor, inference_params: Any = None, **mixer_kwargs: Any) -> Tensor:
        hidden, residual = self.embedding(input_ids), None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, inference_params=inference_params, **mixer_kwargs)
        return add_norm(self.norm_f, hidden, residual, self.fused_add_norm, self.residual_in_fp32)[0]

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None,
                                 **kwargs: Any) -> dict[int, Any]:
        return {i: layer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)  # type: ignore[operator]
                for i, layer in enumerate(self.layers)}


@dataclass
class InferenceParams:
    """States of a generation, by layer."""

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    key_value_memory_dict: dict[int, Any] = field(default_factory=dict)

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        self.max_seqlen, self.max_batch_size, self.seqlen_offset = max_seqlen, max_batch_size, 0
        self.key_value_memory_dict.clear()


class MambaLMHeadModel(nn.Module):
    """A language model: MixerModel and a head, tied to the embedding or not."""

    def __init__(self, config: MambaConfig, initializer_cfg: dict[str, Any] | None = None, device: Any = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        multiple = config.pad_vocab_size_multiple
        vocab_size = (config.vocab_size + multiple - 1) // multiple * multiple
        self.config = config
        self.backbone = MixerModel(config, vocab_size, kind)
        self.lm_head = Linear(config.d_model, vocab_size, bias=False, **kind)
        self.apply(partial(_init_weights, n_layer=config.n_layer, **(initializer_cfg or {})))
        self.tie_weights()

    def tie_weights(self) -> None:
        if self.config.tie_embeddings:
            self.lm_head.weight = self.backbone.embedding.weight

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, inference_params: Any = None,
                num_last_tokens: int = 0, **mixer_kwargs: Any) -> CausalLMOutput:
        """Logits [b s vocab], or of the last tokens. position_ids is accepted and has no effect: there are no positions."""
        hidden = self.backbone(input_ids, inference_params=inference_params, **mixer_kwargs)
        if num_last_tokens > 0:
            hidden = hidden[:, -num_last_tokens:]
        return CausalLMOutput(logits=self.lm_head(hidden))

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None,
                                 **kwargs: Any) -> dict[int, Any]:
        return self.backbone.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    # ---- files ----

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], device: Any = None, dtype: torch.dtype | None = None,
                        **kwargs: Any) -> "MambaLMHeadModel":
        """A model of a local folder with config.json and model.safetensors or pytorch_model.bin.

        The layout is the official one, or that of transformers for Mamba-1 and Mamba-2.
        """
        folder = os.fspath(folder)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = MambaConfig.from_dict(json.load(file))
        model = cls(config, device=device, dtype=dtype, **kwargs)
        model.load_state_dict(_renamed(read_weights(folder), config))
        return model

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Writes config.json and pytorch_model.bin, as the official package does."""
        folder = os.fspath(folder)
        os.makedirs(folder, exist_ok=True)
        torch.save(self.state_dict(), os.path.join(folder, "pytorch_model.bin"))
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(asdict(self.config), file, indent=4)

    # ---- generation ----

    @torch.no_grad()
    def generate(self, input_ids: Tensor, max_length: int, top_k: int = 1, top_p: float = 0.0, min_p: float = 0.0,
                 temperature: float = 1.0, repetition_penalty: float = 1.0, eos_token_id: int | None = None,
                 return_dict_in_generate: bool = False, output_scores: bool = False, vocab_size: int | None = None,
                 generator: torch.Generator | None = None) -> Any:
        """Continues input_ids [b s] to max_length tokens; with top_k = 1 the best token each time.

        min_p drops tokens below that fraction of the most likely one. Stops when all rows are at eos_token_id.
        """
        choose = partial(sample, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature, generator=generator)
        params = InferenceParams(max_length, input_ids.shape[0])
        tokens, scores, ids = input_ids, [], input_ids
        while tokens.shape[1] < max_length:
            logits = self(ids, inference_params=params, num_last_tokens=1).logits[:, -1]
            logits = logits[:, :vocab_size] if vocab_size is not None else logits
            if output_scores:
                scores.append(logits.clone())
            params.seqlen_offset = tokens.shape[1]
            ids = choose(_penalised(logits, tokens, repetition_penalty))[:, None]
            tokens = torch.cat([tokens, ids], 1)
            if eos_token_id is not None and bool((ids == eos_token_id).all()):
                break
        return GenerateOutput(tokens, tuple(scores)) if return_dict_in_generate else tokens


def _penalised(logits: Tensor, tokens: Tensor, penalty: float) -> Tensor:
    """Logits of tokens that occurred are divided by the penalty, negative ones multiplied."""
    if penalty == 1.0:
        return logits
    seen = logits.gather(1, tokens)
    return logits.scatter(1, tokens, torch.where(seen < 0, seen * penalty, seen / penalty))


def sample(logits: Tensor, top_k: int = 1, top_p: float = 0.0, min_p: float = 0.0, temperature: float = 1.0,
           generator: torch.Generator | None = None) -> Tensor:
    """A token for each row of logits [b vocab]."""
    if top_k == 1:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k > 1:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if 0 < top_p < 1:
        ordered, order = logits.sort(-1)
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        logits = logits.masked_fill(drop.scatter(1, order, drop), -math.inf)
    weights = logits.softmax(-1)
    if min_p > 0:
        weights = weights.masked_fill(weights < min_p * weights.max(-1, keepdim=True).values, 0.0)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


# ---- weights ----

_STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
           "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise _core.FormatError(f"{path}: the header of {length} bytes is longer than the file")
    header = json.loads(bytes(data[8: 8 + length]))
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in about["data_offsets"])
        if about["dtype"] not in _STORED or not 8 + length <= begin <= end <= len(data):
            raise _core.FormatError(f"{path}: tensor {name} of type {about['dtype']} is not within the file, or not readable")
        dtype = _STORED[about["dtype"]]
        flat = torch.frombuffer(data[begin:end], dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(about["shape"])
    return tensors


def read_weights(folder: str) -> dict[str, Tensor]:
    """The weights of a folder, of model.safetensors or pytorch_model.bin."""
    safe, pickled = (os.path.join(folder, name) for name in ("model.safetensors", "pytorch_model.bin"))
    if os.path.exists(safe):
        return read_safetensors(safe)
    if os.path.exists(pickled):
        weights: dict[str, Tensor] = torch.load(pickled, map_location="cpu", weights_only=True)
        return weights
    raise _core.IoError(f"{folder}: there is neither model.safetensors nor pytorch_model.bin")


def _renamed(weights: Mapping[str, Tensor], config: MambaConfig) -> dict[str, Tensor]:
    """Official names for those of transformers; a tied head that is not stored is the embedding."""
    own = {name.replace("backbone.embeddings.", "backbone.embedding."): x for name, x in weights.items()}
    if config.tie_embeddings and "lm_head.weight" not in own:
        own["lm_head.weight"] = own["backbone.embedding.weight"]
    return own


# ---- models of the package krait ----


def from_krait(model: Any, device: Any = None, dtype: torch.dtype | None = None) -> MambaLMHeadModel:
    """A torch model with the weights of a krait.Model, copied."""
    config = MambaConfig.from_dict(json.loads(model.config_text("official")))
    made = MambaLMHeadModel(config, device=device, dtype=dtype)
    with torch.no_grad():
        weights = {name: torch.from_numpy(p.numpy().copy()) for name, p in model.params.items()}
        made.load_state_dict(_renamed(weights, config))
    return made


def to_krait(module: MambaLMHeadModel, **options: Any) -> Any:
    """A krait.Model with the weights of a torch model, copied by way of a temporary folder. options: of krait.load."""
    import krait

    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        made = krait.load(folder, **options)
    made._source = []  # pickle then stores the weights: the folder is gone
    return made
