"""Mamba-3 in transformers: configuration and model classes for AutoConfig and AutoModelForCausalLM.

    import krait.hf
    krait.hf.register()
    config = krait.hf.KraitConfig.from_pretrained("mamba3-siso-187m")     # a folder in the official layout
    model = AutoModelForCausalLM.from_pretrained("mamba3-siso-187m", config=config)
    model.generate(**tokenizer("Once upon a time", return_tensors="pt"), max_new_tokens=64)

transformers has no Mamba-3 of its own. For Mamba-1, Mamba-2 and hybrids use its classes with krait.compat. The
parameters have the names of the official checkpoints. Trainer and PEFT work as with any model; `in_proj` and `out_proj`
are torch.nn.Linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

from krait.torch import lm
from krait.torch.modules import Linear
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput  # type: ignore[attr-defined]

if int(transformers.__version__.split(".")[0]) < 5:
    raise ImportError(f"krait.hf needs transformers 5.0 or newer, but {transformers.__version__} is installed")

__all__ = ["KraitCache", "KraitCausalLMOutput", "KraitConfig", "KraitForCausalLM", "register"]

_MODEL_TYPE = "mamba3"
_KEYS = ("d_model", "d_intermediate", "n_layer", "ssm_cfg", "rms_norm", "residual_in_fp32", "fused_add_norm",
         "pad_vocab_size_multiple")


class KraitConfig(PretrainedConfig):
    """The keys of an official config.json, ssm_cfg["layer"] being "Mamba3", and those that every configuration has.

    vocab_size is rounded up to pad_vocab_size_multiple: it is the number of rows of the embedding and of logits.
    """

    model_type = _MODEL_TYPE
    attribute_map = {"hidden_size": "d_model", "num_hidden_layers": "n_layer"}

    def __init__(self, d_model: int = 768, d_intermediate: int = 1536, n_layer: int = 12, vocab_size: int = 128256,
                 ssm_cfg: Optional[dict[str, Any]] = None, attn_layer_idx: Optional[list[int]] = None,
                 attn_cfg: Optional[dict[str, Any]] = None, rms_norm: bool = True, residual_in_fp32: bool = True,
                 fused_add_norm: bool = True, pad_vocab_size_multiple: int = 16, tie_embeddings: bool = True,
                 use_cache: bool = True, **kwargs: Any) -> None:
        self.d_model, self.d_intermediate, self.n_layer = d_model, d_intermediate, n_layer
        self.vocab_size = (vocab_size + pad_vocab_size_multiple - 1) // pad_vocab_size_multiple * pad_vocab_size_multiple
        self.ssm_cfg = {"layer": "Mamba3"} if ssm_cfg is None else dict(ssm_cfg)
        self.rms_norm, self.residual_in_fp32, self.fused_add_norm = rms_norm, residual_in_fp32, fused_add_norm
        self.pad_vocab_size_multiple, self.use_cache = pad_vocab_size_multiple, use_cache
        if attn_layer_idx or attn_cfg:
            raise ValueError(
                f"KraitConfig: attn_layer_idx is {attn_layer_idx}, but krait.torch has no attention layers; krait.load "
                "runs such models"
            )
        layer = self.ssm_cfg.get("layer")
        if layer != "Mamba3":
            raise ValueError(
                f"KraitConfig: ssm_cfg['layer'] is {layer!r}, but must be 'Mamba3'; transformers has classes of its own "
                "for Mamba-1 and Mamba-2, which krait.compat makes fast"
            )
        kwargs.setdefault("tie_word_embeddings", tie_embeddings)
        super().__init__(**kwargs)

    @property
    def tie_embeddings(self) -> bool:
        return bool(self.tie_word_embeddings)

    def official(self) -> lm.MambaConfig:
        """The same as the official package and krait.torch have it."""
        return lm.MambaConfig(vocab_size=self.vocab_size, tie_embeddings=self.tie_embeddings,
                              **{key: getattr(self, key) for key in _KEYS})


class KraitCache(lm.InferenceParams):
    """States of all layers after a number of tokens; made by the model, handed back to it for the next ones."""

    is_compileable = False

    def __init__(self) -> None:
        super().__init__(max_seqlen=0, max_batch_size=0)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seqlen_offset

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Takes the rows of beam_idx, as beam search asks for."""
        for layer, states in self.key_value_memory_dict.items():
            self.key_value_memory_dict[layer] = tuple(m.index_select(0, beam_idx.to(m.device)) for m in states)


@dataclass
class KraitCausalLMOutput(ModelOutput):
    loss: Optional[torch.Tensor] = None
    logits: Optional[torch.Tensor] = None
    past_key_values: Optional[KraitCache] = None
    hidden_states: Optional[tuple[torch.Tensor, ...]] = None


