"""Memory that is lent and borrowed: buffers, __array__, DLPack, types, strides, CopyWarning."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from conftest import assert_near, small, tokens

import krait
from krait import _core
from krait._arrays import floats, integers


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_an_array_over_a_buffer_has_its_address() -> None:
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    lent = krait.Array(plain)
    assert lent.address == address(plain)
    assert (lent.shape, lent.strides, lent.ndim, lent.dtype_name) == ((2, 3), (12, 4), 2, "f32")
    assert (lent.nbytes, lent.device, lent.readonly) == (24, "cpu", False)
    back = np.asarray(lent)
    assert address(back) == address(plain) and np.array_equal(back, plain)


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::2, 1:], lambda a: a[::-1], lambda a: a[:, :1]])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int32, np.int64])
def test_strides_and_types_survive(view: Any, kind: Any) -> None:
    plain = view(np.arange(24).reshape(4, 6).astype(kind))
    lent = krait.Array(plain)
    for back in (np.asarray(lent), np.from_dlpack(lent), lent.numpy()):
        assert address(back) == address(plain)
        assert np.array_equal(back, plain) and back.dtype == plain.dtype and back.strides == plain.strides


def test_buffers_that_are_not_contiguous_are_refused_where_needed() -> None:
    lent = krait.Array(np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2])
    with pytest.raises(BufferError, match="not contiguous"):
        zlib.crc32(lent)
    assert zlib.crc32(krait.Array(np.arange(4, dtype=np.float32))) == zlib.crc32(np.arange(4, dtype=np.float32))
    assert memoryview(lent).tolist() == np.asarray(lent).tolist()


def test_read_only_memory_stays_read_only() -> None:
    plain = np.arange(4, dtype=np.float32)
    plain.flags.writeable = False
    lent = krait.Array(plain)
    assert lent.readonly and not np.asarray(lent).flags.writeable
    assert not np.from_dlpack(lent).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        lent.__dlpack__()
    request, writable = ctypes.pythonapi.PyObject_GetBuffer, 1
    with pytest.raises(BufferError, match="the array is read-only"):
        request(ctypes.py_object(lent), ctypes.create_string_buffer(128), writable)
    assert lent.__dlpack__(copy=True) is not None


def test_dlpack_versions() -> None:
    lent = krait.Array(np.arange(4, dtype=np.float32))
    assert '"dltensor"' in repr(lent.__dlpack__())
    assert '"dltensor_versioned"' in repr(lent.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(lent.__dlpack__(max_version=(0, 8)))
    assert lent.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="dl_device"):
        lent.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="no streams"):
        lent.__dlpack__(stream=1)
    assert lent.__dlpack__(stream=-1, dl_device=(1, 0)) is not None


def test_from_dlpack_shares_memory_and_keeps_its_owner() -> None:
    plain = np.arange(6, dtype=np.float64).reshape(2, 3)
    lent = krait.from_dlpack(plain)
    assert lent.address == address(plain)
    del plain
    gc.collect()
    assert np.asarray(lent).tolist() == [[0, 1, 2], [3, 4, 5]]


class OldExporter:
    """A library that knows no versions of DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_from_dlpack_of_an_old_library() -> None:
    plain = np.arange(3, dtype=np.float32)
    assert krait.from_dlpack(OldExporter(plain)).address == address(plain)


def test_a_capsule_is_used_once() -> None:
    class Twice:
        capsule = krait.Array(np.zeros(2, np.float32)).__dlpack__()

        def __dlpack__(self, **options: Any) -> Any:
            return self.capsule

    krait.from_dlpack(Twice())
    with pytest.raises(TypeError, match="used"):
        krait.from_dlpack(Twice())


def test_unsupported_elements_are_named() -> None:
    with pytest.raises(TypeError, match="format 'Zd'"):
        krait.Array(np.zeros(2, np.complex128))
    with pytest.raises(TypeError, match="not supported"):
        krait.from_dlpack(np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="9 axes"):
        krait.Array(np.zeros((1,) * 9, np.float32))
    with pytest.raises(TypeError):
        krait.Array("text")


