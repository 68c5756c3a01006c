"""krait.train and krait.Run: the same bits as the program, resuming, interrupts, callbacks, folders, displays."""

import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import krait
from krait._program import find_program

TEXT = "to be, or not to be: that is the question. whether 'tis nobler in the mind to suffer the slings. " * 40
TEXT_IDS = np.frombuffer(TEXT[:100].encode(), dtype=np.uint8).astype(np.int32)
SMALL = {"d_model": 32, "layers": 1, "d_state": 16, "head_dim": 16, "batch": 2, "length": 32, "progress": False}


@pytest.fixture
def notes(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "notes.txt"
    path.write_text(TEXT)
    return path


def weights(folder: pathlib.Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def program(*arguments: object) -> str:
    return subprocess.run([find_program(), *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def same_metrics(a: pathlib.Path, b: pathlib.Path) -> None:
    """All columns but times and memory."""
    x, y = krait.Run(a).metrics, krait.Run(b).metrics
    for name in x:
        if name not in ("seconds", "positions_per_second", "memory_bytes"):
            np.testing.assert_array_equal(x[name], y[name], err_msg=name)


# ---- the same as the program ----


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mamba1", "mamba2", "mamba3"])
def test_same_bits_as_the_program(notes, tmp_path, family):
    shape = {k: v for k, v in SMALL.items() if k in ("d_model", "layers", "batch", "length", "d_state")}
    if family != "mamba1":
        shape["head_dim"] = 16
    run = krait.train(notes, out=tmp_path / "py", family=family, steps=12, seed=7, progress=False, dropout=0.1, **shape)
    options = [f"--{k.replace('_', '-')}={v}" for k, v in shape.items()]
    program("train", "--data", notes, "--out", tmp_path / "c", "--family", family, "--steps", 12, "--seed", 7, "-q",
            "--dropout", 0.1, *options)  # fmt: skip
    assert weights(tmp_path / "py") == weights(tmp_path / "c")
    same_metrics(tmp_path / "py", tmp_path / "c")
    assert run.progress.step == 12 and run.progress.is_done


@pytest.mark.slow
def test_program_resumes_a_run_of_python_and_back(notes, tmp_path):
    krait.train(notes, out=tmp_path / "a", steps=20, **SMALL)
    krait.train(notes, out=tmp_path / "b", steps=10, **SMALL)
    program("train", "--resume", tmp_path / "b", "--steps", 20, "-q")
    # The schedule of the first ten steps differs, since it depends on the number of steps; so only the data agree ...
    assert list(krait.Run(tmp_path / "b").metrics["positions"]) == list(krait.Run(tmp_path / "a").metrics["positions"])
    # ... and with a constant rate the weights do, in either order.
    constant = {**SMALL, "lr_schedule": "constant", "warmup": 0}
    krait.train(notes, out=tmp_path / "whole", steps=20, **constant)
    krait.train(notes, out=tmp_path / "first", steps=10, **constant)
    program("train", "--resume", tmp_path / "first", "--steps", 20, "-q")
    assert weights(tmp_path / "first") == weights(tmp_path / "whole")
    shape = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items() if k != "progress"]
    program("train", "--data", notes, "--out", tmp_path / "c", "--steps", 10, "-q", "--lr-schedule", "constant",
            "--warmup", 0, *shape)  # fmt: skip
    krait.Run(tmp_path / "c").resume(steps=20, progress=False)
    assert weights(tmp_path / "c") == weights(tmp_path / "whole")


@pytest.mark.slow
def test_resuming_keeps_options_of_the_program(notes, tmp_path):
    shape = ["--d-model", 32, "--layers", 1, "-b", 2, "-s", 32]
    program("train", "--data", notes, "--out", tmp_path / "c", "--steps", 2, "-q", "--sample-every", 2, "--special", *shape)
    with pytest.warns(krait.KraitWarning, match="only the program writes samples"):
        krait.Run(tmp_path / "c").resume(steps=4, lr=1e-4, progress=False)
    members = json.loads((tmp_path / "c" / "train.json").read_text())
    assert (members["sample-every"], members["steps"], members["lr"], members["special"]) == (2, 4, 1e-4, True)
    program("train", "--resume", tmp_path / "c", "--steps", 6, "-q")
    assert "step 6" in (tmp_path / "c" / "samples.txt").read_text()


@pytest.mark.slow
def test_train_json_is_that_of_the_program(notes, tmp_path):
    krait.train(notes, out=tmp_path / "run", steps=2, optimizer="muon", momentum=0.9, nesterov=False, clip_norm=0.5,
                muon_without=["dt"], eval_every=2, **SMALL)  # fmt: skip
    members = json.loads((tmp_path / "run" / "train.json").read_text())
    assert members["optimizer"] == "muon" and members["no-nesterov"] is True and members["muon-without"] == ["dt"]
    assert members["d-state"] == 16 and members["data"] == str(notes)
    program("train", "--config", tmp_path / "run" / "train.json", "--out", tmp_path / "again", "-q")
    assert weights(tmp_path / "again") == weights(tmp_path / "run")


# ---- resuming ----


def test_resume_gives_the_bits_of_a_whole_run(notes, tmp_path):
    krait.train(notes, out=tmp_path / "whole", steps=16, eval_every=4, eval_batches=2, **SMALL)
    stops = {"at": 0}

    def stop(progress):
        stops["at"] = progress.step
        return progress.step < 7

    run = krait.train(notes, out=tmp_path / "parts", steps=16, eval_every=4, eval_batches=2, on_step=stop, **SMALL)
    assert run.progress.step == 7 and stops["at"] == 7 and not run.progress.is_done
    assert (tmp_path / "parts" / "checkpoints" / "step-00000007").is_dir()
    again = krait.Run(tmp_path / "parts").resume(progress=False)
    assert again.progress.is_done
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    same_metrics(tmp_path / "parts", tmp_path / "whole")


def test_resume_writes_the_line_of_a_step_that_was_lost(notes, tmp_path):
    krait.train(notes, out=tmp_path / "whole", steps=8, **SMALL)
    run = krait.train(notes, out=tmp_path / "run", steps=8, on_step=lambda p: p.step < 5, **SMALL)
    path = tmp_path / "run" / "metrics.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + "5,0,3")  # killed while it wrote the line of step 5
    run.resume(progress=False)
    same_metrics(tmp_path / "run", tmp_path / "whole")


def test_resume_refuses_what_is_fixed(notes, tmp_path):
    run = krait.train(notes, out=tmp_path / "run", steps=2, **SMALL)
    for options in ({"seed": 3}, {"d_model": 64}, {"family": "mamba1"}):
        with pytest.raises(ValueError, match="cannot be changed"):
            run.resume(progress=False, **options)
    with pytest.raises(krait.StateError, match="out="):
        krait.train(krait.data.string(TEXT), steps=1, **SMALL).resume()
    with pytest.raises(FileNotFoundError, match="no folder of a run"):
        krait.Run(tmp_path)


def test_data_in_memory_resume_in_this_process_and_with_data(tmp_path):
    source = krait.data.string(TEXT)
    run = krait.train(source, out=tmp_path / "run", steps=3, **SMALL)
    assert run.resume(steps=5, progress=False).progress.step == 5
    with pytest.raises(ValueError, match="data is missing"):
        krait.Run(tmp_path / "run").resume(steps=6, progress=False)
    assert krait.Run(tmp_path / "run").resume(source, steps=6, progress=False).progress.step == 6


def test_other_data_are_refused(notes, tmp_path):
    run = krait.train(notes, out=tmp_path / "run", steps=2, **SMALL)
    notes.write_text(TEXT + "more")
    with pytest.raises(krait.Error):
        krait.Run(run.folder).resume(steps=4, progress=False)


# ---- interrupts and callbacks ----

INTERRUPTED = """
import os, signal, sys, krait
def on_step(p):
    if p.step == 5: os.kill(os.getpid(), signal.SIGINT)
try:
    krait.train(sys.argv[1], out=sys.argv[2], steps=1000, d_model=32, layers=1, d_state=16, head_dim=16, batch=2, length=32,
                on_step=on_step)
except KeyboardInterrupt as interrupt:
    print("TOLD", interrupt)
"""


@pytest.mark.slow
def test_interrupt_saves_and_says_where(notes, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, notes, tmp_path / "run"], capture_output=True, text=True, check=True
    )
    step = krait.Run(tmp_path / "run").metrics["step"][-1]
    assert step in (5, 6)  # the signal is heard at the end of this step or of the next one
    assert f"TOLD saved {tmp_path / 'run'} (step {step}); continue with krait.Run(" in done.stdout
    assert (tmp_path / "run" / "checkpoints" / f"step-{step:08}").is_dir()
    assert krait.Run(tmp_path / "run").resume(steps=8, progress=False).progress.step == 8


def test_interrupt_without_a_folder(notes):
    def on_step(progress):
        if progress.step == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="nothing is saved"):
        krait.train(notes, steps=100, on_step=on_step, **SMALL)


def test_exception_in_on_step_passes_through(notes, tmp_path):
    class Mine(Exception):
        pass

    def on_step(progress):
        if progress.step == 3:
            raise Mine("three")

    with pytest.raises(Mine, match="three"):
        krait.train(notes, out=tmp_path / "run", steps=100, on_step=on_step, **SMALL)
    assert (tmp_path / "run" / "checkpoints" / "step-00000003").is_dir()


def test_on_step_may_use_the_model(notes):
    model = krait.new("mamba2", d_model=32, n_layers=1, vocab_size=256, per_head_dim=16, state_rank=16)
    seen = []

    def on_step(progress):
        seen.append(float(np.asarray(model.logits([[1, 2, 3]])).sum()))

    krait.train(notes, model=model, steps=3, batch=2, length=32, progress=False, on_step=on_step)
    assert len(seen) == 3 and seen[0] != seen[2]


@pytest.mark.slow
def test_the_gil_is_released(notes):
    counts = {"n": 0, "stop": False}

    def count():
        while not counts["stop"]:
            counts["n"] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        krait.train(notes, steps=3, d_model=64, layers=2, batch=4, length=256, progress=False)
    finally:
        counts["stop"] = True
        thread.join()
    # One step takes many milliseconds; a thread that only ran between steps would count a few thousand times less.
    assert counts["n"] > 1000


# ---- memory ----


def objects() -> dict[str, int]:
    """Objects of the extension that are alive."""
    gc.collect()
    names = [type(x).__name__ for x in gc.get_objects() if str(type(x).__module__).startswith("krait")]
    return {name: names.count(name) for name in ("Context", "Model", "Source", "Loader", "Trainer", "Scorer", "Run", "_Setup")}


def test_nothing_is_left(notes, tmp_path):
    def everything():
        run = krait.train(notes, out=tmp_path / "run", steps=2, force=True, **SMALL)
        run.resume(steps=3, progress=False).model.eval(TEXT_IDS)
        next(krait.data.ids(TEXT_IDS).batches(batch=1, length=4))
        with pytest.raises(ZeroDivisionError):
            krait.train(notes, model=run.model, steps=2, batch=2, length=32, progress=False, on_step=lambda p: 1 / 0)

    everything()
    before = objects()
    for _ in range(3):
        everything()
    assert objects() == before


@pytest.mark.skipif("KR_PYTHON_TESTING" not in os.environ, reason="KR_PYTHON_TESTING is not set")
def test_every_allocation_may_fail(tmp_path):
    model = krait.new("mamba2", d_model=32, n_layers=1, vocab_size=256, per_head_dim=16, state_rank=16, threads=1)
    source = krait.data.string(TEXT[:400])
    failed = 0
    for n in range(1, 2000):
        model.context._fail_allocation(n)
        try:
            krait.train(source, model=model, steps=2, batch=1, length=16, progress=False)
            model.eval(source)
        except krait.OutOfMemoryError:
            failed += 1
        else:
            break
        finally:
            model.context._fail_allocation(0)
    else:
        pytest.fail("no n was large enough")
    assert failed > 40  # source, loader, trainer, tapes and their blocks
    assert np.isfinite(krait.train(source, model=model, steps=2, batch=1, length=16, progress=False).progress.loss)


# ---- options ----


def test_unknown_and_useless_options(notes):
    with pytest.raises(TypeError, match="did you mean 'weight_decay'"):
        krait.train(notes, weight_deacy=0.1)
    with pytest.raises(ValueError, match="momentum has no effect for optimizer='adamw'"):
        krait.train(notes, momentum=0.5)
    with pytest.raises(ValueError, match="exclude each other"):
        krait.train(notes, steps=3, epochs=2)
    with pytest.raises(ValueError, match="lr_schedule is 'cosinus', but must be one of"):
        krait.train(notes, lr_schedule="cosinus", **SMALL)
    with pytest.raises(ValueError, match="has no effect with model"):
        krait.train(notes, model=krait.new("mamba2", d_model=32, n_layers=1, vocab_size=256), d_model=32)
    with pytest.raises(ValueError, match="progress is 'loud'"):
        krait.train(notes, steps=1, **{**SMALL, "progress": "loud"})


def test_folders(notes, tmp_path):
    run = krait.train(notes, out=tmp_path / "run", steps=2, **SMALL)
    with pytest.raises(FileExistsError, match=r"resume it with krait.Run\("):
        krait.train(notes, out=tmp_path / "run", steps=2, **SMALL)
    (tmp_path / "run" / "mine.txt").write_text("kept")
    krait.train(notes, out=tmp_path / "run", steps=1, force=True, **SMALL)
    assert krait.Run(run.folder).metrics["step"].tolist() == [1] and (tmp_path / "run" / "mine.txt").exists()
    with pytest.raises(NotADirectoryError):
        krait.train(notes, out=notes, steps=1, **SMALL)


def test_epochs_and_validation(notes, tmp_path):
    run = krait.train(notes, validation=krait.data.string(TEXT[:300]), epochs=1, **SMALL)
    positions = len(TEXT) - 1  # the last token is only a label
    assert run.progress.steps == -(-positions // (2 * 32)) and run.progress.is_done
    assert run.metrics["positions"][-1] == positions
    assert np.isfinite(run.metrics["eval_loss"]).any()
    small = krait.train(krait.data.string(TEXT[:200]), steps=2, **SMALL)
    assert np.isnan(small.metrics["eval_loss"]).all()


def test_ema_models_come_from_the_folder(notes, tmp_path):
    run = krait.train(notes, out=tmp_path / "run", steps=6, ema=0.9, **SMALL)
    other = krait.train(notes, out=tmp_path / "plain", steps=6, **SMALL)
    name = next(iter(run.model.params))
    assert not np.array_equal(np.asarray(run.model.params[name]), np.asarray(other.model.params[name]))


def test_failing_step_keeps_the_last_checkpoint(notes, tmp_path):
    with pytest.raises(krait.NumericError, match="step") as caught:
        krait.train(notes, out=tmp_path / "run", steps=60, lr=1e30, clip_norm=0.0, save_every=1, **SMALL)
    newest = max(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    step = int(newest.removeprefix("step-"))
    assert caught.value.__notes__ == [f"step {step} is saved: continue with krait.Run({str(tmp_path / 'run')!r}).resume()"]


# ---- tables, images, arrays ----


@pytest.mark.slow
def test_table(tmp_path):
    path = tmp_path / "table.csv"
    rows = "\n".join(f"{np.sin(i / 5):.6f},{np.cos(i / 5):.6f}" for i in range(600))
    path.write_text("a,b\n" + rows + "\n")
    source = krait.data.csv(path, features="a", targets="b", scale="standard")
    run = krait.train(source, out=tmp_path / "run", steps=8, family="mamba2", lr=3e-3, **SMALL)
    assert run.metrics["loss"][-1] < run.metrics["loss"][0]
    assert (tmp_path / "run" / "scales.json").exists()
    assert run.resume(steps=10, progress=False).progress.step == 10
    program("train", "--resume", tmp_path / "run", "--steps", 12, "-q")


def test_arrays_of_classes():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 800)
    x = np.stack([labels * 2.0 - 1, rng.normal(size=800)], axis=1)
    source = krait.data.arrays(x, labels=labels, starts=range(0, 800, 40))
    run = krait.train(source, family="mamba2", steps=30, lr=1e-2, **{**SMALL, "length": 40})
    assert run.metrics["accuracy"][-1] > 0.9  # a class is the sign of one feature
    assert run.model.width == 2


def test_model_must_fit_the_data(notes):
    model = krait.new("mamba2", d_model=32, n_layers=1, vocab_size=64, per_head_dim=16, state_rank=16)
    with pytest.raises(ValueError, match="has 64 tokens, but those of the data go up to 255"):
        krait.train(notes, model=model, steps=1, progress=False)


# ---- what is shown ----


def test_log_lines(notes, capsys):
    krait.train(notes, steps=4, eval_every=2, log_seconds=1000, **{**SMALL, "progress": "log"})
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("step 4/4  loss ") for line in lines), lines
    assert "4 steps of 2 × 32" in lines[1]


@pytest.mark.slow
def test_terminal_line():
    code = textwrap.dedent(
        """
        import sys, krait
        krait.train(krait.data.string("to be or not to be " * 99), steps=9, d_model=32, layers=1, d_state=16, head_dim=16,
                    batch=2, length=32)
        """
    )
    import pty

    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS="80", PYTHONIOENCODING="utf-8")
        os.execv(sys.executable, [sys.executable, "-c", code])
    text = b""
    while True:
        try:
            piece = os.read(fd, 4096)
        except OSError:
            break
        if not piece:
            break
        text += piece
    assert os.waitpid(pid, 0)[1] == 0, text
    shown = text.decode()
    assert "\r step " in shown and "9/9 ▕████████████████▏ loss" in shown, shown


