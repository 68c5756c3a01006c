"""Tiny models of transformers, one for each family that looks for the official kernels, made alike by every version of it.

As a program it compares each family with and without krait.compat in one process and prints what it found as JSON:
    python transformers_models.py FAMILY...
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pathlib
import sys
import traceback
import warnings

import torch

DEVICE = os.environ.get("KRAIT_TEST_DEVICE", "cpu")
torch.backends.cudnn.allow_tf32 = False  # of convolutions without Krait
SEED = 20
LENGTH = 19  # of prompts: no multiple of the chunk size 8
NEW_TOKENS = 12

_COMMON = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
               tie_word_embeddings=False)
_ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, max_position_embeddings=64)
_MAMBA2 = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=2, mamba_d_conv=4, mamba_expand=2,
               mamba_chunk_size=8)

# family: (class of the configuration, class of the model, arguments of the configuration)
FAMILIES = {
    "mamba": ("MambaConfig", "MambaForCausalLM", dict(state_size=8, expand=2, conv_kernel=4, time_step_rank=4)),
    "mamba2": (
        "Mamba2Config",
        "Mamba2ForCausalLM",
        dict(num_heads=8, head_dim=8, state_size=8, n_groups=2, expand=2, conv_kernel=4, chunk_size=8),
    ),
    "falcon_mamba": (
        "FalconMambaConfig",
        "FalconMambaForCausalLM",
        dict(state_size=8, expand=2, intermediate_size=64, conv_kernel=4, time_step_rank=4),
    ),
    "jamba": (
        "JambaConfig",
        "JambaForCausalLM",
        dict(
            **_ATTENTION,
            num_experts=2,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=2,
            attn_layer_offset=1,
            use_mamba_kernels=False,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=4,
        ),
    ),
    "zamba": (
        "ZambaConfig",
        "ZambaForCausalLM",
        dict(
            **_ATTENTION,
            attention_hidden_size=64,
            n_mamba_heads=2,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
            attn_layer_period=3,
            attn_layer_offset=1,
            num_hidden_layers=4,
        ),
    ),
    "zamba2": (
        "Zamba2Config",
        "Zamba2ForCausalLM",
        dict(
            **_ATTENTION,
            mamba_ngroups=2,
            n_mamba_heads=8,
            mamba_headdim=8,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_expand=2,
            chunk_size=8,
            hybrid_layer_ids=[1],
            num_mem_blocks=1,
            layers_block_type=["mamba", "hybrid"],
            use_mem_rope=True,
            adapter_rank=4,
        ),
    ),
    "bamba": ("BambaConfig", "BambaForCausalLM", dict(**_ATTENTION, **_MAMBA2, attn_layer_indices=[1])),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        dict(
            **_ATTENTION,
            **_MAMBA2,
            shared_intermediate_size=32,
            num_local_experts=2,
            num_experts_per_tok=2,
            layer_types=["mamba", "attention"],
        ),
    ),
    "falcon_h1": (
        "FalconH1Config",
        "FalconH1ForCausalLM",
        dict(**_ATTENTION, **_MAMBA2, mamba_d_ssm=64, head_dim=8, mamba_rms_norm=True, mamba_norm_before_gate=False),
    ),
    "nemotron_h": (
        "NemotronHConfig",
        "NemotronHForCausalLM",
        dict(
            **_ATTENTION,
            layers_block_type=["mamba", "attention"],
            head_dim=8,
            mamba_num_heads=8,
            mamba_head_dim=8,
            ssm_state_size=8,
            n_groups=2,
            conv_kernel=4,
            expand=2,
            chunk_size=8,
        ),
    ),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", dict(**_ATTENTION, layer_types=["conv", "full_attention"], conv_L_cache=3)),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        dict(
            **_ATTENTION,
            head_dim=8,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            linear_conv_kernel_dim=4,
            layer_types=["linear_attention", "full_attention"],
            num_experts=2,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            decoder_sparse_step=1,
        ),
    ),
}


def is_known(family: str) -> bool:
    return importlib.util.find_spec(f"transformers.models.{family}") is not None


def make(family: str, one_chunk: bool = False) -> torch.nn.Module:
    """A model with random weights whose decays and steps are those of a trained one."""
    config_name, model_name, arguments = FAMILIES[family]
    if one_chunk:
        arguments = {
            name: 64 if name == "chunk_size" else 1 if name == "n_groups" else value for name, value in arguments.items()
        }
    config_file = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    model_file = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    if norm_ignores_groups(family, model_file):
        arguments = {**arguments, "n_groups": 1}
    torch.manual_seed(SEED)
    model = getattr(model_file, model_name)(getattr(config_file, config_name)(**{**_COMMON, **arguments}))
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(("dt_bias", "dt_proj.bias")):
                parameter.copy_(0.5 * noise - 2.0)  # dt near 0.13, above transformers' lower limit 0.001
            elif name.endswith("A_log"):
                parameter.copy_(0.3 * noise + 0.5)
            elif name.endswith((".D", "norm.weight", "layernorm.weight")):
                parameter.copy_(1.0 + 0.2 * noise)
            else:
                parameter.copy_(noise * (0.25 if parameter.dim() > 1 else 0.1))
    return model.to(DEVICE)


def inputs(padded: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [2 s] and the mask; padded: the first 5 tokens of row 0 are padding."""
    ids = torch.randint(3, 97, (2, LENGTH), generator=torch.Generator().manual_seed(SEED + 1))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :5] = 0
        ids[0, :5] = 0
    return ids.to(DEVICE), mask.to(DEVICE)


