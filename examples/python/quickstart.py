"""A model with random weights: logits, a state, the gradient of a loss, text. Run it: python quickstart.py"""

import numpy as np

import krait

m = krait.new("mamba3", d_model=64, layers=2, vocab=256, d_state=16, head_dim=16, seed=1)
print(m)

ids = np.frombuffer(b"to be, or not to be", dtype=np.uint8).astype(np.int32)[None]
whole, _ = m.forward(ids)  # 19 tokens in parallel
part, state = m.forward(ids[:, :10])
for token in ids[0, 10:]:
    last, state = m.step([token], state)  # the rest one by one, in constant memory
print(f"largest difference {np.abs(whole[:, -1] - last).max():.1e}, state of {state.nbytes} bytes")

loss, grads = m.loss_and_grads(ids)
print(f"loss {loss:.3f}, gradients of {len(grads)} weights")

for piece in m.generate("to be", max_tokens=8, temperature=0.8, seed=1):
    print(repr(piece), end=" ")
print()
