"""mamba_ssm.utils.generation: sampling and greedy generation with the official arguments."""

from __future__ import annotations

import time
from collections import namedtuple
from dataclasses import dataclass, field

import torch

GenerateOutput = namedtuple("GenerateOutput", ["sequences", "scores"])


@dataclass
class InferenceParams:
    """What a generation passes to the modules: where it is, and the states of the layers by their index."""

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict = field(default_factory=dict)
    lengths_per_sample: torch.Tensor | None = None

    def reset(self, max_seqlen, max_batch_size):
        self.max_seqlen, self.max_batch_size, self.seqlen_offset = max_seqlen, max_batch_size, 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


# The filters change logits [.. vocab] in place.


def modify_logits_for_min_p_filtering(logits, min_p):
    """Drops what is less likely than min_p times the most likely token. The official function compares logits with min_p."""
    if 0.0 < min_p < 1.0:
        best = logits.amax(dim=-1, keepdim=True)
        logits.masked_fill_(logits < best + torch.log(torch.tensor(min_p, dtype=torch.float32)).item(), float("-inf"))


def modify_logits_for_top_k_filtering(logits, top_k):
    """Keeps the top_k largest, and those equal to the last of them."""
    least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1:]
    logits.masked_fill_(logits < least, float("-inf"))


def modify_logits_for_top_p_filtering(logits, top_p):
    """Keeps the most likely tokens whose probabilities add up to top_p, at least one. No effect at 0 and from 1 on."""
    if not 0.0 < top_p < 1.0:
        return
    ordered, order = logits.sort(dim=-1, descending=True)
    before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, order, before >= top_p)
    logits.masked_fill_(dropped, float("-inf"))


def modify_logit_for_repetition_penalty(logits, prev_output_tokens, repetition_penalty=1.0):
    """Logits of tokens that occurred, prev_output_tokens [b s], divided by the penalty if positive, else multiplied by
    it."""
    if repetition_penalty == 1.0:
        return logits
    occurred = logits.gather(-1, prev_output_tokens)
    changed = torch.where(occurred < 0, occurred * repetition_penalty, occurred / repetition_penalty)
    return logits.scatter(-1, prev_output_tokens, changed)


def sample(logits, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0):
    """One token a row of logits [b vocab]. top_k 1: the best one; 0: no limit. min_p counts only if top_k is 0."""
    if top_k == 1:
        return logits.argmax(dim=-1)
    if top_p > 1.0:
        raise ValueError(f"sample: top_p is {top_p}, but must be at most 1")
    logits = logits / temperature
    if top_k > 0:
        modify_logits_for_top_k_filtering(logits, top_k)
        modify_logits_for_top_p_filtering(logits, top_p)
    elif min_p > 0.0:
        modify_logits_for_min_p_filtering(logits, min_p)
    else:
        modify_logits_for_top_p_filtering(logits, top_p)
    return torch.multinomial(logits.softmax(dim=-1), num_samples=1).squeeze(-1)


def _check_graph(cg, device):
    if cg and device.type != "cpu":
        raise NotImplementedError(
            "decode: cg=True records the step in a CUDA graph, which krait.compat does not do; leave it False"
        )


class _Decoding:
    """The state of one call of decode()."""

    def __init__(self, model, input_ids, max_length, vocab_size):
        self.model, self.vocab_size, self.max_length = model, vocab_size, max_length
        self.params = InferenceParams(max_seqlen=max_length, max_batch_size=input_ids.shape[0])

    def logits(self, ids):
        """Of the token after ids, which come behind all before; counts them."""
        found = self.model(ids, inference_params=self.params, num_last_tokens=1).logits.squeeze(1)
        self.params.seqlen_offset += ids.shape[1]
        return found if self.vocab_size is None else found[..., :self.vocab_size]

    def is_over(self, token, eos_token_id):
        if self.params.seqlen_offset == 0:
            return False
        if eos_token_id is not None and bool((token == eos_token_id).all()):
            return True
        return self.params.seqlen_offset >= self.max_length - 1


@torch.inference_mode()
def decode(input_ids, model, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0, repetition_penalty=1.0,
           eos_token_id=None, teacher_outputs=None, vocab_size=None, cg=False, enable_timing=False, output_scores=False,
           streamer=None):
    """Continues input_ids [b s] to max_length tokens, or until all rows are at eos_token_id.

    teacher_outputs [b s]: tokens to take instead of sampled ones, as far as they reach. streamer: an object with put() and
    end(). enable_timing prints the time of the call. cg has no effect on a CPU and is refused on a GPU. Returns
    sequences [b s] and, with output_scores, the logits before each token.
    """
    _check_graph(cg, input_ids.device)
    begin = time.perf_counter()
    state = _Decoding(model, input_ids, max_length, vocab_size)
    taught = 0 if teacher_outputs is None else teacher_outputs.shape[1]
    if streamer is not None:
        streamer.put(input_ids.cpu())
    scores, sequences, latest = [], input_ids, input_ids
    while not state.is_over(latest, eos_token_id):
        logits = state.logits(latest)
        if output_scores:
            scores.append(logits.clone())
        at = state.params.seqlen_offset
        if at < taught:
            latest = teacher_outputs[:, at:at + 1]
        else:
            logits = modify_logit_for_repetition_penalty(logits, sequences, repetition_penalty)
            latest = sample(logits, top_k, top_p, min_p, temperature)[:, None]
        sequences = torch.cat([sequences, latest], dim=1)
        if streamer is not None:
            streamer.put(latest.cpu())
    if streamer is not None:
        streamer.end()
    if enable_timing:
        print(f"prompt and decoding: {1000 * (time.perf_counter() - begin):.0f} ms")
    return GenerateOutput(sequences, tuple(scores) if output_scores else None)


class GenerationMixin:
    """generate() for a model with allocate_inference_cache() and inference_params."""

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} has no allocate_inference_cache, which generate() needs")

    def generate(self, input_ids, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0, return_dict_in_generate=False,
                 output_scores=False, **kwargs):
        """decode() with this model; the sequences alone, unless return_dict_in_generate is set."""
        output = decode(input_ids, self, max_length, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature,
                        output_scores=output_scores, **kwargs)
        return output if return_dict_in_generate else output.sequences
