"""The official functions over Krait's ops against plain torch, values and gradients in f64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from compat_cases import Random, assert_close, compare  # noqa: E402
from krait._compat import causal_conv, layer_norms, references, selective_scan, ssd_combined, state_update  # noqa: E402

SEED = 7


# ---- the selective scan ----


@pytest.mark.parametrize("form", ["constant", "shared", "groups", "mixed"])
@pytest.mark.parametrize("rest", ["all", "none"])
def test_selective_scan(form, rest):
    r = Random(SEED)
    nb, ni, nr, ns = 2, 6, 5, 11
    shapes = {"constant": ((ni, nr), (ni, nr)), "shared": ((nb, nr, ns), (nb, nr, ns)),
              "groups": ((nb, 3, nr, ns), (nb, 3, nr, ns)), "mixed": ((nb, 2, nr, ns), (nb, nr, ns))}[form]
    operands = dict(u=r(nb, ni, ns), delta=r(nb, ni, ns), A=r.negative(ni, nr), B=r(*shapes[0]), C=r(*shapes[1]))
    if rest == "all":
        operands |= dict(D=r(ni), z=r(nb, ni, ns), delta_bias=r(ni), delta_softplus=True)
    else:
        operands["delta"] = operands["delta"].abs()
    compare(lambda **o: selective_scan.selective_scan_fn(**o, return_last_state=True),
            lambda **o: references.selective_scan_ref(**o, return_last_state=True), operands, SEED)
    y = selective_scan.selective_scan_fn(**operands)
    assert torch.equal(y, selective_scan.selective_scan_fn(**operands, return_last_state=True)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_selective_scan_of_halves(dtype):
    """The result has the type of u, computed in f32 from the rounded operands; 2^-8 or 2^-11 is the rounding of the
    result."""
    r = Random(SEED, dtype)
    u, delta, B, C, z = r(2, 4, 9), r(2, 4, 9), r(2, 3, 9), r(2, 3, 9), r(2, 4, 9)
    A = Random(SEED, torch.float32).negative(4, 3)
    y, last = selective_scan.selective_scan_fn(u, delta, A, B, C, z=z, delta_softplus=True, return_last_state=True)
    wanted = references.selective_scan_ref(u.double(), delta.double(), A.double(), B.double(), C.double(), z=z.double(),
                                           delta_softplus=True)
    assert y.dtype == dtype and last.dtype == torch.float32
    assert_close(y, wanted, "y", SEED, 2.0 ** (-8 if dtype == torch.bfloat16 else -11))


def test_selective_scan_of_strided_operands_is_the_same():
    r = Random(SEED)
    wide = r(2, 11, 3 * 6).abs()
    u, delta, z = (m.transpose(1, 2) for m in wide.split(6, dim=-1))
    A, B, C = r.negative(6, 4), r(2, 4, 11), r(2, 4, 11)
    y = selective_scan.selective_scan_fn(u, delta, A, B, C, z=z)
    packed = selective_scan.selective_scan_fn(u.contiguous(), delta.contiguous(), A, B, C, z=z.contiguous())
    assert torch.equal(y, packed)


def _inner_operands(r, norms=False):
    nb, nd, ni, ns, nr, rank, k = 2, 5, 6, 9, 4, 3, 4
    return dict(
        xz=r(nb, 2 * ni, ns), conv1d_weight=r(ni, 1, k), conv1d_bias=r(ni), x_proj_weight=r(rank + 2 * nr, ni, scale=0.4),
        delta_proj_weight=r(ni, rank), out_proj_weight=r(nd, ni), out_proj_bias=r(nd), A=r.negative(ni, nr), D=r(ni),
        delta_bias=r(ni))


@pytest.mark.parametrize("biases", [False, True])
def test_mamba_inner(biases):
    r = Random(SEED)
    operands = _inner_operands(r)
    if biases:
        operands |= dict(B_proj_bias=r(4), C_proj_bias=r(4))
    compare(selective_scan.mamba_inner_fn, references.mamba_inner_ref, operands, SEED)


def test_mamba_inner_with_given_b_and_c():
    r = Random(SEED)
    compare(
        selective_scan.mamba_inner_fn,
        references.mamba_inner_ref,
        _inner_operands(r) | dict(B=r(2, 1, 4, 9), C=r(2, 1, 4, 9)),
        SEED,
    )


@pytest.mark.parametrize("dt_weight", ["ones", "learned"])
def test_mamba_inner_with_norms(dt_weight):
    """B and C are normed after their projection, dt after its own; but before it with FalconMamba's constant ones."""
    r = Random(SEED)
    operands = _inner_operands(r)
    weights = dict(b_rms_weight=r(4), c_rms_weight=r(4), dt_rms_weight=r(6))
    eps = 1e-3

    def norm(m, weight):
        return m * torch.rsqrt(m.square().mean(-1, keepdim=True) + eps) * weight

    def reference(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, D,
                  delta_bias, b_rms_weight, c_rms_weight, dt_rms_weight=None):
        x, z = xz.chunk(2, dim=1)
        x = references.causal_conv1d_ref(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
        low, b, c = F.linear(x.transpose(1, 2), x_proj_weight).split([3, 4, 4], dim=-1)
        if dt_rms_weight is None:
            delta = F.linear(norm(low, 1.0), delta_proj_weight)
        else:
            delta = norm(F.linear(low, delta_proj_weight), dt_rms_weight)
        y = references.selective_scan_ref(x, delta.transpose(1, 2), A, norm(b, b_rms_weight).transpose(1, 2),
                                          norm(c, c_rms_weight).transpose(1, 2), D, z, delta_bias, True)
        return F.linear(y.transpose(1, 2), out_proj_weight, out_proj_bias)

    if dt_weight == "ones":
        weights.pop("dt_rms_weight")
        ones = torch.ones(6, dtype=torch.float64)
        compare(lambda **o: selective_scan.mamba_inner_fn(**o, dt_rms_weight=ones, b_c_dt_rms_eps=eps), reference,
                operands | weights, SEED)
    else:
        compare(lambda **o: selective_scan.mamba_inner_fn(**o, b_c_dt_rms_eps=eps), reference, operands | weights, SEED)


def _scan_operands(r, with_z=True):
    operands = dict(
        u=r(2, 4, 7), delta=r(2, 4, 7), A=r.negative(4, 3), B=r(2, 1, 3, 7), C=r(2, 1, 3, 7), D=r(4), delta_bias=r(4)
    )
    return operands | dict(z=r(2, 4, 7)) if with_z else operands


@pytest.mark.parametrize("with_z", [False, True])
def test_selective_scan_cuda(with_z):
    r = Random(SEED)
    operands = _scan_operands(r, with_z)
    z = operands.get("z")
    positional = [operands[name] for name in ("u", "delta", "A", "B", "C", "D")] + [z, operands["delta_bias"]]
    results = selective_scan.SelectiveScanCuda.fwd(*positional, True)
    y, last = references.selective_scan_ref(**operands | dict(z=None, delta_softplus=True, return_last_state=True))
    assert_close(results[0], y, "y", SEED)
    assert_close(results[1][:, :, -1, 1::2], last, "last state", SEED)
    gated = y * F.silu(z) if with_z else y
    if with_z:
        assert_close(results[2], gated, "gated y", SEED)
    leaves = {name: m.clone().requires_grad_() for name, m in operands.items()}
    dout = r(2, 4, 7)
    (references.selective_scan_ref(**leaves, delta_softplus=True) * dout).sum().backward()
    dz = torch.empty_like(z) if with_z else None
    grads = selective_scan.SelectiveScanCuda.bwd(*positional, dout, results[1], results[0], dz, True, True)
    for name, g in zip(("u", "delta", "A", "B", "C", "D", "delta_bias"), grads):
        assert_close(g, leaves[name].grad, f"gradient of {name}", SEED)
    if with_z:
        assert grads[7] is dz
        assert_close(dz, leaves["z"].grad, "gradient of z", SEED)
    assert_close(grads[-1], gated, "recomputed y", SEED)


def test_selective_scan_cuda_oflex():
    r = Random(SEED)
    operands = _scan_operands(r, False)
    positional = [operands[name] for name in ("u", "delta", "A", "B", "C", "D", "delta_bias")]
    y, state = selective_scan.SelectiveScanCudaOflex.fwd(*positional, True, 1, True)
    assert_close(y, references.selective_scan_ref(**operands, delta_softplus=True), "y", SEED)
    leaves = {name: m.clone().requires_grad_() for name, m in operands.items()}
    dout = r(2, 4, 7)
    (references.selective_scan_ref(**leaves, delta_softplus=True) * dout).sum().backward()
    grads = selective_scan.SelectiveScanCudaOflex.bwd(*positional, dout, state, True, 1)
    assert len(grads) == 7
    for name, g in zip(("u", "delta", "A", "B", "C", "D", "delta_bias"), grads):
        assert_close(g, leaves[name].grad, f"gradient of {name}", SEED)
    halves = [m.to(torch.bfloat16) if m.dim() > 2 else m.float() for m in positional]
    assert selective_scan.SelectiveScanCudaOflex.fwd(*halves, True, 1, True)[0].dtype == torch.float32
    assert selective_scan.SelectiveScanCudaOflex.fwd(*halves, True, 1, False)[0].dtype == torch.bfloat16


# ---- the SSD ----


def _ssd_operands(r, nb=2, ns=19, nh=4, np=6, ng=2, nr=8):
    return dict(x=r(nb, ns, nh, np), dt=r(nb, ns, nh), A=r.negative(nh), B=r(nb, ns, ng, nr), C=r(nb, ns, ng, nr))


def _ssd_reference(x, dt, A, B, C, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, dt_softplus=True,
                   dt_limit=(0.0, float("inf")), return_final_states=True):
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    y, states = references.ssd_states(x, dt, A, B, C, initial_states, seq_idx)
    if D is not None:
        y = y + (D[:, None] if D.dim() == 1 else D) * x
    y = y if z is None else y * F.silu(z)
    return (y, states[-1]) if return_final_states else y


@pytest.mark.parametrize("case", ["plain", "d", "d_hp", "gate", "bias", "initial", "limit", "no_softplus", "packed", "all"])
def test_chunk_scan(case):
    r = Random(SEED)
    operands = _ssd_operands(r)
    fixed = dict(dt_softplus=True)
    if case in ("d", "all"):
        operands["D"] = r(4)
    if case == "d_hp":
        operands["D"] = r(4, 6)
    if case in ("gate", "all"):
        operands["z"] = r(2, 19, 4, 6)
    if case in ("bias", "limit", "all"):
        operands["dt_bias"] = r(4)
    if case in ("initial", "packed", "all"):
        operands["initial_states"] = r(2, 4, 6, 8)
    if case in ("limit", "all"):
        fixed["dt_limit"] = (0.3, 1.1)
    if case == "no_softplus":
        fixed["dt_softplus"] = False
        operands["dt"] = operands["dt"].abs()
    if case in ("packed", "all"):  # row 0 begins with the number 0, whose tokens see the initial state, row 1 does not
        operands["seq_idx"] = torch.tensor([[0] * 5 + [1] * 9 + [4] * 5, [2] * 1 + [3] * 18], dtype=torch.int32)
    compare(lambda **o: ssd_combined.mamba_chunk_scan_combined(**o, **fixed, chunk_size=8, return_final_states=True),
            lambda **o: _ssd_reference(**o, **fixed), operands, SEED)
    y = ssd_combined.mamba_chunk_scan_combined(**operands, **fixed, chunk_size=64)
    assert torch.equal(
        y, ssd_combined.mamba_chunk_scan_combined(**operands, **fixed, chunk_size=8, return_final_states=True)[0]
    )


def test_chunk_scan_in_f32():
    r = Random(SEED, torch.float32)
    operands = _ssd_operands(r) | dict(D=r(4), z=r(2, 19, 4, 6), dt_bias=r(4), initial_states=r(2, 4, 6, 8))
    compare(
        lambda **o: ssd_combined.mamba_chunk_scan_combined(**o, chunk_size=8, dt_softplus=True, return_final_states=True),
        _ssd_reference,
        operands,
        SEED,
    )


def test_chunk_scan_of_halves():
    """bf16 operands are computed in f32 and rounded: 2^-8 of the result, and gradients of 19 steps of such operands."""
    r = Random(SEED, torch.bfloat16)
    operands = _ssd_operands(r)
    y, final = ssd_combined.mamba_chunk_scan_combined(**operands, chunk_size=8, dt_softplus=True, return_final_states=True)
    wanted = _ssd_reference(**{name: m.double() for name, m in operands.items()})
    assert y.dtype == torch.bfloat16 and final.dtype == torch.float32
    assert_close(y, wanted[0], "y", SEED, 2.0 ** -8)
    assert_close(final, wanted[1], "final state", SEED, 1e-6)


def test_chunk_scan_keeps_padding_out_of_states():
    """Tokens with a negative number change no state: the final state of a row that ends with padding is 0."""
    r = Random(SEED)
    seq_idx = torch.tensor([[0] * 12 + [-1] * 7, [0] * 19], dtype=torch.int32)
    y, final = ssd_combined.mamba_chunk_scan_combined(**_ssd_operands(r), chunk_size=8, dt_softplus=True, seq_idx=seq_idx,
                                                      return_final_states=True)
    assert float(final[0].abs().max()) == 0.0 and float(final[1].abs().max()) > 0.0


@pytest.mark.parametrize("with_seq_idx", [False, True])
@pytest.mark.parametrize("lengths", [(5, 1, 9, 4), (5, 0, 10), (19,)])
def test_varlen_states(lengths, with_seq_idx):
    r = Random(SEED)
    operands = _ssd_operands(r, nb=1)
    cuts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    seq_idx = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    seq_idx = torch.cat([seq_idx, torch.full((19 - seq_idx.numel(),), -1)]).to(torch.int32)[None]
    results = ssd_combined.mamba_chunk_scan_combined(
        **operands, chunk_size=8, dt_softplus=True, seq_idx=seq_idx if with_seq_idx else None, cu_seqlens=cuts,
        return_final_states=True, return_varlen_states=True)
    assert len(results) == 3
    for i, (start, end) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist())):
        part = {name: m if name == "A" else m[:, start:end] for name, m in operands.items()}
        if start == end:
            assert float(results[2][i].abs().max()) == 0.0
            continue
        y, final = _ssd_reference(**part)
        assert_close(results[2][i], final[0], f"state of sequence {i}", SEED)
        if with_seq_idx:
            assert_close(results[0][:, start:end], y, f"y of sequence {i}", SEED)
    if not with_seq_idx:  # cu_seqlens alone isolates nothing
        assert_close(results[0], _ssd_reference(**operands)[0], "y", SEED)
    pair = ssd_combined.mamba_chunk_scan_combined(**operands, chunk_size=8, dt_softplus=True, cu_seqlens=cuts,
                                                  return_varlen_states=True)
    assert len(pair) == 2 and torch.equal(pair[1], results[2])