class KraitForCausalLM(PreTrainedModel, GenerationMixin):
    """A language model of Mamba-3 blocks. An attention_mask may pad rows on the left; padding changes nothing then."""

    config_class = KraitConfig
    base_model_prefix = "backbone"
    _is_stateful = True
    _no_split_modules = ["Block"]
    _tied_weights_keys = {"lm_head.weight": "backbone.embedding.weight"}

    def __init__(self, config: KraitConfig) -> None:
        super().__init__(config)
        own = config.official()
        self.backbone = lm.MixerModel(own, own.vocab_size, {})
        self.lm_head = Linear(own.d_model, own.vocab_size, bias=False)
        self.apply(partial(lm._init_weights, n_layer=own.n_layer))
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """The constructor has done it, by the official rules."""

    def get_input_embeddings(self) -> Any:
        return self.backbone.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.backbone.embedding = value

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.lm_head = new_embeddings

    def _layers(self, hidden: torch.Tensor, mask: Optional[torch.Tensor], cache: Optional[KraitCache],
                seen: Optional[list[torch.Tensor]]) -> torch.Tensor:
        """Through all layers and the final norm. The mask is that of the mixers' inputs: of 0 they make 0, and no state."""
        backbone: Any = self.backbone
        residual = None
        for layer in backbone.layers:
            if seen is not None:
                seen.append(hidden if residual is None else hidden + residual)
            hidden, residual = layer._add_norm(layer.norm, hidden, residual)
            hidden = layer.mixer(hidden if mask is None else hidden * mask, inference_params=cache)
            if layer.mlp is not None:
                hidden, residual = layer._add_norm(layer.norm2, hidden, residual)
                hidden = layer.mlp(hidden)
        hidden = lm.add_norm(backbone.norm_f, hidden, residual, backbone.fused_add_norm, backbone.residual_in_fp32)[0]
        if seen is not None:
            seen.append(hidden)
        return hidden

    def forward(self, input_ids: Optional[torch.Tensor] = None, attention_mask: Optional[torch.Tensor] = None,
                past_key_values: Optional[KraitCache] = None, inputs_embeds: Optional[torch.Tensor] = None,
                labels: Optional[torch.Tensor] = None, use_cache: Optional[bool] = None,
                output_hidden_states: Optional[bool] = None, return_dict: Optional[bool] = None, logits_to_keep: Any = 0,
                **kwargs: Any) -> Any:
        """input_ids [b s] or inputs_embeds [b s d]; attention_mask [b s] or of all tokens so far; labels [b s], shifted
        inside.

        Other arguments, such as position_ids, have no effect unless the loss takes them: the model has no positions.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("KraitForCausalLM: give input_ids or inputs_embeds, one of them")
        hidden = self.backbone.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        cache = past_key_values if past_key_values is not None else KraitCache() if use_cache else None
        length = hidden.shape[1]
        mask = None
        if attention_mask is not None and attention_mask.dim() == 2 and length > 1:
            mask = attention_mask[:, -length:, None].to(hidden.dtype)
        seen: Optional[list[torch.Tensor]] = [] if output_hidden_states else None
        hidden = self._layers(hidden, mask, cache, seen)
        if cache is not None:
            cache.seqlen_offset += length
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept] if not isinstance(logits_to_keep, int) or logits_to_keep else hidden)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        output = KraitCausalLMOutput(loss, logits, cache, None if seen is None else tuple(seen))
        return output if return_dict is not False else output.to_tuple()

    # ---- generation ----

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, past_key_values: Any = None,  # type: ignore[override]
                                      attention_mask: Any = None, inputs_embeds: Any = None, use_cache: Any = None,
                                      **kwargs: Any) -> dict[str, Any]:
        """What the cache has not seen yet."""
        cache = past_key_values if isinstance(past_key_values, KraitCache) else None
        inputs: dict[str, Any] = {"attention_mask": attention_mask, "past_key_values": cache, "use_cache": use_cache}
        if inputs_embeds is not None and cache is None:
            inputs["inputs_embeds"] = inputs_embeds
        elif cache is None:
            inputs["input_ids"] = input_ids
        else:
            new = max(input_ids.shape[1] - cache.seqlen_offset, 1) if inputs_embeds is None else 1
            inputs["input_ids"] = input_ids[:, -new:].contiguous()
        if "logits_to_keep" in kwargs:
            inputs["logits_to_keep"] = kwargs["logits_to_keep"]
        return inputs


def register() -> None:
    """Makes AutoConfig and AutoModelForCausalLM know Mamba-3. Calling it again changes nothing.

    A saved folder names its model_type, "mamba3". An official one does not: pass its configuration,
    `AutoModelForCausalLM.from_pretrained(folder, config=KraitConfig.from_pretrained(folder))`.
    """
    AutoConfig.register(_MODEL_TYPE, KraitConfig, exist_ok=True)
    AutoModelForCausalLM.register(KraitConfig, KraitForCausalLM, exist_ok=True)
