"""krait.data: every format, arrays in place, batches."""

import pathlib
import struct

import numpy as np
import pytest

import krait
from krait import data


def ids_of(source: data.Source, **options) -> list[int]:
    """All ids in order; the last one is only a label."""
    found: list[int] = []
    label = -100
    for batch in source.batches(batch=1, length=4, shuffle=False, **options):
        found += batch["ids"][0, : batch["n_positions"]].tolist()
        label = batch["labels"][0, batch["n_positions"] - 1]
    return found + [label] if label >= 0 else found


def test_string_and_text(tmp_path: pathlib.Path):
    text = "to be, or not to be"
    (tmp_path / "a.txt").write_text(text)
    assert ids_of(data.string(text)) == list(text.encode())
    assert ids_of(data.text(tmp_path / "a.txt")) == list(text.encode())
    assert ids_of(data.open(tmp_path / "a.txt")) == list(text.encode())
    with pytest.raises(ValueError, match="empty"):
        data.string("")
    with pytest.raises(krait.IoError):
        data.text(tmp_path / "missing").info()


def test_documents_and_labels():
    source = data.string("abc|de", separator="|")
    batch = next(source.batches(batch=1, length=8, shuffle=False))
    assert batch["ids"][0, :4].tolist() == [97, 98, 99, 100]
    assert batch["labels"][0, :4].tolist() == [98, 99, -100, 101]
    assert batch["reset"][0, 3] == 1 and batch["n_scored"] == 3


def test_jsonl_tokens_raw(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "abc"}\n{"body": "de"}\n')
    source = data.jsonl(tmp_path / "a.jsonl", "body")
    assert ids_of(source) == [97, 98, 99, 100, 101]
    source.save(tmp_path / "a.tokens")
    assert ids_of(data.open(tmp_path / "a.tokens")) == [97, 98, 99, 100, 101]
    (tmp_path / "a.bin").write_bytes(struct.pack("<5H", 1, 2, 0, 3, 4))
    raw = data.raw(tmp_path / "a.bin", 5, separator_id=0)
    assert ids_of(raw) == [1, 2, 0, 3, 4] and raw.info()["n_ids"] == 5
    with pytest.raises(krait.Error, match="below|vocab|3|ids"):
        ids_of(data.raw(tmp_path / "a.bin", 3))