def test_notebook_handle_is_updated_at_most_four_times_a_second(monkeypatch):
    from krait import _progress

    clock = {"now": 0.0}
    drawn: list[float] = []

    class Handle:
        def update(self, html):
            drawn.append(clock["now"])
            assert "<svg" in html._repr_html_() and "step" in html._repr_html_()

    def display(html, display_id):
        drawn.append(clock["now"])
        return Handle()

    monkeypatch.setattr(_progress.time, "perf_counter", lambda: clock["now"])
    cell = _progress.Cell(display)
    for step in range(1, 1001):  # ten seconds
        clock["now"] += 0.01
        cell.show(_progress.Progress(step, 0, step, 1.0 / step, 0.5, 1e-3, 1.0, 0, float("nan"), float("nan"), 0,
                                     float("nan"), False, False, step == 1000, steps=1000), 1.0)  # fmt: skip
    cell.close()
    assert 35 <= len(drawn) <= 42  # one each quarter of a second, the first and the last
    assert min(np.diff(drawn[:-1])) >= 0.25


@pytest.mark.slow
def test_run_in_a_notebook(notes, tmp_path):
    run = krait.train(notes, out=tmp_path / "run", steps=5, **SMALL)
    assert "<svg" in run._repr_html_() and "loss" in run._repr_html_()
    report = run.report()
    assert report._repr_html_().startswith("<iframe srcdoc=") and (tmp_path / "run" / "report.html").exists()
    # The page is the one of the program.
    ours = (tmp_path / "run" / "report.html").read_bytes()
    program("report", tmp_path / "run")
    assert ours == (tmp_path / "run" / "report.html").read_bytes()


