#!/usr/bin/env python3
"""make_short.py FILE - golden vectors of sequences of one and two tokens, for `krait check --ops` (README.md has the layout).

The recurrences as the formulas have them, token by token, in complex f64 with the standard library alone. A gradient is the
imaginary part of the sum of <w, out> after an imaginary step of 1e-40 in one element of one input: no difference is taken,
so that it is good to f64's rounding. Inputs are seeded and exact in f32.
"""
import cmath
import json
import random
import struct
import sys

STEP = 1e-40


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Tensor:
    """A list of numbers in row-major order, read and written by index."""

    def __init__(self, shape, values=None):
        self.shape = shape
        self.values = values if values is not None else [0j] * count(shape)

    def at(self, index):
        place = 0
        for size, i in zip(self.shape, index):
            place = place * size + i
        return place

    def __getitem__(self, index):
        return self.values[self.at(index)]

    def __setitem__(self, index, value):
        self.values[self.at(index)] = value


def count(shape):
    n = 1
    for size in shape:
        n *= size
    return n


def softplus(x):
    return cmath.log(1 + cmath.exp(x))


def silu(x):
    return x / (1 + cmath.exp(-x))


def selective_scan(t, settings):
    """u, delta, z [b i s], A [i r], B, C [b r s] or [b g r s], D, delta_bias [i]"""
    nb, ni, ns = t["u"].shape
    nr = t["A"].shape[1]
    has_groups = len(t["B"].shape) == 4
    width = ni // (t["B"].shape[1] if has_groups else 1)
    y, state = Tensor([nb, ni, ns]), Tensor([nb, ni, nr])
    for b in range(nb):
        for i in range(ni):
            for s in range(ns):
                where = lambda r: (b, i // width, r, s) if has_groups else (b, r, s)
                dt = t["delta"][b, i, s] + (t["delta_bias"][i,] if "delta_bias" in t else 0)
                if settings["delta_softplus"]:
                    dt = softplus(dt)
                x = t["u"][b, i, s]
                out = t["D"][i,] * x if "D" in t else 0
                for r in range(nr):
                    state[b, i, r] = cmath.exp(dt * t["A"][i, r]) * state[b, i, r] + dt * t["B"][where(r)] * x
                    out += t["C"][where(r)] * state[b, i, r]
                y[b, i, s] = out * silu(t["z"][b, i, s]) if "z" in t else out
    return {"y": y, "last_state": state}


def ssd_combined(t, settings):
    """x, z [b s h p], dt [b s h], dt_bias, A, D [h], B, C [b s g r], initial_states [b h p r]"""
    nb, ns, nh, np = t["x"].shape
    ng, nr = t["B"].shape[2:]
    y = Tensor([nb, ns, nh, np])
    state = Tensor([nb, nh, np, nr], list(t["initial_states"].values) if "initial_states" in t else None)
    for b in range(nb):
        for s in range(ns):
            for h in range(nh):
                dt, g = t["dt"][b, s, h] + t["dt_bias"][h,], h // (nh // ng)
                if settings["dt_softplus"]:
                    dt = softplus(dt)
                for p in range(np):
                    x = t["x"][b, s, h, p]
                    out = t["D"][h,] * x
                    for r in range(nr):
                        at = (b, h, p, r)
                        state[at] = cmath.exp(dt * t["A"][h,]) * state[at] + dt * x * t["B"][b, s, g, r]
                        out += t["C"][b, s, g, r] * state[at]
                    y[b, s, h, p] = out * silu(t["z"][b, s, h, p]) if "z" in t else out
    return {"y": y, "final_state": state}


def scan_inputs(nb, ni, ns, nr, ng, has_all):
    maps = [nb, ng, nr, ns] if ng else [nb, nr, ns]
    shapes = {"u": [nb, ni, ns], "delta": [nb, ni, ns], "A": [ni, nr], "B": maps, "C": maps}
    if has_all:
        shapes.update({"D": [ni], "z": [nb, ni, ns], "delta_bias": [ni]})
    return shapes


def ssd_inputs(nb, ns, nh, np, ng, nr, has_all):
    shapes = {"x": [nb, ns, nh, np], "dt": [nb, ns, nh], "dt_bias": [nh], "A": [nh], "D": [nh]}
    shapes.update({"B": [nb, ns, ng, nr], "C": [nb, ns, ng, nr]})
    if has_all:
        shapes.update({"z": [nb, ns, nh, np], "initial_states": [nb, nh, np, nr]})
    return shapes


CASES = [
    ("selective_scan_0", selective_scan, scan_inputs(2, 3, 1, 4, 0, True), {"delta_softplus": True}),
    ("selective_scan_1", selective_scan, scan_inputs(1, 4, 1, 3, 2, False), {"delta_softplus": True}),
    ("selective_scan_2", selective_scan, scan_inputs(2, 2, 2, 3, 0, True), {"delta_softplus": False}),
    ("ssd_combined_0", ssd_combined, ssd_inputs(2, 1, 2, 3, 1, 4, True), {"dt_softplus": True, "chunk_size": 4}),
    ("ssd_combined_1", ssd_combined, ssd_inputs(1, 1, 2, 2, 2, 3, False), {"dt_softplus": True, "chunk_size": 1}),
]


def draw(rng, name, shape):
    low, high = {"A": (-2, -0.2), "delta": (0.05, 0.5), "dt": (0.05, 0.5)}.get(name, (-1, 1))
    return Tensor(shape, [complex(f32(rng.uniform(low, high))) for _ in range(count(shape))])


def weighted_sum(outputs, weights):
    return sum(w * y for name in outputs for w, y in zip(weights[name].values, outputs[name].values))


def gradients(function, inputs, weights, settings):
    result = {}
    for name, tensor in inputs.items():
        result[name] = Tensor(tensor.shape)
        for i, value in enumerate(tensor.values):
            tensor.values[i] = value + STEP * 1j
            result[name].values[i] = weighted_sum(function(inputs, settings), weights).imag / STEP
            tensor.values[i] = value
    return result


def add_case(rng, tensors, case, function, shapes, settings):
    inputs = {name: draw(rng, name, shape) for name, shape in shapes.items()}
    outputs = function(inputs, settings)
    weights = {name: draw(rng, "w", y.shape) for name, y in outputs.items()}
    parts = {"in": inputs, "w": weights, "out": outputs, "grad": gradients(function, inputs, weights, settings)}
    for part, members in parts.items():
        for name, tensor in members.items():
            tensors[f"{case}/{part}/{name}"] = ("F32" if part in ("in", "w") else "F64", tensor)


def write(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, tensor) in tensors.items():
        bytes_ = struct.pack(f"<{len(tensor.values)}{'f' if dtype == 'F32' else 'd'}", *[v.real for v in tensor.values])
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    rng, tensors = random.Random(1), {}
    for case in CASES:
        add_case(rng, tensors, *case)
    write(sys.argv[1], tensors, {"cases": json.dumps({case[0]: case[3] for case in CASES})})


if __name__ == "__main__":
    main()
