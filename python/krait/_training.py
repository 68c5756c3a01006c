"""krait.train, and krait.Run: a training run and its folder."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from . import _core, _metrics, _options
from . import data as _data
from ._options import TrainOptions
from ._program import run_program
from ._progress import Display, Progress, Rate, choose_display, count_text, span_text
from ._tokenizer import Tokenizer
from .notebook import HTML, page, sparkline

if TYPE_CHECKING:
    from . import Model

__all__ = ["Progress", "Run", "train"]

PathLike = str | os.PathLike[str]
OnStep = Callable[[Progress], object]
Data = Any  # a path, a krait.data.Source, or an array of ids


# ---- the folder ----

#: Files of a run other than checkpoints and the model.
RUN_FILES = (
    "train.json",
    "task.json",
    "metrics.csv",
    "samples.txt",
    "report.html",
    "loss.svg",
    "accuracy.svg",
    "speed.svg",
    "learning-rate.svg",
    "gradient-norm.svg",
    "best",
    "tokenizer.json",
    "scales.json",
    "generation_config.json",
    "data.tokens",
    "validation.tokens",
)
MODEL_FILES = ("config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the largest step; None without one."""
    steps = []
    for path in (folder / "checkpoints").glob("step-*"):
        number = path.name.removeprefix("step-")
        if number.isdecimal():
            steps.append((int(number), path))
    return max(steps)[1] if steps else None


def _occupied_by(folder: Path) -> str | None:
    """A file by which the folder holds a run or a model."""
    names = ("train.json", "task.json", "metrics.csv", "checkpoints", *MODEL_FILES)
    return next((name for name in names if (folder / name).exists()), None)


def clear_run(folder: Path) -> None:
    """Removes the files of a run from its folder, and nothing else."""
    checkpoints = folder / "checkpoints"
    if checkpoints.is_dir():
        for path in checkpoints.iterdir():
            if path.name.startswith((".krait-", "step-")):
                shutil.rmtree(path)
        checkpoints.rmdir()
    for name in (*RUN_FILES, *MODEL_FILES):
        (folder / name).unlink(missing_ok=True)
    for path in folder.glob("model-*-of-*.safetensors"):
        path.unlink()


def _prepare_folder(folder: Path, model_folder: Path | None, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"train: {folder} exists and is not a directory")
    name = _occupied_by(folder) if folder.is_dir() else None
    if name is not None:
        if model_folder is not None and model_folder.resolve() == folder.resolve():
            raise ValueError(f"train: out and the model's folder are one folder, {folder}; choose another one for out")
        if not force:
            raise FileExistsError(
                f"train: {folder} holds a run or a model already ({name}); "
                f"resume it with krait.Run({str(folder)!r}).resume(), or replace it with force=True"
            )
        clear_run(folder)
    folder.mkdir(parents=True, exist_ok=True)


# ---- what a run is made of ----


