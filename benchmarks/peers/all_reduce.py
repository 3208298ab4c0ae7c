"""Sums arrays over processes with PyTorch's collectives over gloo.

    {"processes": n, "hosts": [{"address": "10.0.0.2", "command": ["ssh", "10.0.0.2"]}, …],
     "elements": n, "groups": n, "calls": calls in a group}
        → {"microseconds": the median of a call on rank 0}

Hosts have as many ranks each, started by their commands; without hosts, all are on this one. Calls of a group follow one
another on the same numbers, every result is checked at the end of a group, and the first call of each is not counted: it
also waits for ranks that still check.
"""

import fcntl
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

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


def interface(address):
    """Returns the name of the network interface that has this address, as Linux tells it (SIOCGIFADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(any_socket, 0x8915, struct.pack("256s", name.encode()))
            except OSError:
                continue
            if socket.inet_ntoa(told[20:24]) == address:
                return name
    raise ValueError(f"no network interface has {address}")


def run_rank(rank, world_size, address, store):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface(address)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)

    def answer(question):
        return {"microseconds": measure(rank, world_size, question["elements"], question["groups"], question["calls"])}

    serve(answer)


def start(world_size, hosts):
    store = os.path.join(tempfile.mkdtemp(), "store")
    ranks = []
    for rank in range(world_size):
        host = hosts[rank * len(hosts) // world_size]
        program = [sys.executable, os.path.abspath(__file__), str(rank), str(world_size), host["address"], store]
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(host["command"] + program, stdin=pipe, stdout=pipe, text=True))
    return ranks


def main():
    worlds = {}

    def answer(question):
        if question.get("versions"):
            return {"PyTorch": torch.__version__}
        processes = question["processes"]
        hosts = question["hosts"] or [{"address": "127.0.0.1", "command": []}]
        if processes not in worlds:
            worlds[processes] = start(processes, hosts)
        ranks = worlds[processes]
        for rank in ranks:
            rank.stdin.write(json.dumps(question) + "\n")
            rank.stdin.flush()
        answers = [json.loads(rank.stdout.readline()) for rank in ranks]
        return next((answer for answer in answers if "error" in answer), answers[0])

    serve(answer)


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case [rank, world_size, address, store]:
            run_rank(int(rank), int(world_size), address, store)
