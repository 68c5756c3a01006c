"""mamba_ssm.utils.hf: configurations and weights of a folder, or of a repository on the Hugging Face hub."""

from __future__ import annotations

import json
import os

import torch


def folder_of(model_name):
    """The folder itself, or a snapshot of the repository of that name, for which huggingface_hub must be installed."""
    if os.path.isdir(model_name):
        return os.fspath(model_name)
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{model_name!r} is no folder; names of repositories on a hub need the package huggingface_hub"
        ) from error
    return snapshot_download(model_name, allow_patterns=["config.json", "*.safetensors", "pytorch_model.bin"])


def load_config_hf(model_name):
    """config.json as a dictionary."""
    with open(os.path.join(folder_of(model_name), "config.json"), encoding="utf-8") as file:
        return json.load(file)


def load_state_dict_hf(model_name, device=None, dtype=None):
    """The weights by name, on the device and in the type."""
    from krait.torch.lm import read_weights

    weights = read_weights(folder_of(model_name))
    return {name: m.to(device=device, dtype=dtype if m.is_floating_point() else None) for name, m in weights.items()}


def save(model, config, folder):
    """config.json and pytorch_model.bin, the official layout."""
    os.makedirs(folder, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(folder, "pytorch_model.bin"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=4)
