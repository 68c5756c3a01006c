"""krait.Model, krait.load and krait.new."""

from __future__ import annotations

import json
import operator
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, Unpack, overload

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import floats, integers, owned
from ._contexts import default_context
from ._generate import Generated, GenerateOptions, Generation, Prompt, is_one_prompt
from ._params import Params, empty_gradients
from ._state import State
from ._tokenizer import Tokenizer

if TYPE_CHECKING:
    from ._models import Evaluation

Array = npt.NDArray[Any]
Bytes = bytes | bytearray | memoryview

# Short names of the fields of a config, as the program has them.
ALIASES = {
    "layers": "n_layers",
    "vocab": "vocab_size",
    "d_state": "state_rank",
    "d_conv": "conv_kernel",
    "head_dim": "per_head_dim",
    "groups": "n_groups",
    "mlp": "d_intermediate",
    "virtual_layers": "n_virtual",
    "streams": "n_stream",
}

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>")
SPECIAL = ("eos", "bos", "start")


def _has_byte_vocabulary(size: int) -> bool:
    return 256 <= size <= 264


def _count(n: int) -> str:
    for scale, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if n >= scale:
            value = n / scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return str(n)


class Model:
    """A language model, or a network of features, with its state functions, gradients and text generation.

    krait.load loads one from a folder, krait.new creates one. Axes: b rows, s tokens, w logits (the vocabulary with its
    padding), d width. Methods of one model may be called by several threads, one after another; for calls at the same
    time see share.

    >>> import krait
    >>> m = krait.new("mamba2", d_model=16, n_layers=2, vocab_size=256, state_rank=8, per_head_dim=8, seed=1)
    >>> m.logits([[72, 105]]).shape
    (1, 2, 256)
    """

    def __init__(self, core: _core.Model, source: list[Any], tokenizer: Tokenizer | None) -> None:
        self._core = core
        self._info = core.info()
        # Folder and type from which the weights come; emptied when they are written. Shared models have one list.
        self._source: list[Any] = source
        self._tokenizer = tokenizer
        self.params = Params(core.params(), source.clear)
        self._find_eos()

    def _find_eos(self) -> None:
        """Model files without EOS: the tokens of the tokenizer that usually end a text, as the C library has it."""
        if not self._info["eos"] and self._tokenizer is not None:
            found = (self._tokenizer.find(text) for text in END_OF_TEXT)
            self._info["eos"] = [id for id in found if id is not None]

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if there is none. It may be set."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        if tokenizer is not None and self.vocab_size and tokenizer.vocab_size > self.vocab_size:
            raise _core.ArgumentError(
                f"model.tokenizer: the tokenizer has {tokenizer.vocab_size} tokens, but the model has {self.vocab_size}"
            )
        self._tokenizer = tokenizer
        self._find_eos()

    # ---- facts ----

    @property
    def family(self) -> str:
        """'mamba1', 'mamba2' or 'mamba3'."""
        return str(self._info["family"])

    @property
    def n_layers(self) -> int:
        """Layers with weights of their own."""
        return int(self._info["n_layers"])

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return int(self._info["d_model"])

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, without padding; 0 for a network of features."""
        return int(self._info["vocab_size"])

    @property
    def width(self) -> int:
        """Width of the outputs: the vocabulary with its padding, or the number of output features."""
        return int(self._info["width"])

    @property
    def parameters(self) -> int:
        """Number of elements of all weights."""
        return int(self._info["parameters"])

    @property
    def grid(self) -> int:
        """A text may be cut at multiples of this many tokens without changing a bit; 0: nowhere."""
        return int(self._info["grid"])

    @property
    def eos(self) -> list[int]:
        """Ids that end a text."""
        return list(self._info["eos"])

    @property
    def context(self) -> _core.Context:
        """The context: device, threads and memory."""
        return self._core.context

    @property
    def device(self) -> str:
        """'cpu', or 'cuda:0' and the name of the GPU."""
        return self._core.context.device

    @property
    def config(self) -> dict[str, Any]:
        """config.json as a dict, in the layout from which the model was loaded.

        >>> import krait
        >>> krait.new("mamba2", d_model=16, n_layers=2, vocab_size=256, per_head_dim=8).config["n_layer"]
        2
        """
        config: dict[str, Any] = json.loads(self._core.config(None))
        return config

    def config_text(self, layout: Literal["official", "hf"] | None = None) -> str:
        """The text of config.json in a layout."""
        return self._core.config(layout)

    def memory(self) -> dict[str, int]:
        """Bytes of the weights, of one row of a state, and of a prompt token.

        >>> import krait
        >>> sorted(krait.new("mamba1", d_model=16, n_layers=1, vocab_size=256).memory())
        ['parameters', 'prefill_bytes', 'state_bytes', 'weight_bytes']
        """
        sizes: dict[str, int] = _core.create_model(self.context, json=self._core.config(None), measure=True)
        return sizes

    def __repr__(self) -> str:
        c = self.context
        device = f"{c.device} {c.isa}" if c.device == "cpu" else c.device
        layers = f"{self.n_layers} layer{'' if self.n_layers == 1 else 's'}"
        return (
            f"{self.family} · {layers} · d {self.d_model} · {_count(self.parameters)} parameters · "
            f"{device} ×{c.threads}"
        )

    # ---- calls ----

    def _input(self, tape: _core.Tape, x: Any) -> _core.Array:
        if self.vocab_size:
            return tape.view(integers("ids", x))
        plain, kind = floats("x", x)
        return tape.view(plain, kind)

    def _call(
        self, kind: str, x: Any, state: State | None, marks: Mapping[str, Any], **options: Any
    ) -> tuple[Array, Array, State | None]:
        tape = _core.Tape(self.context)
        operands: dict[str, Any] = dict(options)
        for name, mark in marks.items():
            if mark is not None:
                operands[name] = tape.view(integers(name, mark))
        y, hidden, new = self._core.call(
            tape, kind, self._input(tape, x), state._core if state is not None else None, **operands
        )
        result = owned(y) if y is not None else np.empty(0)
        kept = state if options.get("in_place") else State(new, self) if new is not None else None
        return result, owned(hidden) if options.get("drop_state") and hidden is not None else result, kept

    def logits(
        self, ids: npt.ArrayLike, *, last: bool = False, mask: npt.ArrayLike | None = None
    ) -> Array:
        """The logits of ids [b s]: float32 [b s w]; with last=True those of the last token, [b w].

        mask [b s]: 0 for padding. For a network of features: its outputs.

        >>> import krait
        >>> m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=300, state_rank=8, per_head_dim=8)
        >>> m.logits([[1, 2], [3, 4]], last=True).shape
        (2, 304)
        """
        return self._call("forward", ids, None, {"mask": mask}, last=last, drop_state=True)[0]

    def hidden(self, ids: npt.ArrayLike, *, mask: npt.ArrayLike | None = None) -> Array:
        """The input of the head for ids [b s]: the residual stream after the final norm, [b s d]."""
        return self._call("forward", ids, None, {"mask": mask}, drop_state=True)[1]

    def state(self, batch: int = 1) -> State:
        """An initial state.

        >>> import krait
        >>> krait.new("mamba1", d_model=16, n_layers=1, vocab_size=256).state(3).is_initial
        True
        """
        return State(self._core.state(batch), self)

    def forward(
        self,
        ids: npt.ArrayLike,
        state: State | None = None,
        *,
        last: bool = False,
        mask: npt.ArrayLike | None = None,
        seq_start: npt.ArrayLike | None = None,
        cu_seqlens: npt.ArrayLike | None = None,
        reset: npt.ArrayLike | None = None,
    ) -> tuple[Array, State]:
        """Reads ids [b s] after `state` (None: the beginning) and returns the logits and the new state.

        Any way to cut a text gives the same results as the whole. mask [b s]: 0 for padding. seq_start [b s]: nonzero
        where a sequence begins within a row; cu_seqlens [q+1]: the same as cumulative lengths; the state then has a row
        for each sequence. reset [b s]: nonzero where the state is cleared before the token.

        >>> import krait, numpy as np
        >>> m = krait.new("mamba3", d_model=16, n_layers=1, vocab_size=256, state_rank=8, per_head_dim=8)
        >>> whole, _ = m.forward([[1, 2, 3, 4]])
        >>> first, s = m.forward([[1, 2]])
        >>> rest, s = m.forward([[3, 4]], s)
        >>> bool(np.allclose(whole, np.concatenate([first, rest], axis=1), atol=1e-5))
        True
        """
        marks = {"mask": mask, "seq_start": seq_start, "cu_seqlens": cu_seqlens, "reset": reset}
        y, _, new = self._call("forward", ids, state, marks, last=last)
        assert new is not None
        return y, new

    def step(self, ids: npt.ArrayLike, state: State | None = None, *, in_place: bool = False) -> tuple[Array, State]:
        """Reads one token for each row, ids [b], and returns the logits [b w] and the new state.

        in_place=True changes `state` itself, without a copy; it must have no arrays in use.

        >>> import krait
        >>> m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=256, state_rank=8, per_head_dim=8)
        >>> y, s = m.step([1, 2])
        >>> y, s = m.step([3, 4], s, in_place=True)
        >>> y.shape
        (2, 256)
        """
        y, _, new = self._call("step", ids, state, {}, in_place=in_place)
        assert new is not None
        return y, new

    def step_infinite(self, ids: npt.ArrayLike) -> Array:
        """The limit of the outputs of step when each row's token, ids [b], is repeated forever."""
        return self._call("step_infinite", ids, None, {})[0]

    # ---- loss and gradients ----

    def _loss(self, out: list[Array] | None, ids: Any, labels: Any, options: dict[str, Any]) -> tuple[float, int, int]:
        tape = _core.Tape(self.context, grad=out is not None)
        named: dict[str, Any] = {"ids" if self.vocab_size else "x": self._input(tape, ids)}
        if labels is not None:
            if self.vocab_size:
                named["labels"] = tape.view(integers("labels", labels))
            else:
                named["targets"] = tape.view(*floats("targets", labels))
        for name in ("scored", "mask", "seq_start", "cu_seqlens", "reset"):
            mark = options.pop(name, None)
            if mark is not None:
                named[name] = tape.view(integers(name, mark))
        state = options.pop("state", None)
        return self._core.loss(tape, state=state._core if state is not None else None, out=out, **named, **options)

    def loss(self, ids: npt.ArrayLike, labels: npt.ArrayLike | None = None, **options: Any) -> float:
        """The mean cross-entropy of ids [b s]; see loss_and_grads for the options."""
        return self._loss(None, ids, labels, options)[0]

    def loss_and_grads(
        self, ids: npt.ArrayLike, labels: npt.ArrayLike | None = None, **options: Any
    ) -> tuple[float, dict[str, Array]]:
        """The loss of ids [b s] and its gradient for each weight.

        labels [b s]; None: the next token of the row. Labels of ignore_index (-100) and positions where `scored` [b s] is
        0 do not count. Further options: mask, seq_start, cu_seqlens, reset, state, dropout, label_smoothing; and for
        networks of features, whose labels are targets: kind, 'mse', 'l1', 'huber', 'quantile', 'bce' or
        'soft_cross_entropy'.

        >>> import krait
        >>> m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=256, state_rank=8, per_head_dim=8)
        >>> loss, grads = m.loss_and_grads([[1, 2, 3, 4]])
        >>> round(loss, 1), grads["backbone.norm_f.weight"].shape
        (5.5, (16,))
        """
        grads = empty_gradients(self.params._core)
        loss, _, _ = self._loss(list(grads.values()), ids, labels, options)
        return loss, grads

    def eval(self, data: Any, **options: Any) -> Evaluation:
        """How well the model predicts each token of a text from all tokens before it; krait.eval describes the options.

        >>> import krait
        >>> m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=256, state_rank=8, per_head_dim=8)
        >>> m.eval(krait.data.string("to be, or not to be")).tokens
        18
        """
        from ._models import eval as evaluate

        return evaluate(self, data, **options)

    # ---- text ----

    @overload
    def generate(
        self, prompt: str | bytes, *, stream: Literal[False], samples: Literal[1] = ..., max_rows: int = ...,
        **options: Unpack[GenerateOptions],
    ) -> Generated: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, stream: Literal[True] = ..., samples: int = ...,
        max_rows: int = ..., **options: Unpack[GenerateOptions],
    ) -> Generation: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Prompt | Sequence[Prompt], *, stream: bool, samples: int = ..., max_rows: int = ...,
        **options: Unpack[GenerateOptions],
    ) -> Any: ...  # fmt: skip

    def generate(self, prompt: Any, *, stream: bool = True, samples: int = 1, max_rows: int = 32, **options: Any) -> Any:
        """Continues a prompt: a text, or a row of ids; or several prompts, a list of them.

        stream=True gives a Generation, an iterator of pieces of text; of (row, piece) for several prompts or samples.
        stream=False generates to the end and returns a Generated, or a list of them.

        samples: continuations of each prompt. max_rows: rows that generate at the same time; others wait. Options:

        max_tokens (256; -1: until a stop), temperature (1; 0: greedy), top_k (0: off), top_p (1), min_p (0),
        repetition_penalty (1), presence_penalty (0), frequency_penalty (0), seed (0).
        logit_bias: dict of id and bias; -inf: never. stop: a text, or several, that end a row and are no part of it.
        stop_ids: ids that end a row, besides those of model.eos. ignore_eos (False): EOS does not end it.
        top_logprobs (0): that many probable tokens at each position. score_prompt (False): log-probabilities of the
        prompt's tokens. process: a function of (ids, logits) that changes the logits in place, or returns new ones.
        constrain: a function of (ids) that returns the ids that may come next, or a mask of the vocabulary. ids are the
        tokens generated so far. random_stream: number of the random stream of the seed; by default that of the row.

        >>> import krait
        >>> m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=256, state_rank=8, per_head_dim=8, seed=3)
        >>> r = m.generate("Once", max_tokens=4, temperature=0, stream=False)
        >>> len(r.ids), r.finish
        (4, 'length')
        >>> m.generate("a", constrain=lambda ids: [120], max_tokens=3, stream=False).text
        'xxx'
        """
        is_single = is_one_prompt(prompt)
        prompts = [prompt] if is_single else list(prompt)
        is_single = is_single and samples == 1
        generation = Generation(self, is_single=is_single, max_rows=max_rows)
        for one in prompts:
            for _ in range(samples):
                generation.add(one, **options)
        if stream:
            return generation
        results = generation.run()
        return results[0] if is_single else results

    # ---- files, threads, pickle ----

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        layout: Literal["official", "hf"] | None = None,
        dtype: Literal["f32", "f64", "bf16", "f16"] | None = None,
        container: Literal["safetensors", "torch"] | None = None,
        max_shard_bytes: int = 0,
    ) -> None:
        """Writes config.json, the weights, and the tokenizer if there is one.

        layout: 'official' or 'hf' (transformers); None: as loaded. dtype: of the matrices.
        """
        self._core.save(
            folder, layout=layout, dtype=dtype, container=container, max_shard_bytes=max_shard_bytes
        )
        if self.tokenizer is not None:
            self.tokenizer.save(folder)

    def load_state(self, source: str | os.PathLike[str] | Bytes) -> State:
        """A state from a file of State.save, or from the bytes of State.to_bytes."""
        if isinstance(source, (str, os.PathLike)):
            return State(self._core.load_state(source), self)
        return State(self._core.load_state_memory(source), self)

    def share(self, context: _core.Context | None = None, *, threads: int = 1) -> Model:
        """A model over the same weights in another context, for another thread; None: a new context.

        Weights exist once. While they are shared they cannot be written, packed or trained.

        >>> import krait
        >>> m = krait.new("mamba1", d_model=16, n_layers=1, vocab_size=256)
        >>> m.share(threads=1).context.threads
        1
        """
        if context is None:
            context = _core.Context(device=self.device.split()[0], threads=threads)
        return Model(self._core.share(context), self._source, self.tokenizer)

    def _special(self) -> dict[str, Any]:
        return {name: self._info[name] for name in SPECIAL}

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        if self._source:
            return (_unpickle_folder, (*self._source, self.tokenizer, self._special()))
        config, weights = self._core.to_bytes()
        # From protocol 5 on the weights may travel next to the pickle, without a copy.
        data = pickle.PickleBuffer(weights) if operator.index(protocol) >= 5 else weights
        return (_unpickle_memory, (config, data, self.tokenizer, self._special()))

    def __copy__(self) -> Model:
        return self

    def __deepcopy__(self, memo: Any) -> Model:
        return _unpickle_memory(*self._core.to_bytes(), self.tokenizer, self._special())


