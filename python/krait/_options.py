"""Options of training runs: their names in Python and in train.json, which the program reads and writes, too."""

from __future__ import annotations

import difflib
import json
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from . import _core
from . import data as _data
from ._errors import KraitWarning


class TrainOptions(TypedDict, total=False):
    """Options of krait.train and Run.resume, named as those of `krait train`; krait.train describes them."""

    # steps and data
    steps: int | None
    epochs: int | None
    batch: int
    length: int | None
    accumulate: int
    pack: bool
    resets: bool
    carry: bool
    score_last: bool
    validation_fraction: float
    # loss
    loss: str | None
    label_smoothing: float
    huber_delta: float
    quantile: float
    dropout: float
    # learning rate
    lr: float
    lr_schedule: str
    min_lr: float | None
    warmup: int | None
    decay_steps: int | None
    decay_shape: str
    # optimizer
    optimizer: str
    weight_decay: float
    decay_all: bool
    cautious: bool
    beta1: float
    beta2: float
    eps: float
    momentum: float | None
    dampening: float
    nesterov: bool | None
    muon_ratio: str
    muon_steps: int
    muon_decay: float | None
    muon_without: list[str]
    clip_norm: float
    clip_value: float
    ema: float
    # evaluations and checkpoints
    eval_every: int | None
    eval_batches: int
    save_every: int | None
    keep_last: int
    keep_best: bool
    # machine
    seed: int
    log_seconds: float


class Rule(NamedTuple):
    """How an option stands in train.json: under another name, negated, or as itself."""

    default: Any
    json_name: str
    is_negated: bool = False


def _same(**defaults: Any) -> dict[str, Rule]:
    return {name: Rule(value, name.replace("_", "-")) for name, value in defaults.items()}


RULES: dict[str, Rule] = {
    **_same(steps=None, epochs=None, batch=8, length=None, accumulate=1),
    "pack": Rule(True, "no-pack", True),
    "resets": Rule(True, "no-resets", True),
    **_same(carry=False, score_last=False, validation_fraction=0.05),
    **_same(loss=None, label_smoothing=0.0, huber_delta=1.0, quantile=0.5, dropout=0.0),
    **_same(lr=1e-3, lr_schedule="cosine", min_lr=None, warmup=None, decay_steps=None, decay_shape="linear"),
    **_same(optimizer="adamw", weight_decay=0.1, decay_all=False, cautious=False, beta1=0.9, beta2=0.95, eps=1e-8),
    **_same(momentum=None, dampening=0.0, nesterov=None, muon_ratio="match-rms", muon_steps=5, muon_decay=None),
    **_same(muon_without=[], clip_norm=1.0, clip_value=0.0, ema=0.0),
    **_same(eval_every=None, eval_batches=20, save_every=None, keep_last=2),
    "keep_best": Rule(True, "no-keep-best", True),
    **_same(seed=1, log_seconds=10.0),
}

#: Options of the architecture as the program names them, and the fields of krait.new that they set.
MODEL_NAMES = {
    "family": "family",
    "d_model": "d_model",
    "vocab": "vocab_size",
    "layers": "n_layers",
    "d_state": "state_rank",
    "head_dim": "per_head_dim",
    "expand": "expand",
    "groups": "n_groups",
    "d_conv": "conv_kernel",
    "mimo_rank": "mimo_rank",
    "rotation": "rotation",
    "rope_fraction": "rope_fraction",
    "a_activation": "a_activation",
    "outproj_norm": "has_outproj_norm",
    "mlp": "d_intermediate",
    "untied": "tie_embeddings",
    "virtual_layers": "n_virtual",
    "schedule": "schedule",
    "residual": "residual",
    "streams": "n_stream",
    "gate_bias": "gate_bias",
    "gate_bias_step": "gate_bias_step",
    "gates_per_virtual_layer": "has_gates_per_virtual_layer",
    "dtype": "dtype",
}

#: What a resumed run keeps from its first part.
FIXED = ("seed",)