def test_csv_and_columns(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,4\n5,6\n")
    source = data.csv(tmp_path / "a.csv", features=["x"], targets=["y"])
    batch = next(source.batches(batch=1, length=3, shuffle=False))
    assert batch["x"][0, :, 0].tolist() == [1, 3, 5] and batch["targets"][0, :, 0].tolist() == [2, 4, 6]
    assert [c["name"] for c in source.columns()] == ["x", "y"]
    (tmp_path / "b.tsv").write_text("x\ty\n1\t2\n")
    assert data.open(tmp_path / "b.tsv", targets="y").info()["n_features"] == 1
    with pytest.raises(ValueError, match="missing is 'maybe', but must be one of"):
        data.csv(tmp_path / "a.csv", missing="maybe").info()


def test_idx(tmp_path):
    images = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    (tmp_path / "i-ubyte").write_bytes(struct.pack(">IIII", 0x803, 2, 4, 3) + images.tobytes())
    (tmp_path / "l-ubyte").write_bytes(struct.pack(">II", 0x801, 2) + bytes([1, 0]))
    source = data.idx(tmp_path / "i-ubyte", tmp_path / "l-ubyte", patch=(1, 3))
    info = source.info()
    assert (info["n_features"], info["n_classes"], info["count"]) == (3, 2, 8)
    batch = next(source.batches(batch=2, length=0, pack=False, shuffle=False))
    np.testing.assert_allclose(batch["x"][1], images[1] / 255, rtol=1e-6)  # one rounding of f32
    assert batch["labels"][:, -1].tolist() == [1, 0] and (batch["labels"][:, :-1] == -100).all()


def test_ids_are_read_in_place():
    array = np.arange(1, 13, dtype=np.int32)
    source = data.ids(array, vocab=100)
    assert source._arrays["ids"] is array or source._arrays["ids"].ctypes.data == array.ctypes.data
    batches = source.batches(batch=1, length=4, shuffle=False)
    array[0] = 42  # read when a batch is, not before
    assert next(batches)["ids"].tolist() == [[42, 2, 3, 4]]
    with pytest.raises(ValueError, match="cannot resize|exports|owns"):
        array.resize(100, refcheck=True)


def test_memory_map(tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(1000, dtype=np.int32) % 50)
    mapped = np.load(path, mmap_mode="r")
    source = data.ids(mapped, starts=[0, 500])
    assert source.info() == {
        "count": 1000, "n_ids": 50, "n_features": 0, "n_classes": 50, "n_targets": 0, "predict_next": True
    }  # fmt: skip
    assert ids_of(source)[:3] == [0, 1, 2]


def test_arrays():
    x = np.arange(12, dtype=np.float64).reshape(6, 2)
    targets = np.array([0, 1, np.nan, 3, 4, 5])
    batch = next(data.arrays(x, targets=targets).batches(batch=1, length=6, shuffle=False))
    np.testing.assert_array_equal(batch["x"][0], x)
    assert batch["scored"][0].tolist() == [1, 1, 0, 1, 1, 1] and batch["n_scored"] == 5
    following = next(data.arrays(x).batches(batch=1, length=6, shuffle=False))
    np.testing.assert_array_equal(following["targets"][0, :5], x[1:])
    classes = next(data.arrays(x, labels=[0, 1, -100, 1, 0, 1], starts=[0, 3]).batches(batch=1, length=6, shuffle=False))
    assert classes["labels"][0].tolist() == [0, 1, -100, 1, 0, 1] and classes["reset"][0, 3] == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: data.ids([[1, 2]]), r"a row of integers, but are int64 of shape \[1, 2\]"),
        (lambda: data.ids([0.5]), "a row of integers"),
        (lambda: data.ids([1, 9], vocab=5), "from 1 to 9, but must be from 0 to 4"),
        (lambda: data.ids([1, 2, 3], starts=[1, 2]), "the first 0"),
        (lambda: data.ids([1, 2, 3], starts=[0, 3]), "below the number of positions"),
        (lambda: data.arrays([1.0, 2.0]), r"\[positions, features\]"),
        (lambda: data.arrays([[1.0]], labels=[0], targets=[1.0]), "labels or targets, not both"),
        (lambda: data.arrays([[1.0], [2.0]], labels=[0]), "labels has 1 rows, but x has 2"),
    ],
)
def test_wrong_arrays(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_positions_restore():
    source = data.ids(np.arange(100) % 7)
    batches = source.batches(batch=2, length=5, seed=3)
    next(batches)
    position = batches.position
    rest = [b["ids"].tolist() for b in batches]
    again = source.batches(batch=2, length=5, seed=3)
    again.position = position
    assert [b["ids"].tolist() for b in again] == rest and again.steps_per_epoch == 10
    with pytest.raises(krait.Error):
        data.ids(np.arange(60) % 7).batches(batch=2, length=5, seed=3).position = position


def test_unknown_option():
    with pytest.raises(TypeError, match="unknown option 'lenght'"):
        data.ids([1, 2]).batches(lenght=3)
    assert repr(data.open("notes.txt")) == "krait.data.text('notes.txt', special=False, memory_budget=268435456)"


def test_split_of_training_and_validation():
    source = data.ids(np.arange(200) % 11)
    parts = [
        sum(b["n_positions"] for b in source.batches(batch=1, length=10, part=part, validation_fraction=0.25))
        for part in ("train", "validation")
    ]
    assert parts == [149, 49]  # the last token of a part is only a label