def test_mamba_chunk_scan_is_the_combined_one():
    r = Random(SEED)
    operands = _ssd_operands(r) | dict(D=r(4), dt_bias=r(4))
    assert torch.equal(ssd_combined.mamba_chunk_scan(**operands, chunk_size=8, dt_softplus=True),
                       ssd_combined.mamba_chunk_scan_combined(**operands, chunk_size=8, dt_softplus=True))


@pytest.mark.parametrize("norm", [None, "before", "after"])
@pytest.mark.parametrize("d_form", ["h", "hp"])
@pytest.mark.parametrize("out_proj", [False, True])
def test_split_conv1d_scan(norm, d_form, out_proj):
    r = Random(SEED)
    nb, ns, nh, np, ng, nr, nd = 2, 13, 4, 6, 2, 5, 7
    ni, nv = nh * np, nh * np + 2 * ng * nr
    operands = dict(
        zxbcdt=r(nb, ns, ni + nv + nh),
        conv1d_weight=r(nv, 4),
        conv1d_bias=r(nv),
        dt_bias=r(nh),
        A=r.negative(nh),
        D=r(nh) if d_form == "h" else r(nh, np),
    )
    fixed = dict(chunk_size=8, headdim=np if d_form == "h" else None, ngroups=ng)
    if norm:
        operands["rmsnorm_weight"] = r(ni)
        fixed |= dict(rmsnorm_eps=1e-3, norm_before_gate=norm == "before")
    if out_proj:
        operands |= dict(outproj_weight=r(nd, ni), outproj_bias=r(nd))
    compare(lambda **o: ssd_combined.mamba_split_conv1d_scan_combined(**o, **fixed),
            lambda **o: references.mamba_split_conv1d_scan_ref(**o, **fixed), operands, SEED)