def defaults() -> dict[str, Any]:
    """All options with their defaults."""
    return {name: rule.default for name, rule in RULES.items()}


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the run, and fields of the architecture for krait.new. TypeError with the nearest name for any other."""
    fields = _model_fields()
    known = {*RULES, *MODEL_NAMES, *fields}
    model: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise TypeError(f"train() has no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if name in RULES or value is None:
            continue
        if name == "untied":
            value = not value
        if name == "mimo_rank":
            model["is_mimo"] = True
        if name in ("residual", "a_activation"):
            value = value.replace("-", "_")
        field = MODEL_NAMES.get(name, name)
        if field in model:
            raise TypeError(f"train() got two values for {field}")
        model[field] = value
    return {name: value for name, value in given.items() if name in RULES}, model


def _model_fields() -> set[str]:
    """The names of all fields of a config."""
    parts = ("mamba1", "mamba2", "mamba3", "layers", "network")
    return {"family"}.union(*(_core.config_defaults(part) for part in parts))


def check(options: dict[str, Any], kind: str) -> None:
    """ValueError for options that exclude each other or have no effect."""

    def refuse(names: str, where: str) -> None:
        for name in names.split():
            if options[name] != RULES[name].default:
                raise ValueError(f"train: {name} has no effect {where}")

    is_sgd, is_muon = options["optimizer"] == "sgd", options["optimizer"] == "muon"
    if options["steps"] is not None and options["epochs"] is not None:
        raise ValueError("train: steps and epochs exclude each other")
    if is_sgd:
        refuse("beta1 beta2 eps cautious", "for optimizer='sgd'")
    if not is_sgd:
        refuse("dampening", f"for optimizer={options['optimizer']!r}")
    if not is_sgd and not is_muon:
        refuse("momentum nesterov", f"for optimizer={options['optimizer']!r}")
    if not is_muon:
        refuse("muon_ratio muon_steps muon_decay muon_without", f"for optimizer={options['optimizer']!r}")
    if options["lr_schedule"] == "constant":
        refuse("min_lr", "for lr_schedule='constant'")
    if options["lr_schedule"] != "wsd":
        refuse("decay_steps decay_shape", f"for lr_schedule={options['lr_schedule']!r}")
    if not options["pack"]:
        refuse("resets carry", "with pack=False")
    if kind == "idx":
        refuse("length pack carry resets", "for images")
    for name in ("validation_fraction", "dropout", "ema"):
        if not 0 <= options[name] < 1:
            raise ValueError(f"train: {name} is {options[name]}, but must be at least 0 and below 1")


def native(options: dict[str, Any]) -> dict[str, Any]:
    """The options of _core.Trainer, without those of the data and with None left out."""
    names = (
        "accumulate label_smoothing huber_delta quantile dropout lr lr_schedule min_lr warmup decay_steps decay_shape "
        "optimizer weight_decay decay_all cautious beta1 beta2 eps dampening muon_ratio muon_steps muon_decay clip_norm "
        "clip_value ema eval_every eval_batches save_every keep_last keep_best"
    )
    made = {name: options[name] for name in names.split() if options[name] is not None}
    prefix = "muon" if options["optimizer"] == "muon" else "sgd"
    for name in ("momentum", "nesterov"):
        if options[name] is not None:
            made[f"{prefix}_{name}"] = options[name]
    return made


# ---- train.json ----


def _source_members(source: _data.Source, tokenizer_path: Path | None) -> dict[str, Any]:
    """The data of a run in the words of the program; nothing for data in memory, which no file tells."""
    if source.path is None:
        return {}
    members: dict[str, Any] = {"data": os.fspath(source.path)}
    if source.kind != _data.kind_of(source.path):
        members["data-kind"] = source.kind
    if tokenizer_path is not None:
        members["tokenizer"] = os.fspath(tokenizer_path)
    if source.labels_path is not None:
        members["labels"] = os.fspath(source.labels_path)
    o = dict(source.options)
    budget = o.pop("memory_budget", o.pop("csv_budget", _data.BUDGET))
    if budget != _data.BUDGET:
        members["data-budget"] = f"{budget}B"
    if "patch_height" in o:
        members["patch"] = f"{o.pop('patch_height')}x{o.pop('patch_width')}"
    for name in ("document_end", "id_bytes"):
        if name in o:
            o[name] = str(o[name])
    if o.pop("header", True) is False:
        members["no-header"] = True
    for name, value in o.items():
        if value not in (False, 0):
            members[name.replace("_", "-")] = value
    return members


def _model_members(model: dict[str, Any]) -> dict[str, Any]:
    """The architecture in the words of the program; fields that it has no option for are in config.json only."""
    members: dict[str, Any] = {}
    for name, field in MODEL_NAMES.items():
        if field not in model:
            continue
        value = model[field]
        if name == "untied":
            value = not value
        if name in ("residual", "a_activation"):
            value = value.replace("_", "-")
        if name == "schedule" and not isinstance(value, str):
            value = ",".join(str(i) for i in value)
        if name == "rope_fraction":
            value = f"{value:g}"
        members[name.replace("_", "-")] = value
    return members


def to_json(
    options: dict[str, Any],
    model: dict[str, Any],
    source: _data.Source,
    validation: _data.Source | None,
    tokenizer_path: Path | None,
) -> dict[str, Any]:
    """The members of train.json: options that are not their defaults, data and architecture."""
    members = _source_members(source, tokenizer_path)
    if validation is not None and validation.path is not None:
        members["validation"] = os.fspath(validation.path)
    if validation is not None and validation.labels_path is not None:
        members["validation-labels"] = os.fspath(validation.labels_path)
    members.update(_model_members(model))
    for name, rule in RULES.items():
        value = options[name]
        if name == "nesterov" and value is not None:
            members["nesterov" if value and options["optimizer"] == "sgd" else "no-nesterov"] = True
        elif value is not None and (value != rule.default or name == "seed"):
            members[rule.json_name] = not value if rule.is_negated else value
    return members


def update_json(path: Path, members: dict[str, Any]) -> None:
    """Writes the train.json of a resumed run; options of the program that Python does not have stay."""
    ours = {rule.json_name for rule in RULES.values()} | {"nesterov", "no-nesterov"}
    old = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {**{name: value for name, value in old.items() if name not in ours}, **members})


def write_json(path: Path, members: dict[str, Any]) -> None:
    """Writes train.json so that a reader finds the old file or the new one."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(members, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def from_json(path: Path) -> tuple[dict[str, Any], _data.Source | None, _data.Source | None]:
    """Options, data and validation data of a run that Python or the program began."""
    members = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(members, dict):
        raise ValueError(f"{path}: expected a JSON object with a member for each option")
    for name, default in (("memory-budget", None), ("grad-horizon", -1)):
        if members.get(name, default) != default:
            raise ValueError(f"{path} sets {name}, which Python does not: resume with krait train --resume {path.parent}")
    if members.get("sample-every"):
        text = f"{path} sets sample-every, but only the program writes samples.txt: generate them in on_step"
        warnings.warn(text, KraitWarning, stacklevel=4)
    options: dict[str, Any] = {}
    for name, rule in RULES.items():
        value = members.get(rule.json_name)
        if value is not None:
            options[name] = not value if rule.is_negated else value
    if members.get("no-nesterov"):
        options["nesterov"] = False
    elif options.get("optimizer") != "sgd":
        options.pop("nesterov", None)
    data = _source_of(members, "data", "labels")
    return options, data, _source_of(members, "validation", "validation-labels")