def test_operands_are_read_in_place() -> None:
    plain = np.random.default_rng(1).standard_normal((2, 3, 4), dtype=np.float32)
    tape = _core.Tape(krait.Context(threads=1))
    for view in (plain, plain.transpose(2, 0, 1), plain[:, ::-1], plain[:, ::2], np.broadcast_to(plain[:1], (5, 3, 4))):
        assert tape.view(view).address == address(view)
    leaf = tape.leaf(plain)
    assert leaf.address != address(plain) and np.array_equal(np.asarray(leaf), plain)


def test_a_result_lives_as_long_as_it_is_used() -> None:
    y = krait.ssd.gate(np.ones((64, 64), np.float32), np.ones((64, 64), np.float32))
    want = y.copy()
    for _ in range(20):
        krait.ssd.gate(np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32))
    gc.collect()
    assert np.array_equal(y, want)
    y += 1  # results belong to the caller


def test_a_view_of_an_operand_is_not_writable() -> None:
    # A window as long as the input may share its memory, and writing it would change the operand.
    x = np.ones((1, 4, 2), np.float32)
    _, window = krait.ssd.causal_conv(x, np.ones((2, 2), np.float32))
    if window.flags.writeable:
        window[...] = 9
    assert (x == 1).all()


def test_states_and_weights_share_memory(model: krait.Model) -> None:
    _, s = model.forward(tokens(2, 5))
    assert address(s["layers.1.ssm"]) == s.array("layers.1.ssm").address == address(s["layers.1.ssm"])
    p = model.params["backbone.norm_f.weight"]
    view = np.asarray(p)
    assert address(view) == p.array.address
    p[0] = 5
    assert view[0] == 5
    del model, p, s
    gc.collect()
    assert view[0] == 5


def test_conversions_are_told_under_w() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", krait.CopyWarning)
        floats("x", np.zeros(3, np.float32))
        floats("x", np.zeros((3, 4), np.float64).T)
        integers("ids", [[1, 2]])
        integers("ids", np.zeros(3, np.int32))
        with pytest.raises(krait.CopyWarning, match="x: converted from float16 to float32"):
            floats("x", np.zeros(3, np.float16), "f32")
        with pytest.raises(krait.CopyWarning, match="strides"):
            floats("x", np.zeros(4, np.dtype([("a", np.float32), ("b", np.int16)]))["a"])
        with pytest.raises(krait.CopyWarning, match="ids: converted from uint8 to int64"):
            integers("ids", np.zeros(3, np.uint8))


def test_conversions_are_silent_unless_asked_for() -> None:
    code = "import krait, numpy as np; krait.ssd.gate(np.ones(2), np.ones(2, np.float16))"
    for options, told in (([], False), (["-W", "always"], True)):
        done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)
        assert ("CopyWarning: z: converted from float16 to float64" in done.stderr) == told


def test_big_endian_and_wrong_kinds() -> None:
    swapped = np.arange(3, dtype=">f4")
    with pytest.warns(krait.CopyWarning, match="converted from >f4"):
        assert floats("x", swapped)[0].tolist() == [0, 1, 2]
    with pytest.raises(krait.DtypeError, match="must have floats"):
        floats("x", np.zeros(2, np.complex64))
    with pytest.raises(krait.DtypeError, match="must have integers"):
        integers("ids", [1.5])
    with pytest.raises(TypeError, match="ids is of type object"):
        integers("ids", object())


def test_all_kinds_of_operands(model: krait.Model) -> None:
    ids = tokens(2, 3)
    want = model.logits(ids)

    class ArrayLike:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return ids

    for given in (ids.tolist(), ids.astype(np.int32), ArrayLike(), OldExporter(ids), krait.Array(ids), memoryview(ids)):
        assert np.array_equal(model.logits(given), want)


def test_bf16() -> None:
    model = small(dtype="bf16")
    name = "backbone.layers.0.mixer.in_proj.weight"
    p = model.params[name]
    assert p.dtype_name == "bf16"
    exact = p.read()
    raw = np.asarray(memoryview(p.array))
    assert raw.dtype == np.uint16
    assert np.array_equal((raw.astype(np.uint32) << 16).view(np.float32), exact)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert p.numpy().dtype == ml_dtypes.bfloat16
    assert np.array_equal(p.numpy().astype(np.float32), exact)
    assert p[...].dtype == np.float32 and np.array_equal(p[...], exact)
    p[...] = p.numpy() * ml_dtypes.bfloat16(2)
    assert np.array_equal(p.read(), 2 * exact)
    p.write(exact.astype(ml_dtypes.bfloat16))
    assert np.array_equal(p.read(), exact)