def _unpickle_folder(folder: str, dtype: str | None, tokenizer: Tokenizer | None, special: dict[str, Any]) -> Model:
    made = load(folder, dtype=dtype, tokenizer=False)
    made._info.update(special)
    made.tokenizer = tokenizer
    return made


def _unpickle_memory(
    config: Bytes, weights: Bytes, tokenizer: Tokenizer | None, special: dict[str, Any]
) -> Model:
    made = Model(_core.load_model_memory(default_context(), config, weights), [], tokenizer)
    made._info.update(special)
    return made


def load(
    folder: str | os.PathLike[str],
    *,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    precision: str | None = None,
    tokenizer: str | os.PathLike[str] | Tokenizer | Literal[False] | None = None,
    context: _core.Context | None = None,
    mmap: bool = True,
) -> Model:
    """Loads a model folder: of the official implementation, of Hugging Face transformers, or of Krait.

    device: 'cpu', 'cuda' or 'cuda:1'. dtype: of the matrices in memory, 'f32', 'bf16', 'f16' or 'f64'; None: as stored.
    threads: 0 or None is one per CPU. precision: 'exact', 'tf32' or 'bf16', of products on a GPU. tokenizer: a
    tokenizer.json, 'bytes', a Tokenizer, or False for none; None: that of the folder. mmap: weights are read where they
    lie in the file, if they need no conversion. Models of the same device, threads and precision share a context.
    """
    made = default_context(device, threads, precision, context)
    path = os.path.abspath(folder)
    file = os.path.join(path, "tokenizer.json")
    if tokenizer is None and os.path.exists(file):
        tokenizer = file
    if isinstance(tokenizer, (str, os.PathLike)):
        core = _core.load_model(made, folder, tokenizer=os.fspath(tokenizer), dtype=dtype, mmap=mmap)
        words = core.tokenizer()
        assert words is not None
        is_bytes = os.fspath(tokenizer) == "bytes"
        source = ("bytes", None) if is_bytes else ("path", os.path.abspath(tokenizer))
        return Model(core, [path, dtype], Tokenizer(words, source))
    core = _core.load_model(made, folder, tokenizer="", dtype=dtype, mmap=mmap)
    if tokenizer is None and _has_byte_vocabulary(core.info()["vocab_size"]):
        tokenizer = Tokenizer.bytes()
    return Model(core, [path, dtype], tokenizer or None)


