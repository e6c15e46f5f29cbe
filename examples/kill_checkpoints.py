"""Kills fits at random moments, mostly while they save, and checks that nothing is lost.

Every fit is killed and started again many times over. A start must go on after the last epoch that was begun before
the kill, and the fit must end with the very bits of one that was never interrupted. Prints what happened for every
way to fit, and exits with 1 unless nothing was lost and all was equal. Half an hour on two cores.

    python examples/kill_checkpoints.py --kills 52
"""

import argparse
import hashlib
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

EPOCHS = 300
WAYS = ("factor", "joint", "adam", "auto")


def fit(way: str, folder: pathlib.Path) -> None:
    """What is killed: fits, tells each epoch it begins, and at last writes down what came out."""
    import keras
    import numpy as np
    from sklearn.datasets import load_digits

    import keras_bilinear as kb

    keras.utils.set_random_seed(0)
    x, y = load_digits().images[:600] / 16, load_digits().target[:600]
    optimizers = {
        "factor": kb.BlockLineSearch("gradient_descent", blocks="factor", max_inner=1, tolerance=0.0),
        "adam": keras.optimizers.Adam(1e-3),
    }
    exact = kb.BlockLineSearch(max_inner=1, tolerance=0.0)
    rank, penalty = ("auto", "sum") if way == "auto" else (3, "product")
    model = kb.BilinearSoftmaxRegression(10, rank, alpha=1e-4, penalty=penalty, input_shape=(8, 8))
    model.compile(optimizers.get(way, exact), jit_compile=False)
    begun = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: print(epoch, flush=True))
    judge = kb.callbacks.BlockConvergence(rtol=0.0, block_rtol=1e-3)
    checkpoint = kb.callbacks.Checkpoint(folder / "fit", delete_checkpoint=False)
    print("ready", flush=True)
    batch_size = 64 if way == "adam" else None  # shuffled
    model.fit(x, y, epochs=EPOCHS, batch_size=batch_size, verbose=0, callbacks=[begun, checkpoint, judge])
    state = [np.asarray(variable) for variable in [*model.variables, *model.optimizer.variables]]
    digest = hashlib.sha256(b"".join(array.tobytes() for array in state)).hexdigest()
    (folder / "result.new").write_text(digest)
    (folder / "result.new").replace(folder / "result")


def wait_to_kill(child: subprocess.Popen, folder: pathlib.Path, dice: random.Random) -> None:
    """Sleeps until some moment of the fit; most are within a save or right after it."""
    kind, saves, file = dice.choice(("any", "saving", "saving", "saved")), dice.randint(1, 12), folder / "fit"
    if kind == "any":
        time.sleep(dice.uniform(0, 3))  # restoring, tracing, solving, saving
        return
    seen = file.stat().st_ino if file.exists() else 0
    while child.poll() is None:
        now = file.stat().st_ino if file.exists() else 0
        saves, seen = saves - (now != seen), now
        if saves <= 0 and (kind == "saved" or any(folder.glob(".*.tmp"))):
            time.sleep(dice.choice((0, 0, dice.uniform(0, 0.02))) if kind == "saving" else 0)
            return
        time.sleep(5e-5)


def start(way: str, folder: pathlib.Path) -> subprocess.Popen:
    """A process that is about to fit."""
    command = [sys.executable, __file__, "--child", way, str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def try_out(way: str, kills: int, expected: str, dice: random.Random) -> tuple[int, int, int, int, int]:
    """Kills, how many of them while a file was written, fits lost, fits, and those not bit-equal."""
    killed = writing = lost = fits = unequal = 0
    while killed < kills:
        with tempfile.TemporaryDirectory() as name:
            folder, reached, leftovers = pathlib.Path(name), 0, set[pathlib.Path]()
            while not (folder / "result").exists():
                child = start(way, folder)
                if killed < kills:
                    wait_to_kill(child, folder, dice)
                    child.kill()
                begun = [int(line) for line in child.communicate()[0].splitlines(keepends=True) if line[-1] == "\n"]
                before, leftovers = leftovers, set(folder.glob(".*.tmp"))
                killed, writing = killed + (child.returncode < 0), writing + bool(leftovers - before)
                # An epoch begins after the one before it was saved.
                if child.returncode > 0 or (begun and begun[0] < reached):
                    lost += 1
                    print(f"{way}: begins at {begun[:1]} after {reached}, status {child.returncode}", flush=True)
                    break
                reached = max([reached, *begun])
            else:
                fits, unequal = fits + 1, unequal + ((folder / "result").read_text() != expected)
    return killed, writing, lost, fits, unequal


def main() -> None:
    """Kills every way to fit in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=52, help="in all, the same number for every way to fit")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        fit(arguments.child[0], pathlib.Path(arguments.child[1]))
        return
    dice, failures = random.Random(arguments.seed), 0
    print("way     kills  while writing  lost  fits  not bit-equal")
    for way in WAYS:
        with tempfile.TemporaryDirectory() as name:
            start(way, pathlib.Path(name)).communicate()
            expected = (pathlib.Path(name) / "result").read_text()
        killed, writing, lost, fits, unequal = try_out(way, -(-arguments.kills // len(WAYS)), expected, dice)
        failures += lost + unequal
        print(f"{way:6}  {killed:5}  {writing:13}  {lost:4}  {fits:4}  {unequal:13}", flush=True)
    sys.exit(int(failures > 0))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