class _Setup:
    """Model, data and options of a run, opened in one context."""

    def __init__(
        self,
        source: _data.Source,
        validation: _data.Source | None,
        options: dict[str, Any],
        folder: Path | None,
    ) -> None:
        self.source, self.validation, self.options, self.folder = source, validation, options, folder
        self.model_options: dict[str, Any] = {}
        self.model: Model
        self.tokenizer: Any = None
        self.tokenizer_path: Path | None = None  # if one was named
        self.tokenizer_file: bytes | None = None  # its contents, for the folder; None: bytes, or none
        self.remark = ""
        self.steps = 0
        self.info: dict[str, Any] = {}
        self.loss = "cross-entropy"
        self.is_resumed = False
        self.fraction = 0.0

    # ---- data ----

    def open_sources(self, context: Any, vocab: int | None) -> None:
        """Opens the data; for raw ids with the vocabulary of the model."""
        for source in filter(None, (self.source, self.validation)):
            if source.kind == "raw" and "vocab" not in source.options:
                if vocab is None:
                    raise ValueError("train: vocab is missing: all ids of the data must be below it")
                source.options["vocab"] = vocab
        folder = self.folder
        self.opened = self.source.open(context, self.tokenizer, folder and folder / "data.tokens")
        self.info = dict(self.opened.info())
        self.opened_validation = None
        if self.validation is not None:
            self.opened_validation = self.validation.open(context, self.tokenizer, folder and folder / "validation.tokens")
            other = dict(self.opened_validation.info())
            same = ("n_features", "n_targets")
            if any(other[n] != self.info[n] for n in same) or any(other[n] > self.info[n] for n in ("n_ids", "n_classes")):
                raise ValueError("train: the validation data have other columns, classes or tokens than the training data")
        predicts_class = bool(self.info["n_ids"] or self.info["n_classes"])
        self.loss = self.options["loss"] or ("cross-entropy" if predicts_class else "mse")
        if (self.loss == "cross-entropy") != predicts_class:
            what = "tokens or classes" if predicts_class else "numbers"
            raise ValueError(f"train: loss={self.loss!r} is not for data that predict {what}")

    @property
    def outputs(self) -> int:
        """Outputs of a network over features."""
        if self.info["n_classes"]:
            return int(self.info["n_classes"])
        return int(self.info["n_targets"] or self.info["n_features"])

    def _loader_options(self) -> dict[str, Any]:
        o = self.options
        is_idx = self.source.kind == "idx"
        length = 0 if is_idx else 256 if o["length"] is None else o["length"]
        return {
            "batch": o["batch"],
            "pack": o["pack"] and not is_idx,
            "length": length,
            "seed": o["seed"],
            "split_seed": o["seed"],
            "resets": o["resets"],
            "carry": o["carry"],
            "score_last": o["score_last"] or is_idx,
            "epochs": o["epochs"] or 0,
        }

    def _validation_loader(self, opened: Any, fraction: float) -> Any:
        part = "validation" if fraction > 0 else "train"
        more = {"part": part, "validation_fraction": fraction, "shuffle": False, "epochs": 1}
        return _core.Loader(opened, {**self._loader_options(), **more})

    def open_loaders(self, is_fraction_given: bool) -> None:
        """Splits the data; a small text has no validation unless it was asked for."""
        o = self._loader_options()
        self.validation_loader = None
        self.fraction = 0.0 if self.validation else self.options["validation_fraction"]
        if self.opened_validation is not None:
            self.validation_loader = self._validation_loader(self.opened_validation, 0.0)
        elif self.fraction > 0:
            least = o["length"] * (o["batch"] if o["carry"] else 1)
            is_small = o["pack"] and self.info["count"] * self.fraction < least
            try:
                if is_fraction_given or not is_small:
                    self.validation_loader = self._validation_loader(self.opened, self.fraction)
            except (_core.ArgumentError, _core.ShapeError):
                if is_fraction_given:
                    raise
            if self.validation_loader is None:
                count = count_text(self.info["count"])
                self.remark = f"no validation: {self.fraction:g} of {count} is too small; see validation"
                self.fraction = 0.0
        self.loader = _core.Loader(self.opened, {**o, "validation_fraction": self.fraction})
        self.steps = self.options["steps"] or 2000
        if self.options["epochs"]:
            batches = self.loader.position()[4] * self.options["epochs"]
            self.steps = -(-batches // self.options["accumulate"])

    # ---- files ----

    def fit_columns(self) -> list[Path]:
        """Scales of a table: computed from the training rows, or those of the run that is resumed."""
        o = self.source.options
        if self.source.kind != "csv" or (o.get("scale", "none") == "none" and o.get("missing") not in ("forward", "mean")):
            return []
        if self.folder is not None and self.is_resumed:
            self.opened.load_scales(self.folder / "scales.json")
        else:
            self.opened.fit({**self._loader_options(), "validation_fraction": self.fraction})
        if self.folder is None:
            return []
        path = self.folder / "scales.json"
        if not self.is_resumed:
            self.opened.save_scales(path)
        if self.opened_validation is not None:
            self.opened_validation.load_scales(path)
        return [path]

    def files(self) -> list[bytes]:
        """Files that go into the folder and into each checkpoint."""
        paths = self.fit_columns()
        if self.folder is not None and self.tokenizer_file is not None:
            paths.append(self.folder / "tokenizer.json")
            paths[-1].write_bytes(self.tokenizer_file)
        return [os.fsencode(path) for path in paths]

    def open_trainer(self) -> Any:
        """The trainer of the library, at the newest checkpoint of the folder."""
        options = {**_options.native(self.options), "loss": self.loss, "steps": self.steps}
        files = self.files()
        if self.folder is not None:
            options["folder"] = os.fsencode(self.folder)
        without = list(self.options["muon_without"])
        trainer = _core.Trainer(self.model._core, self.loader, self.validation_loader, options, files, without)
        if self.folder is not None:
            trainer.resume()
        return trainer


class _Watcher:
    """Sees each step: writes metrics, shows progress, and asks the caller's on_step."""

    def __init__(self, setup: _Setup, display: Display, on_step: OnStep | None, start: int) -> None:
        path = setup.folder and setup.folder / "metrics.csv"
        self.metrics = _metrics.Writer(path, start if start > 0 else None)
        self.display, self.on_step = display, on_step
        self.rate = Rate()
        self.more: dict[str, Any] = {
            "steps": setup.steps,
            "unit": "tok" if setup.info["n_ids"] else "pos",
            "shows_accuracy": bool(setup.info["n_classes"] and not setup.info["n_ids"]),
        }
        self.context = setup.model.context
        self.last: Progress | None = None

    def complete(self, values: tuple[Any, ...]) -> Progress:
        """The progress of the library as the one of Python."""
        return Progress(*values, **self.more)

    def put(self, values: tuple[Any, ...]) -> Progress:
        """Writes the line of a step, and completes its progress."""
        p = self.complete(values)
        memory = int(self.context.memory()["host"]["peak_bytes"])
        self.rate.put(p.step, p.positions, p.is_evaluated or p.is_saved)
        seconds, _ = self.metrics.put(p, memory)
        self.last = p._replace(seconds=seconds, positions_per_second=self.rate.positions, memory_bytes=memory)
        return self.last

    def __call__(self, values: tuple[Any, ...]) -> bool:
        p = self.put(values)
        self.display.show(p, self.rate.eta(p.steps - p.step))
        return self.on_step is None or self.on_step(p) is not False


def _run(setup: _Setup, display: Display, on_step: OnStep | None) -> Run:
    trainer = setup.open_trainer()
    setup.model._source.clear()  # its weights are no longer those of a folder
    start = trainer.progress()[0]
    watcher = _Watcher(setup, display, on_step, start)
    try:
        _say_beginning(setup, display, start)
        if start > max(0, watcher.metrics.last_step):  # a run that was killed may not have written the line of its last step
            watcher.put(trainer.progress())
        if trainer.progress()[-1]:
            display.say("all steps are done; continue with steps=N")
        else:
            trainer.run(watcher)
    except KeyboardInterrupt as interrupt:
        display.close()
        p = watcher.complete(trainer.progress())
        if setup.folder is None:
            raise KeyboardInterrupt(f"stopped at step {p.step}; without a folder (out=) nothing is saved") from interrupt
        if not p.is_saved:
            raise
        raise KeyboardInterrupt(f"saved {setup.folder} (step {p.step}); {_remedy(setup)}") from interrupt
    except _core.Error as error:
        newest = newest_checkpoint(setup.folder) if setup.folder is not None else None
        if newest is not None:
            error.add_note(f"step {int(newest.name.removeprefix('step-'))} is saved: {_remedy(setup)}")
        raise
    finally:
        display.close()
        watcher.metrics.close()
    progress = watcher.last or watcher.complete(trainer.progress())
    return Run(setup.folder, _made=(setup, progress, watcher.metrics.rows))


def _remedy(setup: _Setup) -> str:
    """How to continue; data in memory must be given again."""
    return f"continue with krait.Run({str(setup.folder)!r}).resume({'' if setup.source.path else 'data'})"


def _say_beginning(setup: _Setup, display: Display, start: int) -> None:
    display.say(str(setup.model))
    o, loader = setup.options, setup._loader_options()
    count = count_text(setup.info["count"])
    what = "tokens" if setup.info["n_ids"] else "positions"
    text = f"{setup.source.path or setup.source.kind} · {count} {what}"
    if setup.validation is not None:
        text += f", validated on {setup.validation.path or setup.validation.kind}"
    elif setup.validation_loader is not None:
        text += f", {100 * setup.fraction:g} % of them for validation"
    rows = o["batch"] * o["accumulate"]
    display.say(f"{text} · {setup.steps} steps of {rows} × {loader['length'] or 'a document'}")
    if setup.remark:
        display.say(setup.remark)
    if start > 0:
        display.say(f"resuming at step {start}")


# ---- a run ----


class Run:
    """A training run: its folder, metrics, model and report. krait.train returns one; Run(folder) opens that of an earlier
    run, of Python or of the program `krait train`.

    >>> import krait
    >>> run = krait.train(krait.data.string("to be, or not to be" * 20), d_model=16, layers=1, steps=3, batch=2, length=16,
    ...                   family="mamba2", head_dim=16, d_state=16, progress=False)
    >>> run
    <krait.Run step 3 of 3, in memory>
    >>> run.metrics["step"].tolist()
    [1, 2, 3]
    """

    def __init__(self, folder: PathLike | None, *, _made: tuple[_Setup, Progress, list[list[float]]] | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._setup: _Setup | None = None
        self.progress: Progress | None = None  # the last one, if the run was made by this process
        self._rows: list[list[float]] = []
        if _made is not None:
            self._setup, self.progress, self._rows = _made
        if _made is None and (self.folder is None or _occupied_by(self.folder) is None):
            raise FileNotFoundError(f"{folder} is no folder of a run: it has no train.json, metrics.csv or checkpoints")

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else str(self.folder)
        if self.progress is not None:
            return f"<krait.Run step {self.progress.step} of {self.progress.steps}, {where}>"
        return f"<krait.Run {where}>"

    def _repr_html_(self) -> str:
        steps = self.metrics.get("loss", np.array([]))
        values = [float(v) for v in steps[:: max(1, len(steps) // 240)] if math.isfinite(v)]
        rows = "".join(f"<tr><td>{name}</td><td>{text}</td></tr>" for name, text in self._figures())
        return f"<div>{sparkline(values)}<table>{rows}</table></div>"

    def _figures(self) -> list[tuple[str, str]]:
        m = self.metrics
        figures = [("run", "in memory" if self.folder is None else str(self.folder))]
        if len(m.get("step", ())):
            figures.append(("step", str(int(m["step"][-1]))))
            figures.append(("loss", f"{m['loss'][-1]:.4g}"))
        evaluated = m.get("eval_loss", np.array([]))
        evaluated = evaluated[~np.isnan(evaluated)]
        if len(evaluated):
            figures.append(("best evaluation", f"{evaluated.min():.4g}"))
        if len(m.get("seconds", ())):
            figures.append(("time", span_text(float(m["seconds"][-1]))))
        return figures

    @property
    def metrics(self) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
        """The columns of metrics.csv as arrays: step, epoch, positions, loss, accuracy, lr, grad_norm, eval_loss,
        eval_accuracy, seconds, positions_per_second, memory_bytes; NaN where a step has no value."""
        if self.folder is None:
            return _metrics.table(self._rows)
        path = self.folder / "metrics.csv"
        return _metrics.read(path) if path.exists() else _metrics.table([])

    @property
    def model(self) -> Model:
        """The trained model: as it was saved last (with EMA weights, if there are any), or that in memory."""
        from . import load

        if self._setup is not None and (self.folder is None or not self._setup.options["ema"]):
            model: Model = self._setup.model
            return model
        if self.folder is None:
            raise _core.StateError("run: there is no model")
        return load(self.folder)

    @property
    def best(self) -> Model:
        """The model with the lowest loss on the validation data."""
        from . import load

        if self.folder is None or not (self.folder / "best").exists():
            raise FileNotFoundError(f"{self.folder or 'a run in memory'} has no best checkpoint: that needs a folder and "
                                    "validation data")  # fmt: skip
        return load(self.folder / "best")

    def resume(
        self,
        data: Data = None,
        *,
        validation: Data = None,
        on_step: OnStep | None = None,
        progress: bool | str | None = None,
        device: str | None = None,
        threads: int = 0,
        **options: Unpack[TrainOptions],
    ) -> Run:
        """Continues from the newest checkpoint, with the same bits as a run that was not interrupted.

        The options are those of the first part (train.json), unless they are given again: resume(steps=4000). Model and
        seed are fixed. data and validation are needed only if they were in memory and this is another process.
        """
        if self.folder is None:
            raise _core.StateError("run.resume: the run has no folder, so there is no checkpoint; give krait.train out=")
        stored, source, validation_source = self._stored()
        given, model_options = _options.split(dict(options))
        for name in (*model_options, *_options.FIXED):
            if name in given or name in model_options:
                raise ValueError(f"run.resume: {name} cannot be changed: it is fixed for the run")
        if "steps" in given:
            stored.pop("epochs", None)
        if "epochs" in given:
            stored.pop("steps", None)
        source = source if data is None else _source_of(data)
        validation_source = validation_source if validation is None else _source_of(validation)
        if source is None:
            raise ValueError("run.resume: data is missing: those of the run were in memory")
        merged = {**_options.defaults(), **stored, **given}
        _options.check(merged, source.kind)
        setup = _Setup(source, validation_source, merged, self.folder)
        setup.is_resumed = True
        _open_resumed(setup, device, threads)
        setup.open_loaders("validation_fraction" in stored or "validation_fraction" in given)
        _write_options(setup)
        return _run(setup, choose_display(progress, merged["log_seconds"]), on_step)

    def _stored(self) -> tuple[dict[str, Any], _data.Source | None, _data.Source | None]:
        assert self.folder is not None
        if newest_checkpoint(self.folder) is None:
            raise _core.StateError(f"run.resume: {self.folder} has no checkpoint to resume from")
        options, source, validation = _options.from_json(self.folder / "train.json")
        if self._setup is not None:
            source, validation = self._setup.source, self._setup.validation
        return options, source, validation

    def report(self, height: int = 720) -> HTML:
        """The report of `krait report`: charts, samples, settings. A notebook shows it; folder/report.html is the page.

        The program of the package writes it, so that both have the same page.
        """
        if self.folder is None:
            raise _core.StateError("run.report: the run has no folder; give krait.train out=")
        run_program("report", "--", os.fspath(self.folder))
        return page((self.folder / "report.html").read_text(encoding="utf-8"), height)

    def plot(self, *names: str, ax: Any = None) -> Any:
        """Draws curves with matplotlib: the loss and its evaluations, or the columns named. Returns the axes."""
        try:
            import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ImportError("run.plot() needs matplotlib (pip install matplotlib); run.report() needs nothing") from error
        metrics = self.metrics
        if ax is None:
            _, ax = plt.subplots()
        for name in names or ("loss", "eval_loss"):
            if name not in metrics:
                raise KeyError(f"there is no column {name!r}; there are: {', '.join(metrics)}")
            known = ~np.isnan(metrics[name].astype(np.float64))
            if known.any():
                style = "o-" if name.startswith("eval") else "-"
                ax.plot(metrics["step"][known], metrics[name][known], style, label=name)
        ax.set_xlabel("step")
        ax.legend()
        return ax


def _source_of(data: Data) -> _data.Source:
    if isinstance(data, _data.Source):
        return data
    if isinstance(data, (str, os.PathLike)):
        return _data.open(data)
    return _data.ids(data)


# ---- begin and resume ----


def _tokenizer_file(tokenizer: Tokenizer) -> bytes | None:
    """The tokenizer.json of a tokenizer; None for bytes."""
    kind, value = tokenizer._source
    if kind == "path":
        return Path(value).read_bytes()
    return value.encode() if kind == "json" else None


def _take_tokenizer(setup: _Setup, model: Any, tokenizer: Any) -> None:
    """The tokenizer that was named, or that of the model, or bytes."""
    if tokenizer is None:
        tokenizer = setup.source.tokenizer
    if isinstance(tokenizer, (str, os.PathLike)) and tokenizer != "bytes":
        setup.tokenizer_path = Path(tokenizer)
    if tokenizer is None and model is not None:
        tokenizer = model.tokenizer
    if tokenizer is None and not setup.source.is_text:
        return
    setup.tokenizer = _data.open_tokenizer(tokenizer)
    setup.tokenizer_file = _tokenizer_file(setup.tokenizer)


def _write_options(setup: _Setup) -> None:
    if setup.folder is None:
        return
    members = _options.to_json(setup.options, setup.model_options, setup.source, setup.validation, setup.tokenizer_path)
    path = setup.folder / "train.json"
    if setup.is_resumed:
        _options.update_json(path, members)
    else:
        _options.write_json(path, members)


def _folder_of(model: Model | None) -> Path | None:
    """The folder that a model was loaded from."""
    return Path(model._source[0]) if model is not None and model._source else None


def _check_model(setup: _Setup) -> None:
    """Does an existing model fit the data?"""
    model, info = setup.model, setup.info
    if info["n_ids"]:
        vocab = model.vocab_size
        if not vocab:
            raise ValueError("train: the model is a network over features, but the data are tokens")
        if vocab < info["n_ids"]:
            raise ValueError(f"train: the model has {vocab} tokens, but those of the data go up to {info['n_ids'] - 1}")
        return
    if (model._info["input_size"], model.width) != (info["n_features"], setup.outputs):
        raise ValueError(
            f"train: the model makes {model.width} outputs of {model._info['input_size']} features, but the data have "
            f"{setup.outputs} for {info['n_features']}"
        )


def _open_resumed(setup: _Setup, device: str | None, threads: int) -> None:
    from . import Context, load

    assert setup.folder is not None
    checkpoint = newest_checkpoint(setup.folder)
    assert checkpoint is not None
    context = Context(device=device, threads=threads, seed=setup.options["seed"])
    setup.model = load(checkpoint, context=context)
    _take_tokenizer(setup, setup.model, setup.model.tokenizer)
    setup.open_sources(context, setup.model.vocab_size or None)
    _check_model(setup)


def _open_new(setup: _Setup, tokenizer: Any, model: Any, device: str | None, threads: int) -> None:
    from . import Context, new

    if model is not None:
        _take_tokenizer(setup, model, tokenizer)
        setup.model = model
        setup.open_sources(model.context, model.vocab_size or None)
        _check_model(setup)
        return
    context = Context(device=device, threads=threads, seed=setup.options["seed"])
    _take_tokenizer(setup, None, tokenizer)
    config = {"family": "mamba3", "d_model": 256, "n_layers": 4, **setup.model_options}
    setup.open_sources(context, config.get("vocab_size"))
    if setup.info["n_ids"]:
        vocab = config.setdefault("vocab_size", setup.info["n_ids"])
        if vocab < setup.info["n_ids"]:
            raise ValueError(f"train: vocab is {vocab}, but the data have tokens up to {setup.info['n_ids'] - 1}")
    else:
        config.update(input_size=setup.info["n_features"], output_size=setup.outputs, has_final_norm=True)
    setup.model = new(context=context, seed=setup.options["seed"], tokenizer=setup.tokenizer, **config)


def train(
    data: Data,
    *,
    out: PathLike | None = None,
    model: Model | PathLike | None = None,
    tokenizer: Any = None,
    validation: Data = None,
    on_step: OnStep | None = None,
    progress: bool | str | None = None,
    force: bool = False,
    device: str | None = None,
    threads: int = 0,
    **options: Any,
) -> Run:
    """Trains a model and returns the run.

    data: a path (text, .jsonl, .tokens, .bin, .csv, .idx; see krait.data), a krait.data.Source, or an array of ids.
    out: the folder of the run, as `krait train` writes it; None: nothing is saved. model: a Model or its folder to begin
    from; None: a new one of family="mamba3", d_model=256, layers=4 and further options of krait.new. validation: data as
    above; None: a part of the training data, validation_fraction=0.05.

    on_step(progress) is called after each step with a krait.Progress; False ends the run after a checkpoint. progress:
    None shows a line, a log every log_seconds=10, or a notebook's cell, whatever suits; False: nothing. Ctrl-C saves a
    checkpoint and raises KeyboardInterrupt, which says where. force: replace the run in `out`.

    Options are those of `krait train`, with the same defaults: steps=2000 or epochs, batch=8, length=256, accumulate=1,
    pack, resets, carry, score_last; loss, label_smoothing, huber_delta, quantile, dropout; lr=1e-3, lr_schedule="cosine"
    ("constant", "linear", "wsd"), min_lr, warmup, decay_steps, decay_shape; optimizer="adamw" ("sgd", "muon"),
    weight_decay=0.1, beta1, beta2, eps, momentum, nesterov, clip_norm=1, ema=0, ...; eval_every, eval_batches, save_every,
    keep_last, keep_best; seed=1.

    >>> import krait
    >>> text = krait.data.string("to be, or not to be: that is the question. " * 20)
    >>> run = krait.train(text, family="mamba2", d_model=16, head_dim=16, d_state=16, layers=1, steps=4, batch=2, length=32,
    ...                   progress=False)
    >>> bool(run.metrics["loss"][0] > 0)
    True
    """
    given, model_options = _options.split(options)
    if model is not None and model_options:
        raise ValueError(f"train: {next(iter(model_options))} has no effect with model, which defines the architecture")
    source, folder = _source_of(data), None if out is None else Path(out)
    setup = _Setup(source, None if validation is None else _source_of(validation), {**_options.defaults(), **given}, folder)
    _options.check(setup.options, source.kind)
    setup.model_options = model_options
    if isinstance(model, (str, os.PathLike)):
        from . import Context, load

        model = load(model, context=Context(device=device, threads=threads, seed=setup.options["seed"]))
    if folder is not None:
        _prepare_folder(folder, _folder_of(model), force)
    _open_new(setup, tokenizer, model, device, threads)
    setup.open_loaders("validation_fraction" in given)
    _write_options(setup)
    return _run(setup, choose_display(progress, setup.options["log_seconds"]), on_step)
