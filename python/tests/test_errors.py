"""Every class of exceptions, with the sentence of the library, and what Python programs expect to catch."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from conftest import small, tokens

import krait

CLASSES = {
    krait.ArgumentError: (ValueError, "arg"),
    krait.ShapeError: (ValueError, "shape"),
    krait.DtypeError: (TypeError, "dtype"),
    krait.OutOfMemoryError: (MemoryError, "nomem"),
    krait.IoError: (OSError, "io"),
    krait.FormatError: (ValueError, "format"),
    krait.UnsupportedError: (NotImplementedError, "unsupported"),
    krait.DeviceError: (RuntimeError, "device"),
    krait.NumericError: (ArithmeticError, "numeric"),
    krait.StateError: (RuntimeError, "state"),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_class(kind: type[krait.Error]) -> None:
    base, status = CLASSES[kind]
    assert issubclass(kind, krait.Error) and issubclass(kind, base)
    assert kind.__module__ == "krait" and getattr(krait, kind.__name__) is kind
    assert kind.__doc__
    error = kind("text")
    assert error.status == status and str(error) == "text"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == "text"


def test_argument(model: krait.Model) -> None:
    with pytest.raises(krait.ArgumentError) as e:
        model.logits([[1, 300]])
    assert str(e.value) == "network.forward, input: embedding: element 1 of id [1, 2] is 300, but must be from 0 to 255"


def test_argument_of_a_config() -> None:
    with pytest.raises(krait.ArgumentError, match="d_model"):
        krait.new("mamba2", d_model=-3, n_layers=1, vocab_size=256)


def test_shape(model: krait.Model) -> None:
    with pytest.raises(krait.ShapeError) as e:
        model.logits([1, 2])
    assert str(e.value) == "network.forward: x [2] has rank 1, but must have 2 (axes bs)"


def test_shape_of_an_op() -> None:
    with pytest.raises(krait.ShapeError, match="gated_norm|gain|axis"):
        krait.ssd.gated_norm(np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32), np.zeros(5, np.float32))


def test_dtype() -> None:
    context = krait.Context(threads=1)
    tape = krait._core.Tape(context)
    f32, f64 = tape.view(np.zeros(4, np.float32)), tape.view(np.zeros(4))
    with pytest.raises(krait.DtypeError, match="f64"):
        krait._core.op(tape, "gate", (f32, f64))


def test_a_failed_tape_stays_unusable_and_others_do_not() -> None:
    context = krait.Context(threads=1)
    tape, other = krait._core.Tape(context), krait._core.Tape(context)
    x = tape.view(np.zeros(4, np.float32))
    with pytest.raises(krait.ShapeError):
        krait._core.op(tape, "gate", (x, tape.view(np.zeros(5, np.float32))))
    with pytest.raises(krait.StateError, match="tape"):
        krait._core.op(tape, "gate", (x, x))
    y = other.view(np.zeros(4, np.float32))
    assert np.asarray(krait._core.op(other, "gate", (y, y))[0]).tolist() == [0, 0, 0, 0]


def test_io(tmp_path: Path) -> None:
    with pytest.raises(krait.IoError) as e:
        krait.load(tmp_path / "missing")
    assert "missing" in str(e.value)
    with pytest.raises(OSError):
        krait.Tokenizer.load(tmp_path / "missing.json")


def test_format(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"d_model": 16,')
    with pytest.raises(krait.FormatError, match="json"):
        krait.load(tmp_path)


def test_format_of_a_state(model: krait.Model) -> None:
    _, s = model.forward(tokens(1, 3))
    data = bytearray(s.to_bytes())
    data[len(data) // 2] ^= 1
    with pytest.raises(krait.FormatError, match="state"):
        model.load_state(bytes(data))


def test_unsupported() -> None:
    with pytest.raises(krait.Error) as e:
        krait.Context(device="cuda")
    assert isinstance(e.value, (krait.UnsupportedError, krait.DeviceError)) or krait.devices()[1].startswith("cuda:0")


def test_numeric() -> None:
    context = krait.Context(threads=1, check_finite=True)
    x = np.ones((2, 4), np.float32)
    x[1, 2] = np.nan
    with pytest.raises(krait.NumericError, match=r"\[1, 2\]|element|nan"):
        krait.ssd.gate(x, x, context=context)


def test_state(model: krait.Model) -> None:
    shared = model.share()
    with pytest.raises(krait.StateError, match="shared by 2 models"):
        model.params["backbone.norm_f.weight"][0] = 1
    del shared
    model.params["backbone.norm_f.weight"][0] = 1


def test_out_of_memory() -> None:
    context = krait.Context(threads=1)
    context._fail_allocation(1)
    with pytest.raises(krait.OutOfMemoryError, match="memory"):
        small_on(context)
    small_on(context)


def small_on(context: krait.Context) -> krait.Model:
    return krait.new("mamba2", context=context, d_model=16, n_layers=1, vocab_size=256, per_head_dim=8, state_rank=8)


def test_backward_after_a_write_is_refused() -> None:
    block = krait.nn.Mamba2(16, per_head_dim=8, state_rank=8)
    (y, _), backward = block.vjp(np.ones((1, 3, 16), np.float32))
    block.params["D"][:] = 2
    with pytest.raises(krait.StateError, match="written|changed"):
        backward(np.ones_like(y))


def test_a_state_of_another_model_is_refused(model: krait.Model) -> None:
    other = small()
    _, s = other.forward(tokens(1, 2))
    with pytest.raises(ValueError, match="another model"):
        model.step([1], s)


def test_python_arguments(model: krait.Model) -> None:
    with pytest.raises(TypeError, match="unknown field 'colour'"):
        small(colour=1)
    with pytest.raises(TypeError, match="d_model is of type str"):
        small(d_model="wide")
    with pytest.raises(ValueError, match="family is 'mamba9'"):
        krait.new("mamba9")
    with pytest.raises(TypeError, match="both of its names"):
        small(layers=2)
    with pytest.raises(OverflowError, match="does not fit"):
        small(d_model=2**70)
    with pytest.raises(TypeError, match="unknown option 'topk'"):
        model.generate("a", topk=3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="null character"):
        krait.Context(device="cpu\0")


def test_messages_are_sentences_of_the_library(model: krait.Model) -> None:
    # After an exception the context is clear, and the next call works.
    for _ in range(3):
        with pytest.raises(krait.ShapeError):
            model.logits([1])
        assert model.logits([[1]]).shape == (1, 1, 256)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_io_of_a_save(model: krait.Model, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(krait.IoError):
        model.save(tmp_path / "out")
