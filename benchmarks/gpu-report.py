"""Prints what gpu-trainer.sh measured as Markdown.

    gpu-report.py FOLDER
"""

import collections
import json
import pathlib
import statistics
import sys

VOLLEY = "Volley"
PRECISIONS = ["f32", "tf32", "bf16"]
PEERS = {
    "eager": "PyTorch, eager",
    "compile": "PyTorch, torch.compile",
    "graph": "PyTorch, the step as one CUDA graph",
}


def cases(folder):
    """Every line that is an answer; a part that was ended may have half a line."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                case = json.loads(line)
            except ValueError:
                continue
            if "error" in case:
                print(f"{path.stem} failed: {case['error']}\n")
            else:
                yield case


def chosen(line):
    """Whether a line of volley-train's log says what computes instead of a plan."""
    return " WARN " in line or "train::choose" in line


def table(heads, rows):
    for row in [heads, ["---"] * len(heads), *rows]:
        print("|", " | ".join(row), "|")
    print()


def number(value):
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def spread(samples):
    return f"{number(statistics.median(samples))} ({number(min(samples))} to {number(max(samples))})"


def main():
    folder = pathlib.Path(sys.argv[1])
    all_cases = list(cases(folder))
    print("# The trainer on one GPU\n")
    for name in ("machine.txt", "parts.txt"):
        if (folder / name).exists():
            print((folder / name).read_text().strip().replace("\n", "; ") + ".\n")

    # A network that no plan computes is Burn's or the CPU's.
    for path in sorted(folder.glob("*.log")):
        said = path.read_text().splitlines()
        for line in dict.fromkeys(line[line.index(" "):].strip() for line in said if chosen(line)):
            print(f"{path.stem}: {line}\n")

    # Milliseconds a step of each measured epoch, by batch, precision and system.
    measured = collections.defaultdict(dict)
    for case in all_cases:
        if "rows_per_second" in case and case.get("network", "rossmann") == "rossmann":
            ms = [1e3 * case["batch"] / speed for speed in case["rows_per_second"]]
            at = case["batch"], PRECISIONS.index(case["precision"])
            measured[at][case["system"]] = ms, case["losses"][-1]
    print("Milliseconds a step (least to greatest epoch), and how many times as fast Volley is.\n")
    systems = [VOLLEY, *PEERS.values()]
    rows = []
    for (batch, precision), of in sorted(measured.items()):
        row = [str(batch), PRECISIONS[precision], *(spread(of[s][0]) if s in of else "" for s in systems)]
        for peer in PEERS.values():
            both = VOLLEY in of and peer in of
            medians = [statistics.median(of[s][0]) for s in (peer, VOLLEY)] if both else []
            row.append(f"{medians[0] / medians[1]:.2f}×" if both else "")
        losses = {name: loss for name, (_, loss) in of.items()}
        row.append(", ".join(f"{losses[s]:.4f}" if s in losses else "-" for s in systems))
        rows.append(row)
    ratios = [f"times {form}" for form in PEERS]
    table(["batch", "products", *systems, *ratios, "losses of the last epoch"], rows)

    rows = [
        [case["network"], case["device"], case["precision"], str(case["batch"]), spread(ms)]
        for case in all_cases
        if (ms := case.get("ms_per_step")) and case["network"] != "rossmann"
    ]
    if rows:
        table(["network", "device", "products", "batch", "ms a step"], rows)

    rows = [
        [
            str(case["batch"]),
            case["precision"],
            ", ".join(f"{loss:.6f}" for loss in case["compared_losses"]),
            ", ".join(f"{loss:.6f}" for loss in case["cpu_losses"]),
            f"{100 * case['apart']:.4f} %",
        ]
        for case in all_cases
        if "apart" in case
    ]
    if rows:
        print("Losses of each epoch, and of its rows by the last weights, from the same seed.\n")
        table(["batch", "products", "on the GPU", "on the CPU, f32", "apart at most"], rows)

    busy = {path.stem: path.read_text().split() for path in sorted(folder.glob("*.busy"))}
    rows = [
        [name, number(statistics.median(shares)), number(statistics.mean(shares))]
        for name, samples in busy.items()
        if (shares := [float(sample) for sample in samples if sample.isdigit()])
    ]
    if rows:
        print("How busy the GPU is, in percent, over a whole part: starts and loading are in it.\n")
        table(["part", "median", "mean"], rows)


if __name__ == "__main__":
    main()
