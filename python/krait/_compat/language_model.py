"""mamba_ssm.models.mixer_seq_simple, modules.block: krait.torch's language model with the official constructors."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from torch import nn

from krait._compat import generation, hub
from krait.torch import lm
from krait.torch.lm import MambaConfig


class Block(lm.Block):
    """residual += hidden; hidden = mixer(norm(residual)); with an MLP the same once more."""

    def __init__(self, dim, mixer_cls, mlp_cls, norm_cls=nn.LayerNorm, fused_add_norm=False, residual_in_fp32=False):
        super().__init__(dim, mixer_cls, mlp_cls, norm_cls, fused_add_norm, residual_in_fp32)


def _config(d_model, n_layer, vocab_size, d_intermediate, ssm_cfg, attn_layer_idx, attn_cfg, rms_norm, residual_in_fp32,
            fused_add_norm):
    return MambaConfig(d_model=d_model, d_intermediate=d_intermediate, n_layer=n_layer, vocab_size=vocab_size,
                       ssm_cfg=dict(ssm_cfg or {}), attn_layer_idx=list(attn_layer_idx or []), attn_cfg=dict(attn_cfg or {}),
                       rms_norm=rms_norm, residual_in_fp32=residual_in_fp32, fused_add_norm=fused_add_norm,
                       pad_vocab_size_multiple=1)


def create_block(
    d_model,
    d_intermediate,
    ssm_cfg=None,
    attn_layer_idx=None,
    attn_cfg=None,
    norm_epsilon=1e-5,
    rms_norm=False,
    residual_in_fp32=False,
    fused_add_norm=False,
    layer_idx=None,
    device=None,
    dtype=None,
):
    """One layer as MixerModel makes it. Attention layers are refused."""
    config = _config(
        d_model, 1, 1, d_intermediate, ssm_cfg, attn_layer_idx, attn_cfg, rms_norm, residual_in_fp32, fused_add_norm
    )
    block = lm._create_block(config, layer_idx, {"device": device, "dtype": dtype})
    for norm in (block.norm, getattr(block, "norm2", None)):
        if norm is not None:
            norm.eps = norm_epsilon
    block.layer_idx = layer_idx
    return block


class MixerModel(lm.MixerModel):
    """Embedding, layers and the final norm."""

    def __init__(
        self,
        d_model,
        n_layer,
        d_intermediate,
        vocab_size,
        ssm_cfg=None,
        attn_layer_idx=None,
        attn_cfg=None,
        norm_epsilon=1e-5,
        rms_norm=False,
        initializer_cfg=None,
        fused_add_norm=False,
        residual_in_fp32=False,
        device=None,
        dtype=None,
    ):
        config = _config(d_model, n_layer, vocab_size, d_intermediate, ssm_cfg, attn_layer_idx, attn_cfg, rms_norm,
                         residual_in_fp32, fused_add_norm)
        super().__init__(config, vocab_size, {"device": device, "dtype": dtype})
        for layer in self.layers:
            for norm in (layer.norm, getattr(layer, "norm2", None)):
                if norm is not None:
                    norm.eps = norm_epsilon
        self.norm_f.eps = norm_epsilon
        self.apply(partial(lm._init_weights, n_layer=n_layer, n_residuals_per_layer=2 if d_intermediate else 1,
                           **(initializer_cfg or {})))


class MambaLMHeadModel(generation.GenerationMixin, lm.MambaLMHeadModel):
    """A language model: embedding, layers, final norm and a head."""

    def __init__(self, config, initializer_cfg=None, device=None, dtype=None):
        lm.MambaLMHeadModel.__init__(self, config, initializer_cfg, device, dtype)

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        return self.backbone.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name, device=None, dtype=None, **kwargs):
        """A model of a folder, or of a repository on the hub if huggingface_hub is installed."""
        return super().from_pretrained(hub.folder_of(pretrained_model_name), device=device, dtype=dtype, **kwargs)

    def save_pretrained(self, save_directory):
        """Writes config.json and pytorch_model.bin."""
        hub.save(self, asdict(self.config), save_directory)


def heavy_tail_activation(x):
    """1 + x from 0 on, 1 / (1 - x) below: what Mamba-3 makes its decay rates of."""
    return x.clamp(min=0) + 1.0 / (1.0 - x.clamp(max=0))