def test_split_conv1d_scan_with_an_mlp_and_states():
    """Columns z0 and x0 in front of the others, packed rows, limits, no activation, and the final states."""
    r = Random(SEED)
    nb, ns, nh, np, nr, n0, nd = 1, 13, 3, 4, 5, 2, 6
    ni, nv = nh * np, nh * np + 2 * nr
    seq_idx = torch.tensor([[0] * 6 + [1] * 7], dtype=torch.int32)
    operands = dict(
        zxbcdt=r(nb, ns, 2 * n0 + ni + nv + nh),
        conv1d_weight=r(nv, 3),
        dt_bias=r(nh),
        A=r.negative(nh),
        D=r(nh),
        rmsnorm_weight=r(ni),
        outproj_weight=r(nd, ni + n0),
        initial_states=r(nb, nh, np, nr),
    )
    fixed = dict(conv1d_bias=None, chunk_size=8, headdim=np, activation=None, dt_limit=(0.2, 0.9), return_final_states=True,
                 seq_idx=seq_idx, norm_before_gate=False, rmsnorm_eps=1e-5)

    def reference(zxbcdt, conv1d_weight, dt_bias, A, D, rmsnorm_weight, outproj_weight, initial_states):
        z0, x0, z, xbc, dt = zxbcdt.split([n0, n0, ni, nv, nh], dim=-1)
        xbc = torch.cat([references.causal_conv1d_ref(part.transpose(1, 2), conv1d_weight).transpose(1, 2)
                         for part in xbc.split([6, 7], dim=1)], dim=1)
        x, b, c = xbc.split([ni, nr, nr], dim=-1)
        y, final = _ssd_reference(
            x.unflatten(-1, (nh, np)),
            dt,
            A,
            b[:, :, None],
            c[:, :, None],
            D,
            None,
            dt_bias,
            initial_states,
            seq_idx,
            True,
            (0.2, 0.9),
        )
        y = references.rms_norm_gated_ref(y.flatten(2), rmsnorm_weight, None, z, 1e-5, ni, False)
        return F.linear(torch.cat([F.silu(z0) * x0, y], dim=-1), outproj_weight), final

    compare(lambda **o: ssd_combined.mamba_split_conv1d_scan_combined(**o, **fixed), reference, operands, SEED)


