"""Two workers fit one model together, on this machine; one is killed, both are started again, and nothing is lost.

    python examples/scale/replicas.py                                    # exact, one kill
    python examples/scale/replicas.py --kills 5 --optimizer adamw        # mini-batches, five

Prints J of each epoch beside that of a single process, what became of the other worker at each kill, and a hash of
all weights. Exits with 1 unless J agrees to 1e-6 in every epoch, and the hash is that of workers nobody has killed.
On machines of their own, each worker is started with the same TF_CONFIG but for its "index", and has the same data.
"""

import argparse
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

EPOCHS, BATCH, PATIENCE = 10, 100, 60


def work(optimizer: str, folder: Path) -> None:
    """A worker, or the only process: fits, and tells J of each epoch and the hash."""
    import keras
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    import keras_bilinear as kb

    several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()
    x, y = load_digits().images / 16, load_digits().target
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    with strategy.scope():
        model = kb.BilinearSoftmaxRegression(10, rank=3, alpha=1e-3, input_shape=(8, 8), seed=0)
        model.compile(keras.optimizers.AdamW(0.02) if optimizer == "adamw" else kb.BlockLineSearch())
    tell = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: print("epoch", epoch + 1, float(logs["J"]).hex(), flush=True)
    )
    checkpoint = kb.callbacks.Checkpoint(folder / "fit", delete_checkpoint=False)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[tell, checkpoint])
    digest = hashlib.sha256(b"".join(np.asarray(variable).tobytes() for variable in model.trainable_variables))
    print("hash", digest.hexdigest(), flush=True)


class Told(NamedTuple):
    """What a process has told.

    Fields:
        J: By the number of the epoch.
        digest: Of the weights it ended with, or "" if it did not come so far.
    """

    J: dict[int, float]
    digest: str


def told(log: Path) -> Told:
    """What is in its log so far."""
    lines = [line.split() for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    J = {int(words[1]): float.fromhex(words[2]) for words in lines if words[:1] == ["epoch"]}
    return Told(J, next((words[1] for words in lines if words[:1] == ["hash"]), ""))


def start(optimizer: str, folder: Path, logs: list[Path]) -> list[subprocess.Popen]:
    """As many processes as there are logs, which work together if they are several."""
    children = []
    for config, log in zip(configurations(len(logs)), logs, strict=True):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        environment |= {"TF_CONFIG": config} if len(logs) > 1 else {}
        command = [sys.executable, __file__, "--optimizer", optimizer, "--work", str(folder)]
        with log.open("w") as out:
            children.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment))
    return children


def configurations(workers: int) -> list[str]:
    """The TF_CONFIG of each of some workers on this machine."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(workers)]}
    tasks = [{"type": "worker", "index": index} for index in range(workers)]
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens to."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run(optimizer: str, folder: Path, workers: int) -> list[Told]:
    """Processes that nobody kills."""
    logs = [folder / f"{index}.log" for index in range(workers)]
    for child in start(optimizer, folder, logs):
        child.wait()
    found = [told(log) for log in logs]
    if not all(each.digest for each in found):
        sys.exit(f"A process has failed:\n{logs[0].read_text()[-3000:]}")
    return found


def kill_one(optimizer: str, folder: Path, dice: random.Random) -> tuple[int, float, int | None, dict[int, float]]:
    """Kills one of two workers after some epoch: which, how long the other went on, its status, and J so far."""
    logs = [folder / f"{index}.log" for index in range(2)]
    children, victim, epochs = start(optimizer, folder, logs), dice.randrange(2), dice.randint(1, 2)
    while len(told(logs[0]).J) < epochs and children[0].poll() is None:
        time.sleep(0.01)
    time.sleep(dice.uniform(0, 0.1))
    children[victim].kill()
    killed, other = time.perf_counter(), children[1 - victim]
    try:
        status = other.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        status = None
        other.kill()
    children[victim].wait()
    return victim, time.perf_counter() - killed, status, told(logs[0]).J


def main() -> None:
    """One process, two workers, and two workers of which one is killed now and then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--optimizer", choices=("exact", "adamw"), default="exact")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.optimizer, args.work)
        return
    dice, seen, sound = random.Random(args.seed), list[dict[int, float]](), True
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / each for each in ("alone", "two", "killed")]
        for folder in folders:
            folder.mkdir()
        (alone,) = run(args.optimizer, folders[0], 1)
        two = run(args.optimizer, folders[1], 2)
        for number in range(1, args.kills + 1):
            victim, seconds, status, J = kill_one(args.optimizer, folders[2], dice)
            print(f"kill {number}: worker {victim} after epoch {max(J, default=0)}; the other ended after "
                  f"{seconds:.1f} s with status {status}", flush=True)  # fmt: skip
            seen, sound = [*seen, J], sound and status not in (0, None)
        ends = run(args.optimizer, folders[2], 2)
    print("epoch  J of one process   of two workers   with kills")
    for epoch in alone.J:
        others = {J[epoch] for J in [*seen, *(end.J for end in ends)] if epoch in J}
        print(f"{epoch:5}  {alone.J[epoch]:.9f}  {two[0].J[epoch]:15.9f}  {', '.join(f'{J:.9f}' for J in others)}")
        sound = sound and abs(two[0].J[epoch] / alone.J[epoch] - 1) <= 1e-6 and others <= {two[0].J[epoch]}
    digests = {each.digest for each in [*two, *ends]}
    print(
        f"hash of all weights: {', '.join(digests)}\n{'nothing was lost' if sound and len(digests) == 1 else 'NO'}"
    )
    sys.exit(int(not sound or len(digests) > 1))


if __name__ == "__main__":
    main()