def _source_of(members: dict[str, Any], name: str, labels_name: str) -> _data.Source | None:
    path = members.get(name)
    if path is None:
        return None
    kind = members.get("data-kind") or _data.kind_of(members["data"])
    tokenizer = members.get("tokenizer")
    end = members.get("document-end")
    if end is not None and str(end).isdecimal():
        end = int(end)
    special = bool(members.get("special"))
    if kind == "text":
        return _data.text(path, tokenizer, separator=members.get("separator"), document_end=end, special=special)
    if kind == "jsonl":
        return _data.jsonl(path, members.get("field", "text"), tokenizer, special=special, document_end=end)
    if kind == "tokens":
        return _data.tokens(path)
    if kind == "raw":
        separator = members.get("separator-id", -1)
        separator = None if separator < 0 else separator
        is_long = str(members.get("id-bytes")) == "4"
        return _data.raw(path, members.get("vocab"), id_bytes=4 if is_long else 2, separator_id=separator)
    if kind == "csv":
        names = ("features", "targets", "class_target", "sequence_column", "delimiter", "scale", "missing")
        given = {n: members[n.replace("_", "-")] for n in names if n.replace("_", "-") in members}
        return _data.csv(path, header=not members.get("no-header"), **given)
    height, width = (int(part) for part in members.get("patch", "1x1").split("x"))
    return _data.idx(
        path,
        members.get(labels_name),
        patch=(height, width),
        mean=members.get("mean", 0.0),
        deviation=members.get("deviation", 1.0),
    )