# ---- one token ----


def _step_operands(r, form, nb=3, nh=4, np=6, ng=2, nr=5):
    if form == "channels":
        return dict(state=r(nb, nh, nr), x=r(nb, nh), dt=r(nb, nh), A=r.negative(nh, nr), B=r(nb, nr), C=r(nb, nr), D=r(nh),
                    z=r(nb, nh), dt_bias=r(nh))
    operands = dict(state=r(nb, nh, np, nr), x=r(nb, nh, np), B=r(nb, ng, nr), C=r(nb, ng, nr), z=r(nb, nh, np))
    if form == "tied":
        return operands | dict(dt=r(nb, nh, 1).expand(nb, nh, np), A=r.negative(nh, 1, 1).expand(nh, np, nr),
                               D=r(nh, 1).expand(nh, np), dt_bias=r(nh, 1).expand(nh, np))
    if form == "tied_d_hp":
        return operands | dict(dt=r(nb, nh, 1).expand(nb, nh, np), A=r.negative(nh, 1, 1).expand(nh, np, nr), D=r(nh, np))
    return operands | dict(dt=r(nb, nh, np), A=r.negative(nh, np, nr), D=r(nh, np), dt_bias=r(nh, np))


@pytest.mark.parametrize("form", ["channels", "tied", "tied_d_hp", "untied"])
@pytest.mark.parametrize("absent", [(), ("D", "z", "dt_bias")])
def test_state_update(form, absent):
    operands = {name: m for name, m in _step_operands(Random(SEED), form).items() if name not in absent}
    mine, theirs = operands["state"].clone(), operands["state"].clone()
    address = mine.data_ptr()
    y = state_update.selective_state_update(**operands | dict(state=mine), dt_softplus=True)
    wanted = references.selective_state_update_ref(**operands | dict(state=theirs), dt_softplus=True)
    assert_close(y, wanted, "y", SEED)
    assert_close(mine, theirs, "state", SEED)
    assert mine.data_ptr() == address