def test_plot(notes):
    run = krait.train(notes, steps=5, **SMALL)
    try:
        import matplotlib
    except ImportError:
        with pytest.raises(ImportError, match="run.plot"):
            run.plot()
        return
    matplotlib.use("Agg")
    axes = run.plot()
    assert axes.get_lines() and len(axes.get_lines()[0].get_xdata()) == 5
    with pytest.raises(KeyError, match="there is no column"):
        run.plot("lost")


@pytest.mark.slow
def test_metrics_of_the_program(notes, tmp_path):
    program("train", "--data", notes, "--out", tmp_path / "c", "--d-model", 32, "--layers", 1, "--steps", 3, "-q", "-s", 32)
    run = krait.Run(tmp_path / "c")
    metrics = run.metrics
    assert metrics["step"].dtype == np.int64 and metrics["step"].tolist() == [1, 2, 3]
    assert metrics["loss"].dtype == np.float64 and np.isfinite(metrics["loss"]).all()
    assert run.model.generate("to be", max_tokens=3, stream=False).ids is not None


def test_metrics_thin_out_like_those_of_the_program():
    from krait._metrics import is_kept

    kept = [step for step in range(1, 100_001) if is_kept(step, False)]
    assert len(kept) == 9999 + 9000 + 1 and is_kept(12345, True)