def measure(model: torch.nn.Module) -> dict:
    """loss, logits and gradients in training mode, logits of a padded batch, greedy tokens, logits of single steps."""
    ids, mask = inputs(False)
    model.train()
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    found = {"loss": out.loss.detach(), "logits": out.logits.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"grad/{name}"] = parameter.grad.clone()
    model.eval()
    with torch.no_grad():
        padded_ids, padded_mask = inputs(True)
        logits = model(padded_ids, attention_mask=padded_mask).logits
        found["padded"] = logits[padded_mask.bool()]
        found["tokens"] = generate(model, ids, mask)
        found["padded_tokens"] = generate(model, padded_ids, padded_mask)
    return found


WITHOUT_CACHE: set = set()


def generate(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Greedy tokens, with a cache where this version can: FalconH1 of 4.57 to 5.14 loses it after the prompt on any
    device."""
    from transformers import __version__

    version = tuple(int(part) for part in __version__.split(".")[:2])
    family = type(model).__module__.split(".")[-2]
    options: dict = dict(attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
    if (family == "falcon_h1" and version < (5, 15)) or (family == "mamba2" and version < (4, 48)):
        WITHOUT_CACHE.add(family)
        options["use_cache"] = False
    return model.generate(ids, **options)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max|a - b| / max|a|; for tokens the number of different ones."""
    if not a.is_floating_point():
        return float((a != b).sum())
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-30))


def count_calls(counts: dict) -> None:
    """Makes the drop-in functions count their calls; before install()."""
    from krait._compat import causal_conv, selective_scan, ssd_combined, state_update

    def counted(module, name):
        function = getattr(module, name)

        @__import__("functools").wraps(function)
        def call(*args, **kwargs):
            counts[name] = counts.get(name, 0) + 1
            return function(*args, **kwargs)

        setattr(module, name, call)

    for module, names in ((causal_conv, ("causal_conv1d_fn", "causal_conv1d_update")),
                          (selective_scan, ("selective_scan_fn", "mamba_inner_fn")),
                          (ssd_combined, ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined")),
                          (state_update, ("selective_state_update", "limited_state_update"))):
        for name in names:
            counted(module, name)


def is_served(family: str) -> bool:
    """Whether this version of the family has kernels to replace."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    with open(module.__file__, encoding="utf-8") as file:
        text = file.read()
    return "cuda_kernels_forward" in text or "use_kernel_func_from_hub_with_fallback" in text


def one_chunk(family: str, version: tuple) -> bool:
    """Old versions lose the state between chunks without kernels; there the whole prompt is one chunk."""
    return (family in ("zamba2", "nemotron_h") and version < (5, 15)) or (family == "mamba2" and version < (4, 48))


def norm_ignores_groups(family: str, model_file) -> bool:
    """Mamba-2 of some versions from 5.15 on norms over all channels without kernels, but by groups with them."""
    text = pathlib.Path(model_file.__file__).read_text()
    return family == "mamba2" and "use_kernel_func_from_hub_with_fallback" in text and "group_size" not in text


def install(counts: dict) -> list:
    import krait.compat

    count_calls(counts)
    krait.compat.install()
    return krait.compat.patch_transformers()


def connect(on: bool) -> None:
    """Of versions that look for packages: gives the model files Krait's functions, or their own ones back."""
    from krait._compat import transformers_patch

    for module in [m for name, m in sys.modules.items() if name.startswith("transformers.models.")]:
        for cells in transformers_patch._wrapped_functions(module):
            cells["is_new_implementation"].cell_contents = on
            own = cells["torch_function"].cell_contents
            cells["implementation"].cell_contents = (
                transformers_patch._find(cells["package"].cell_contents, cells["func_name"].cell_contents) if on else own)


def compare(families: list) -> dict:
    """For each family: differences of all that measure() finds, without and with Krait, and the calls of its functions."""
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    counts: dict = {}
    patched: list = []
    first = "KRAIT_TEST_INSTALL_FIRST" in os.environ
    if first:
        patched = install(counts)
    families = [family for family in families if is_known(family) and is_served(family)]
    models = {family: make(family, one_chunk(family, version)) for family in families}
    found: dict = {True: {}, False: {}}
    errors: dict = {True: {}, False: {}}
    calls = {}
    for with_krait in (True, False) if first else (False, True):
        if with_krait and not first:
            patched = install(counts)
        if first and not with_krait:
            connect(False)
        for family, model in models.items():
            counts.clear()
            try:
                found[with_krait][family] = measure(model)
            except Exception:  # of one family, which the report names
                errors[with_krait][family] = traceback.format_exc(limit=-6)
            if with_krait:
                calls[family] = dict(counts)
    report = {}
    for family in families:
        if family in errors[False] or family in errors[True]:
            report[family] = {"error_without": errors[False].get(family), "error_with": errors[True].get(family)}
            continue
        mine, theirs = found[True][family], found[False][family]
        report[family] = {
            "differences": {name: difference(value, mine[name]) for name, value in theirs.items() if name in mine},
            "missing": sorted(set(mine) ^ set(theirs)), "calls": calls[family],
            "generates_without_cache": family in WITHOUT_CACHE}
    return {"version": transformers.__version__, "patched": patched, "families": report}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(compare(sys.argv[1:] or list(FAMILIES))))