def test_bf16_operands_of_ops() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(ml_dtypes.bfloat16)
    y = krait.ssd.rms_norm(x)
    assert y.dtype == ml_dtypes.bfloat16
    exact = krait.ssd.rms_norm(x.astype(np.float32))
    # One rounding to 8 significant bits.
    assert_near(y.astype(np.float32), exact, 2.0**-8, "rms_norm")


class FromGpu:
    """An exporter of memory that the host cannot read: its address is of a GPU that is not there."""

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("rank", ctypes.c_int32),
            ("dtype", ctypes.c_uint8 * 2), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
            ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64), ("owner", ctypes.c_void_p),
            ("release", ctypes.c_void_p),
        ]  # fmt: skip

    living: list[Any] = []  # never released

    def __init__(self, device: int = 2, code: int = 2, rank: int = 1) -> None:
        self.living.append(self)
        self.shape = (ctypes.c_int64 * 16)(*([4] * 16))
        self.tensor = self.Tensor(64, (device, 0), rank, (code, 32), 1, ctypes.addressof(self.shape), None, 0, None, None)

    def __dlpack__(self) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def test_memory_of_a_gpu_is_not_read_by_the_host(model: krait.Model) -> None:
    exporter, integers = FromGpu(), FromGpu(code=0)
    there = krait.from_dlpack(exporter)
    assert (there.device, there.address, there.shape) == ("cuda:0", 64, (4,))
    assert there.__dlpack_device__() == (2, 0)
    with pytest.raises(BufferError, match="on cuda:0"):
        memoryview(there)
    context = krait.Context(threads=1)
    with pytest.raises(ValueError, match="the array is on cuda:0, but the context is on the CPU"):
        _core.Tape(context).view(there)
    with pytest.raises(ValueError, match="on cuda:0"):
        _core.Tape(context).leaf(there)
    with pytest.raises(ValueError, match="on cuda:0"):
        model.params._core.write(0, there)
    with pytest.raises(ValueError, match="on cuda:0"):
        model.params["backbone.norm_f.weight"].array.read(there)
    ids = krait.from_dlpack(integers)
    with pytest.raises(ValueError, match="on cuda:0"):
        krait.Tokenizer.bytes()._core.decode(ids)
    batch = _core.RowBatch(model._core)
    with pytest.raises(ValueError, match="on cuda:0"):
        batch.feed(batch.create(), ids)
    with pytest.raises(BufferError, match="copy=True is for arrays on the CPU"):
        there.__dlpack__(copy=True)
    assert there.__dlpack__(stream=None) is not None


def test_capsules_that_make_no_sense() -> None:
    for exporter, word in ((FromGpu(device=8), "device type 8"), (FromGpu(rank=12), "12 axes"), (FromGpu(code=5), "type 5")):
        with pytest.raises((BufferError, ValueError, TypeError), match=word):
            krait.from_dlpack(exporter)


def test_ids_of_the_wrong_kind(model: krait.Model) -> None:
    batch = _core.RowBatch(model._core)
    row = batch.create()
    for wrong in (np.zeros(3, np.float16), np.zeros(3, np.int64), np.zeros(6, np.int32)[::2]):
        with pytest.raises((TypeError, ValueError)):
            batch.feed(row, krait.Array(wrong))
    with pytest.raises(IndexError, match="no row 5"):
        batch.cancel(5)


def test_empty_arrays(model: krait.Model) -> None:
    with pytest.raises(krait.Error):
        model.logits(np.zeros((1, 0), np.int64))
    with pytest.raises(krait.Error):
        model.logits([])
    assert np.asarray(krait.Array(np.zeros((0, 3), np.float32))).shape == (0, 3)
    assert krait.Tokenizer.bytes().decode([]) == "" and krait.Tokenizer.bytes().encode("") == []
