"""Trains the Rossmann network with PyTorch, as one who knows it well would write it.

One rank trains in this process; more are processes of their own, in step through DDP over gloo.
Processes, tensors and compiled code stay from question to question; weights
start anew, so that every answer is about the same training.

    {"parquet": path, "rows": n, "batch": rows of one rank in one step, "ranks": n, "threads": of a rank}
        → {"seconds": of the second epoch, "rows": of the second epoch, "loss": its mean}

`--tuned-malloc` has glibc keep freed memory and use huge pages; `--compile` compiles the network. It
computes on the CPU; training_gpu.py is its like for a GPU.
"""

import os
import sys
import tempfile
import time

TUNABLES = (
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592:"
    "glibc.malloc.top_pad=67108864:glibc.malloc.hugetlb=1"
)
if __name__ == "__main__" and "--tuned-malloc" in sys.argv:
    if os.environ.get("GLIBC_TUNABLES") != TUNABLES:
        # It is read when a process starts.
        os.environ["GLIBC_TUNABLES"] = TUNABLES
        os.execv(sys.executable, [sys.executable, *sys.argv])

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import rossmann_rows
from protocol import serve
from reference_network import KerasAdam, Network

EPOCHS = 2


class Rank:
    """One rank: its rows, its network, its part of every batch."""

    def __init__(self, rank, ranks, threads, compiles):
        self.rank, self.ranks, self.compiles = rank, ranks, compiles
        self.threads = threads
        self.rows, self.networks = {}, {}

    def load(self, parquet, rows):
        if (parquet, rows) not in self.rows:
            self.rows[parquet, rows] = rossmann_rows.read(parquet, rows)
        return self.rows[parquet, rows]

    def network(self, rows):
        """The network for these rows as it starts, and what is called to go forward."""
        key = (rows.table_rows, rows.output_scale)
        if key not in self.networks:
            torch.manual_seed(1)
            network = Network(rows.table_rows, rows.numbers.shape[1], rows.output_scale)
            forward = network
            if self.ranks > 1:
                # Batch norm's statistics stay each rank's own: sharing them costs a broadcast a step.
                forward = DistributedDataParallel(
                    network,
                    gradient_as_bucket_view=True,
                    broadcast_buffers=False,
                    static_graph=True,
                )
            if self.compiles:
                forward = torch.compile(forward, dynamic=False)
            start = {name: value.clone() for name, value in network.state_dict().items()}
            self.networks[key] = network, forward, start
        network, forward, start = self.networks[key]
        network.load_state_dict(start)
        return network.train(), forward

    def train(self, parquet, rows, batch):
        torch.set_num_threads(self.threads)
        rows = self.load(parquet, rows)
        network, forward = self.network(rows)
        optimizer = KerasAdam(network)
        generator = torch.Generator().manual_seed(1)
        share = batch * self.ranks
        for _ in range(EPOCHS):
            order = torch.randperm(len(rows), generator=generator)
            if self.ranks > 1:
                dist.barrier()
            total, seen = torch.zeros(()), 0
            start = time.perf_counter()
            for first in range(0, len(rows), share):
                places = order[first : first + share][self.rank :: self.ranks]
                labels = rows.labels[places]
                optimizer.zero_grad()
                predictions = forward(rows.codes[places], rows.numbers[places])
                loss = (predictions - labels).abs().mean()
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(places)
                seen += len(places)
            seconds = time.perf_counter() - start
        sums = torch.tensor([total.item(), seen], dtype=torch.float64)
        if self.ranks > 1:
            dist.all_reduce(sums)
        total, seen = sums.tolist()
        return {"seconds": seconds, "rows": seen, "loss": total / seen}


def run_rank(rank, ranks, threads, compiles, store, pipe):
    """A rank in a process of its own, which answers until the pipe is closed."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    this = Rank(rank, ranks, threads, compiles)
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        pipe.send(this.train(*question))


class Ranks:
    """Several ranks, each a process."""

    def __init__(self, ranks, threads, compiles):
        context = mp.get_context("spawn")
        store = os.path.join(tempfile.mkdtemp(), "store")
        self.pipes = []
        for rank in range(ranks):
            here, there = context.Pipe()
            args = (rank, ranks, threads, compiles, store, there)
            context.Process(target=run_rank, args=args, daemon=True).start()
            there.close()
            self.pipes.append(here)

    def train(self, *question):
        for pipe in self.pipes:
            pipe.send(question)
        return [pipe.recv() for pipe in self.pipes][0]


def main():
    compiles = "--compile" in sys.argv
    worlds = {}

    def answer(question):
        if question.get("versions"):
            return {"PyTorch": torch.__version__}
        shape = ranks, threads = question["ranks"], question["threads"]
        if shape not in worlds:
            alone = ranks == 1
            worlds[shape] = Rank(0, 1, threads, compiles) if alone else Ranks(ranks, threads, compiles)
        return worlds[shape].train(question["parquet"], question["rows"], question["batch"])

    serve(answer)


if __name__ == "__main__":
    main()