def new(
    family: str | None = None,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    seed: int = 0,
    device: str | None = None,
    threads: int | None = None,
    precision: str | None = None,
    tokenizer: Tokenizer | None = None,
    context: _core.Context | None = None,
    **fields: Any,
) -> Model:
    """Creates a model with random weights.

    family: 'mamba1', 'mamba2' (the default) or 'mamba3'. config: a config.json, its path or its contents, with which the
    fields begin. Fields are those of the C structs (docs/networks.md), such as d_model, n_layers, vocab_size, state_rank,
    per_head_dim, expand, tie_embeddings; short names as in the program: layers, vocab, d_state, d_conv, head_dim, groups,
    mlp. input_size and output_size instead of vocab_size give a network of features.

    >>> import krait
    >>> krait.new("mamba3", d_model=32, layers=2, vocab=256, d_state=16, head_dim=16, threads=1).parameters
    23984
    """
    text = None
    if isinstance(config, Mapping):
        text = json.dumps(config)
    elif config is not None:
        if os.path.isdir(config):
            config = os.path.join(config, "config.json")
        with open(config, encoding="utf-8") as file:
            text = file.read()
    named = {ALIASES.get(name, name): value for name, value in fields.items()}
    if len(named) < len(fields):
        raise TypeError("new: a field is given by both of its names")
    made = default_context(device, threads, precision, context)
    made.seed(seed)
    core = _core.create_model(made, family=family, json=text, fields=named)
    if tokenizer is None and _has_byte_vocabulary(core.info()["vocab_size"]):
        tokenizer = Tokenizer.bytes()
    return Model(core, [], tokenizer)