@pytest.mark.parametrize("form", ["channels", "tied", "untied"])
@pytest.mark.parametrize("layout", ["strided", "indexed", "bf16"])
def test_state_update_of_other_states(form, layout):
    """States that the kernel cannot update in place, or that belong to other rows: the same numbers."""
    operands = _step_operands(Random(SEED, torch.float32), form)
    state = operands["state"]
    wanted_state = state.clone()
    indices = None
    if layout == "bf16":
        state = state.to(torch.bfloat16)
        wanted_state = state.float()
    if layout == "strided":
        state = torch.stack([state, state], dim=1)[:, 1]
    if layout == "indexed":
        pool = torch.zeros(5, *state.shape[1:])
        indices = torch.tensor([4, 0, 2], dtype=torch.int32)
        pool[indices.long()] = state
        state = pool
    y = state_update.selective_state_update(**operands | dict(state=state), dt_softplus=True, state_batch_indices=indices)
    wanted = references.selective_state_update_ref(**operands | dict(state=wanted_state), dt_softplus=True)
    assert_close(y, wanted, "y", SEED)
    found = state if indices is None else state[indices.long()]
    assert_close(found.float(), wanted_state, "state", SEED, 2.0 ** -8 if layout == "bf16" else None)
    if indices is not None:
        assert float(state[[1, 3]].abs().max()) == 0.0


