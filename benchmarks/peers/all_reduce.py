"""Sums arrays over processes with PyTorch's collectives over gloo.

    {"processes": n, "elements": n, "groups": n, "calls": calls in a group}
        → {"microseconds": the median of a call on rank 0}

Calls of a group follow one another on the same numbers, every result is checked at the end of a
group, and the first call of each is not counted: it also waits for ranks that still check.
"""

import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from protocol import serve


def measure(rank, world_size, elements, groups, calls):
    pattern = 1 + torch.arange(elements, dtype=torch.float32) % 7
    sums = world_size * (world_size + 1) / 2 * world_size ** (calls - 1) * pattern
    durations = []
    for _ in range(groups):
        numbers = (rank + 1) * pattern
        for call in range(calls):
            start = time.perf_counter_ns()
            dist.all_reduce(numbers)
            if call > 0:
                durations.append((time.perf_counter_ns() - start) / 1000)
        if not torch.equal(numbers, sums):
            raise ValueError(f"rank {rank} has wrong sums of {elements} numbers")
    return statistics.median(durations)


def run_rank(rank, world_size, store, pipe):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        pipe.send(measure(rank, world_size, *question))


def start(world_size):
    context = mp.get_context("spawn")
    store = os.path.join(tempfile.mkdtemp(), "store")
    pipes = []
    for rank in range(world_size):
        here, there = context.Pipe()
        context.Process(target=run_rank, args=(rank, world_size, store, there), daemon=True).start()
        there.close()
        pipes.append(here)
    return pipes


def main():
    worlds = {}

    def answer(question):
        if question.get("versions"):
            return {"PyTorch": torch.__version__}
        processes = question["processes"]
        if processes not in worlds:
            worlds[processes] = start(processes)
        pipes = worlds[processes]
        for pipe in pipes:
            pipe.send((question["elements"], question["groups"], question["calls"]))
        return {"microseconds": [pipe.recv() for pipe in pipes][0]}

    serve(answer)


if __name__ == "__main__":
    main()
