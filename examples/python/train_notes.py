"""Trains a byte-level Mamba-3 on a text, stops, resumes, evaluates and generates. Run it: python train_notes.py [FILE]"""

import sys
import tempfile

import krait

TEXT = "She sells sea shells on the sea shore; the shells she sells are sea shells, I am sure. " * 60
data = krait.data.text(sys.argv[1]) if len(sys.argv) > 1 else krait.data.string(TEXT)
folder = tempfile.mkdtemp()


def on_step(progress: krait.Progress) -> bool:
    """Ends the first part after 30 steps."""
    return progress.step < 30


options = dict(family="mamba3", d_model=48, layers=2, d_state=16, head_dim=16, batch=4, length=64, lr=5e-3)
run = krait.train(data, out=f"{folder}/run", steps=60, on_step=on_step, **options)
run = run.resume()
print(f"loss {run.metrics['loss'][0]:.2f} -> {run.metrics['loss'][-1]:.2f}")
print(run.model.eval(data))
print(run.model.generate("She sells ", max_tokens=40, temperature=0.5, seed=3, stream=False).text)