def test_state_update_continues_the_scan():
    """Token by token the scan's results, as when a prompt is followed by generation."""
    r = Random(SEED)
    o = _ssd_operands(r) | dict(D=r(4), dt_bias=r(4))
    y, final = ssd_combined.mamba_chunk_scan_combined(**o, chunk_size=8, dt_softplus=True, return_final_states=True)
    state = torch.zeros(2, 4, 6, 8, dtype=torch.float64)
    for t in range(19):
        step = state_update.selective_state_update(
            state,
            o["x"][:, t],
            o["dt"][:, t, :, None].expand(-1, -1, 6),
            o["A"][:, None, None].expand(-1, 6, 8),
            o["B"][:, t],
            o["C"][:, t],
            o["D"][:, None].expand(-1, 6),
            dt_bias=o["dt_bias"][:, None].expand(-1, 6),
            dt_softplus=True,
        )
        assert_close(step, y[:, t], f"y of token {t}", SEED)
    assert_close(state, final, "state", SEED)


# ---- the convolution ----


@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("ns", [1, 2, 9])
def test_causal_conv(activation, k, ns):
    r = Random(SEED)
    operands = dict(x=r(2, 5, ns), weight=r(5, k), bias=r(5), initial_states=r(2, 5, k - 1))
    fixed = dict(activation=activation, return_final_states=True)
    compare(lambda **o: causal_conv.causal_conv1d_fn(**o, **fixed), lambda **o: references.causal_conv1d_ref(**o, **fixed),
            operands, SEED)
    plain = dict(x=operands["x"], weight=operands["weight"])
    compare(lambda **o: causal_conv.causal_conv1d_fn(**o, activation=activation),
            lambda **o: references.causal_conv1d_ref(**o, activation=activation), plain, SEED)


def test_causal_conv_writes_final_states():
    r = Random(SEED)
    x, weight, out = r(2, 5, 9), r(5, 4), r(2, 5, 3)
    y, final = causal_conv.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=out)
    assert final.data_ptr() == out.data_ptr() and torch.equal(out, x[..., -3:])


def test_causal_conv_of_packed_rows():
    r = Random(SEED)
    seq_idx = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2, 2], [5] * 9], dtype=torch.int32)
    operands = dict(x=r(2, 5, 9), weight=r(5, 4), bias=r(5))

    def reference(x, weight, bias):
        parts = [references.causal_conv1d_ref(p, weight, bias, activation="silu") for p in x[:1].split([3, 1, 5], dim=2)]
        return torch.cat([torch.cat(parts, dim=2), references.causal_conv1d_ref(x[1:], weight, bias, activation="silu")])

    compare(lambda **o: causal_conv.causal_conv1d_fn(**o, seq_idx=seq_idx, activation="silu"), reference, operands, SEED)


@pytest.mark.parametrize("length", [3, 4, 6])
@pytest.mark.parametrize("ns", [None, 1, 2, 7])
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_causal_conv_update(length, ns, ring, indexed):
    if ring and ns is not None and ns > length:
        pytest.skip("a ring buffer takes at most as many tokens as it has entries")
    r = Random(SEED)
    x, state, weight, bias = r(2, 5) if ns is None else r(2, 5, ns), r(2, 5, length), r(5, 4), r(5)
    seqlens = torch.tensor([3, 8], dtype=torch.int32) if ring else None
    wanted_state, mine, indices = state.clone(), state.clone(), None
    if indexed:
        mine = torch.zeros(4, 5, length, dtype=torch.float64)
        indices = torch.tensor([3, 1], dtype=torch.int32)
        mine[indices.long()] = state
    y = causal_conv.causal_conv1d_update(x, mine, weight, bias, "silu", seqlens, indices)
    wanted = references.causal_conv1d_update_ref(x, wanted_state, weight, bias, "silu", seqlens)
    assert_close(y, wanted, "y", SEED)
    assert_close(mine[indices.long()] if indexed else mine, wanted_state, "state", SEED)


