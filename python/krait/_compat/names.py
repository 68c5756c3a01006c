"""The table of official names: module by module, what krait.compat.install() puts there."""

from __future__ import annotations

from krait import torch as krait_torch
from krait._compat import (
    causal_conv,
    generation,
    hub,
    language_model,
    layer_norms,
    mamba2_simple,
    references,
    selective_scan,
    ssd_combined,
    state_update,
)

VERSION = "2.3.2+krait"
CONV_VERSION = "1.6.1+krait"


def _pick(source, *names, **renamed):
    """{name: attribute of source}; renamed: name = attribute."""
    return {name: getattr(source, name) for name in names} | {name: getattr(source, old) for name, old in renamed.items()}


def _ops():
    scans = _pick(selective_scan, "selective_scan_fn", "mamba_inner_fn", "rms_norm_forward") | _pick(
        references, "selective_scan_ref", "mamba_inner_ref")
    norms = _pick(layer_norms, "layer_norm_fn", "rms_norm_fn", "layer_norm_linear_fn", "RMSNorm") | _pick(
        references, "layer_norm_ref", "rms_norm_ref")
    return {
        "ops": {},
        "ops.selective_scan_interface": scans,
        "ops.triton": {},
        "ops.triton.ssd_combined": _pick(
            ssd_combined, "mamba_chunk_scan_combined", "mamba_chunk_scan", "mamba_split_conv1d_scan_combined") | _pick(
            references, "ssd_chunk_scan_combined_ref", "ssd_selective_scan", "mamba_conv1d_scan_ref",
            "mamba_split_conv1d_scan_ref"),
        "ops.triton.selective_state_update": _pick(state_update, "selective_state_update") | _pick(
            references, "selective_state_update_ref"),
        "ops.triton.layernorm_gated": _pick(
            layer_norms, layernorm_fn="gated_layernorm_fn", rmsnorm_fn="gated_rmsnorm_fn", LayerNorm="GatedLayerNorm",
            RMSNorm="GatedRMSNorm") | _pick(references, rms_norm_ref="rms_norm_gated_ref"),
        "ops.triton.layer_norm": norms,
        "ops.triton.layernorm": norms,
    }


def _conv1d():
    functions = _pick(causal_conv, "causal_conv1d_fn", "causal_conv1d_update")
    return {
        "causal_conv1d": functions | {"__version__": CONV_VERSION},
        "causal_conv1d.causal_conv1d_interface": functions
        | _pick(references, "causal_conv1d_ref", "causal_conv1d_update_ref"),
        "causal_conv1d.causal_conv1d_varlen": _pick(causal_conv, "causal_conv1d_varlen_states")
        | _pick(references, "causal_conv1d_varlen_states_ref"),
    }


def _models():
    generate = _pick(
        generation,
        "InferenceParams",
        "GenerationMixin",
        "decode",
        "sample",
        "modify_logits_for_min_p_filtering",
        "modify_logits_for_top_k_filtering",
        "modify_logits_for_top_p_filtering",
        "modify_logit_for_repetition_penalty",
    )
    return {
        "modules": {},
        "modules.mamba_simple": _pick(krait_torch, "Mamba") | _pick(language_model, "Block"),
        "modules.mamba2": _pick(krait_torch, "Mamba2"),
        "modules.mamba2_simple": _pick(mamba2_simple, "Mamba2Simple"),
        "modules.mamba3": _pick(krait_torch, "Mamba3") | _pick(language_model, "heavy_tail_activation"),
        "modules.block": _pick(language_model, "Block"),
        "modules.mlp": _pick(krait_torch, "GatedMLP"),
        "modules.ssd_minimal": _pick(references, "segsum", "segsum_unstable", "ssd_minimal_discrete"),
        "models": {},
        "models.config_mamba": _pick(krait_torch, "MambaConfig"),
        "models.mixer_seq_simple": _pick(language_model, "MixerModel", "MambaLMHeadModel", "create_block") | _pick(
            krait_torch, "MambaConfig"),
        "utils": {},
        "utils.generation": generate,
        "utils.hf": _pick(hub, "load_config_hf", "load_state_dict_hf"),
    }


def packages() -> dict:
    """{top-level package: {module: {name: object}}}, parents before their children."""
    modules = _ops() | _models()
    top = _pick(krait_torch, "Mamba", "Mamba2", "Mamba3") | _pick(language_model, "MambaLMHeadModel")
    for group in ("ops.selective_scan_interface", "ops.triton.ssd_combined", "ops.triton.selective_state_update"):
        top |= {name: found for name, found in modules[group].items() if not name.endswith("_ref")}
    mamba_ssm = {"mamba_ssm": top | {"__version__": VERSION}} | {
        f"mamba_ssm.{name}": found for name, found in modules.items()
    }
    return {
        "mamba_ssm": mamba_ssm,
        "causal_conv1d": _conv1d(),
        "selective_scan_cuda": {"selective_scan_cuda": _pick(selective_scan.SelectiveScanCuda, "fwd", "bwd")},
        "selective_scan_cuda_oflex": {
            "selective_scan_cuda_oflex": _pick(selective_scan.SelectiveScanCudaOflex, "fwd", "bwd")
        },
    }