def test_causal_conv_update_of_strided_states():
    """Channel-last memory, as the official cache has it."""
    r = Random(SEED, torch.float32)
    x, weight, bias = r(2, 5), r(5, 4), r(5)
    state = r(2, 4, 5).transpose(1, 2)
    wanted_state = state.clone()
    y = causal_conv.causal_conv1d_update(x, state, weight, bias, "silu")
    assert_close(y, references.causal_conv1d_update_ref(x, wanted_state, weight, bias, "silu"), "y", SEED)
    assert torch.equal(state, wanted_state)


def test_varlen_conv_states():
    r = Random(SEED)
    x, cuts = r(12, 5), torch.tensor([0, 2, 2, 9, 12], dtype=torch.int32)
    for length in (1, 3, 4):
        found = causal_conv.causal_conv1d_varlen_states(x, cuts, length)
        assert torch.equal(found, references.causal_conv1d_varlen_states_ref(x, cuts, length))


# ---- norms ----


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("case", ["plain", "residual", "x1", "rowscale", "second"])
@pytest.mark.parametrize("prenorm", [False, True])
def test_layer_norm(rms, case, prenorm):
    r = Random(SEED)
    operands = dict(x=r(3, 4, 6), weight=r(6), bias=r(6))
    if case != "plain":
        operands["residual"] = r(3, 4, 6)
    if case == "x1":
        operands["x1"] = r(3, 4, 6)
    if case == "rowscale":
        operands["rowscale"] = r(3, 4)
    if case == "second":
        operands |= dict(weight1=r(6), bias1=r(6))
    function = layer_norms.rms_norm_fn if rms else layer_norms.layer_norm_fn
    reference = references.rms_norm_ref if rms else references.layer_norm_ref
    compare(
        lambda **o: function(**o, eps=1e-3, prenorm=prenorm),
        lambda **o: reference(**o, eps=1e-3, prenorm=prenorm),
        operands,
        SEED,
    )


def test_layer_norm_types():
    """The sum is in the residual's type, or in f32 if asked for; the norm is of the unrounded sum, in the type of x."""
    r = Random(SEED, torch.bfloat16)
    x, residual, weight = r(3, 6), Random(SEED + 1, torch.float32)(3, 6), Random(SEED, torch.float32)(6)
    y, total = layer_norms.rms_norm_fn(x, weight, None, residual=residual, prenorm=True)
    assert y.dtype == torch.bfloat16 and total.dtype == torch.float32
    assert_close(y, references.rms_norm_ref(x.double() + residual.double(), weight.double(), None), "y", SEED, 2.0 ** -8)
    assert layer_norms.rms_norm_fn(x, weight, None, prenorm=True)[1].dtype == torch.bfloat16
    assert layer_norms.rms_norm_fn(x, weight, None, prenorm=True, residual_in_fp32=True)[1].dtype == torch.float32


def test_dropout_masks():
    """The masks say which elements were kept; the others are scaled."""
    torch.manual_seed(SEED)
    x, residual, weight = torch.ones(40, 50), torch.zeros(40, 50), torch.ones(50)
    y, total, mask, mask1 = layer_norms.layer_norm_fn(x, weight, None, residual=residual, dropout_p=0.25, prenorm=True,
                                                      return_dropout_mask=True)
    assert mask1 is None and mask.dtype == torch.bool
    assert torch.equal(total, mask.float() / 0.75)
    assert abs(float(mask.float().mean()) - 0.75) < 0.05  # 2000 elements: five standard deviations


def test_norm_and_linear():
    r = Random(SEED)
    operands = dict(x=r(3, 6), norm_weight=r(6), norm_bias=r(6), linear_weight=r(4, 6), linear_bias=r(4), residual=r(3, 6))

    def reference(x, norm_weight, norm_bias, linear_weight, linear_bias, residual):
        y, total = references.rms_norm_ref(x, norm_weight, norm_bias, residual, prenorm=True)
        return F.linear(y, linear_weight, linear_bias), total

    compare(lambda **o: layer_norms.layer_norm_linear_fn(**o, prenorm=True, is_rms_norm=True), reference, operands, SEED)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("gate", [None, "before", "after"])
@pytest.mark.parametrize("group_size", [None, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_gated_norm(rms, gate, group_size, bias):
    r = Random(SEED)
    operands = dict(x=r(3, 5, 8), weight=r(8))
    if gate:
        operands["z"] = r(3, 5, 8)
    if bias:
        operands["bias"] = r(8)
    fixed = dict(eps=1e-3, group_size=group_size, norm_before_gate=gate != "after")

    def reference(x, weight, bias=None, z=None):
        if rms:
            return references.rms_norm_gated_ref(x, weight, bias, z, **fixed)
        x = x if z is None or fixed["norm_before_gate"] else x * F.silu(z)
        groups = x.unflatten(-1, (-1, group_size or 8))
        y = F.layer_norm(groups, groups.shape[-1:], eps=1e-3).flatten(-2) * weight
        y = y if bias is None else y + bias
        return y * F.silu(z) if z is not None and fixed["norm_before_gate"] else y

    function = layer_norms.gated_rmsnorm_fn if rms else layer_norms.gated_layernorm_fn
    compare(lambda **o: function(**{"bias": None} | o, **fixed), reference, operands, SEED)


def test_norm_modules():
    x, residual, z = torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 8)
    norm = layer_norms.RMSNorm(8)
    assert set(norm.state_dict()) == {"weight"}
    y, total = norm(x, residual, prenorm=True)
    assert_close(y, references.rms_norm_ref(x, norm.weight, None, residual, eps=1e-5), "y", SEED)
    gated = layer_norms.GatedRMSNorm(8, group_size=4, norm_before_gate=False)
    assert set(gated.state_dict()) == {"weight"}
    assert_close(gated(x, z), references.rms_norm_gated_ref(x, gated.weight, None, z, 1e-5, 4, False), "gated", SEED)
    assert set(layer_norms.GatedLayerNorm(8).state_dict()) == {"weight", "bias"}


# ---- errors ----


def test_refusals_name_what_is_refused():
    r = Random(SEED, torch.float32)
    u, A, B = r(1, 2, 3), r.negative(2, 2), r(1, 2, 3)
    with pytest.raises(
        NotImplementedError, match="selective_scan_fn: A, B or C is complex .*complex64.*Krait's scan is real"
    ):
        selective_scan.selective_scan_fn(u, u, A.to(torch.complex64), B, B)
    operands = _ssd_operands(r)
    with pytest.raises(NotImplementedError, match="state_dtype is torch.bfloat16, but Krait keeps states in torch.float32"):
        ssd_combined.mamba_chunk_scan_combined(**operands, chunk_size=8, state_dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="return_varlen_states needs cu_seqlens"):
        ssd_combined.mamba_chunk_scan_combined(**operands, chunk_size=8, return_varlen_states=True)
    with pytest.raises(ValueError, match="cu_seqlens needs one row, but x has 2"):
        ssd_combined.mamba_chunk_scan_combined(**operands, chunk_size=8, return_varlen_states=True,
                                               cu_seqlens=torch.tensor([0, 19]))
    with pytest.raises(ValueError, match="D has one axis, so headdim must be given"):
        ssd_combined.mamba_split_conv1d_scan_combined(r(1, 3, 20), r(8, 4), None, r(2), r.negative(2), r(2), 8)
    with pytest.raises(
        ValueError,
        match="zxbcdt has 20 columns, but 2 heads of 4 channels and a convolution of 12 channels in 1 " "groups need 22",
    ):
        ssd_combined.mamba_split_conv1d_scan_combined(r(1, 3, 20), r(12, 4), None, r(2), r.negative(2), r(2), 8, headdim=4)
    with pytest.raises(
        NotImplementedError, match="causal_conv1d_fn: activation is 'relu', but must be None, 'silu' or 'swish'"
    ):
        causal_conv.causal_conv1d_fn(r(1, 2, 3), r(2, 4), activation="relu")
    with pytest.raises(ValueError, match="conv_state holds 2 inputs, but weight has 4 taps and needs at least 3"):
        causal_conv.causal_conv1d_update(r(1, 2), r(1, 2, 2), r(2, 4))
    step = _step_operands(Random(SEED), "tied")
    with pytest.raises(
        ValueError, match=r"selective_state_update: B has shape \[3, 2, 4\], but with x \[b h p\] = \[3, 4, 6\]"
    ):
        state_update.selective_state_update(**step | dict(B=step["B"][..., :4]))
