"""Tables of the documents and two figures, functions of records."""

import itertools
from collections.abc import Mapping

import pandas as pd
from scipy import stats

from prednet_jax.records.verdict import Record, Verdict
from prednet_jax.report import charts
from prednet_jax.report.numbers import MISSING
from prednet_jax.report.tables import Cell, markdown
from prednet_jax.report.verdict_text import text_row
from prednet_jax.saddles import curvature_probe

#: What a noise may cost on any network: of the clean step's time, and of its time to
#: trace and compile. Set before it was measured.
WANTED = {
    "reduction_order:granularity=tile": (1.8, 3.0),
    "reduction_order:granularity=element": (2.5, 4.0),
    "ulp": (1.5, 4.0),
}
GPUS = ("gtx1080", "rtx2080ti", "h100")
#: What a line varies by, worst first, as `noise.audit` has it: colour and words.
VARIES = {
    "call": (charts.ROLES["stale"], "from call to call"),
    "compilation": (charts.ROLES["gaussian"], "from compilation to compilation"),
    "device": (charts.ROLES["descriptive"], "from device to device"),
    "no": (charts.FAINT, "by nothing"),
}

_WALK_C = [f"walk-c-{seed}" for seed in range(1, 5)]
#: Lines of docs/learned.svg: trainings, or several that went on from one another.
LEARNED = {
    "walks": {
        "16 recurrent channels below (5 seeds)": ["walk-c-0 walk-f-0", *_WALK_C],
        "3, as published (5 seeds)": [f"walk-b-{seed}" for seed in range(5)],
        "16, the form lotter": ["lotter-c lotter-d"],
        "ConvLSTM, patches of 2x2": ["convlstm-b"],
        "ConvLSTM, patches of 4x4": ["convlstm"],
    },
    "moving digits": {
        "16 recurrent channels below": ["digits-d digits-f digits-g"],
        "1, as published": ["digits-a"],
        "1, with more channels above": ["digits-c"],
    },
}


def comparison(record: Record) -> str:
    """Tabulates the contrasts of a verdict.json and the verdict of each network."""
    head = ["network", "arm", "n", "mean loss", "difference [95 %]", "p (Holm)"]
    head += ["p (equivalence)", "finding", "same bits"]
    rows: list[tuple[str, ...]] = []
    verdict = Verdict.from_json(record)
    for model, word in verdict.verdict.items():
        rows += [(model, *text_row(contrast)) for contrast in verdict.of_model(model)]
        asked = f"**{model}**", "**does noise help?**"
        rows.append((*asked, *[""] * 5, f"**{word}**", ""))
    return markdown(pd.DataFrame(rows, columns=head))


def saddles(record: Record) -> str:
    """Tabulates runs that did not pass all saddles (`experiments/saddle_escape.py`)."""
    frame = pd.DataFrame(record["groups"])
    names = ["function", "optimizer", "precision", "form"]
    shown = frame[names].replace("_", " ", regex=True)
    shown["noise"] = [n if n == "none" else f"`{n}`" for n in frame.noise]
    shown["not past all"] = [f"{a.count(False)} of {len(a)}" for a in frame.arrived]
    return _with_command(markdown(shown), record)


def curvature(record: Record) -> str:
    """Tabulates curvature along a training, from `experiments/probe_curvature.py`."""
    table = markdown(pd.json_normalize(record["rows"]), curvature_probe.COLUMNS)
    return _with_command(table, record)


def _with_command(table: str, record: Record) -> str:
    return f"{table}\n\n```\n{record['command']}\n```"


def gpu_programs(record: Record) -> str:
    """Tabulates how each program of `experiments/gpu.py` runs on each GPU.

    The time is by the card's figures: the longer of bytes that XLA's own kernels move
    over its bandwidth and operations over its peak; the body of a loop counts once.
    """

    def count(entries: Record, part: str) -> int:
        return sum(n for name, n in entries.items() if part in name)

    rows = []
    for row in record["rows"]:
        card = record["cards"][row["gpu"]]
        changed = [
            f"{name}={row[name]}"
            for name, value in record["base"].items()
            if row[name] not in (value, "") and name != "model"
        ]
        memory = sum(row["memory"].values())
        times = row["bytes"] / card["bandwidth"], row["flops"] / card["operations"]
        rows.append(
            {
                "network": row["model"],
                "changed": ", ".join(changed) or MISSING,
                "gpu": row["gpu"],
                "varies by": row["varies"],
                "kernels and calls": row["kernels"],
                "of cuDNN": count(row["calls"], "cudnn"),
                "of cuBLAS": count(row["calls"], "cublas"),
                "atomics": count(row["entries"], "atomic"),
                "TF32": count(row["entries"], "reduced_precision"),
                "MiB": f"{memory / 2**20:.1f}",
                "of the card": f"{memory / card['memory']:.2%}",
                "ms by figures": f"{float(f'{1000 * max(times):.2g}'):g}",
            }
        )
    return markdown(pd.DataFrame(rows))


def gpu_lines(record: Record) -> bytes:
    """Tabulates the lines of both base programs, a column for each of `GPUS`."""
    colours, words = zip(*VARIES.values(), strict=True)
    encoding = {
        "x": charts.names("gpu", axis={"orient": "top", "labelAngle": 0}),
        "y": charts.names("line"),
        "color": charts.names(
            "varies",
            scale={"domain": list(words), "range": list(colours)},
            legend={"title": "varies", "columns": 2, "symbolType": "square"},
        ),
    }
    drawn = []
    autoencoder = {"model": "autoencoder", "variant": "", "size": ""}
    for program in (record["base"], {**record["base"], **autoencoder}):
        lines = {
            row["gpu"]: row["lines"]
            for row in record["rows"]
            if row["gpu"] in GPUS and all(row[k] == v for k, v in program.items())
        }
        values = [
            {"line": line or "no line known", "gpu": gpu, "varies": VARIES[varies][1]}
            for gpu in GPUS
            for line, varies in lines[gpu].items()
        ]
        mark = charts.layer("rect", encoding, data=values, stroke="white")
        drawn.append({**mark, "title": program["model"], "width": {"step": 90}})
    return charts.svg(
        {"vconcat": drawn},
        "Lines of the training steps of PredNet and of the autoencoder, coloured by "
        "what a GPU varies there: only convolutions and their gradients vary from call "
        "to call.",
    )


def gpu_steps(record: Record) -> str:
    """Compares a training step's milliseconds on a GPU with PyTorch's (docs/gpu.md)."""
    rows = [
        {"size": row["size"], "window": row["window"]}
        | {name: f"{1000 * seconds:.3g}" for name, seconds in row["seconds"].items()}
        for row in record["rows"]
    ]
    return markdown(pd.DataFrame(rows).fillna(MISSING))


def gpu_windows(record: Record) -> str:
    """Returns milliseconds of windows on a GPU, by size, batch and precision.

    For each program the fastest measured way to compile it is shown; `limit` is the
    time that the card's figures allow (`benchmarks.gpu_steps`).
    """
    names = {"im2col": "products", "xla": "cuDNN", "torch": "PyTorch"}
    rows: dict[tuple, dict[str, str]] = {}
    for row in sorted(record["rows"], key=lambda row: -row["seconds"]):
        if row["noise"] != "none":
            continue
        place = row["size"], row["batch"], row["precision"]
        cells = rows.setdefault(place, {"limit": f"{1000 * row['limit_seconds']:.2g}"})
        name = names[row["convolution"]]
        if name == "products":
            name += f", {row['frames_per_iteration']} a loop"
        cells[name] = f"{1000 * row['seconds']:.3g}"
    columns = ["products, 1 a loop", "products, 10 a loop", "cuDNN", "PyTorch", "limit"]
    order = list(dict.fromkeys((r["size"], r["batch"]) for r in record["rows"]))
    order.sort(key=lambda place: (int(place[0].split("x")[0]), place[1]))
    precisions = ("float32", "tf32", "bfloat16")
    table = [
        {"size": size, "batch": batch, "precision": precision}
        | {name: rows[size, batch, precision].get(name, MISSING) for name in columns}
        for size, batch in order
        for precision in precisions
        if (size, batch, precision) in rows
    ]
    return markdown(pd.DataFrame(table))


def gpu_sums(record: Record) -> str:
    """Tabulates what varies on `GPUS`, by primitive that sums (docs/noise.md)."""
    rows = []
    for name, primitives in record[GPUS[0]].items():
        row = {"function": name, "primitive": ", ".join(primitives)}
        for gpu in GPUS:
            row[gpu] = ", ".join(itertools.chain(*record[gpu][name].values()))
        rows.append(row)
    return markdown(pd.DataFrame(rows).replace("", MISSING))


def learned(networks: Mapping[str, Record]) -> str:
    """Tabulates the package's frozen networks by split: errors over copying's errors.

    Copying's PSNR and SSIM are in brackets.
    """
    rows = []
    for name, about in networks.items():
        for split, score in about["scores"].items():
            row = {"network": f"`{name}`", "split": split}
            found = score.get("observed")
            row["squared error"] = f"{(found or score)['ratio']:.2f}"
            if found:
                row["absolute error"] = f"{found['mae'] / found['copy_mae']:.2f}"
                row["PSNR"] = f"{found['psnr']:.1f} ({found['copy_psnr']:.1f})"
                row["SSIM"] = f"{found['ssim']:.3f} ({found['copy_ssim']:.3f})"
            rows.append(row)
    return markdown(pd.DataFrame(rows).fillna(MISSING))


def rollout(test: Record, unseen: Record) -> str:
    """Tabulates errors of ten frames predicted after ten, per frame, by split."""
    rows = []
    for split, record in {"test": test, "unseen": unseen}.items():
        found = record["extrapolated"]
        for name, prefix in (
            ("`moving_digits`", ""),
            ("copying the last seen", "copy_"),
        ):
            row = {"predicted by": f"{name}, {split}"}
            row["MSE per frame"] = f"{found[f'{prefix}squared_error']:.2f}"
            row["MAE per frame"] = f"{found[f'{prefix}absolute_error']:.2f}"
            row["SSIM"] = f"{found[f'{prefix}ssim']:.3f}"
            rows.append(row)
    return markdown(pd.DataFrame(rows))


def learned_seeds(ratios: Mapping[str, Mapping[str, float]]) -> str:
    """Tabulates the scored trainings: MSE divided by copying's MSE, by split.

    If there may be several seeds, a name ends in its seed. Then the mean is shown, with
    Student's 95 % interval.
    """
    splits = ["validation", "test", "unseen"]
    frame = pd.DataFrame.from_dict(dict(ratios), orient="index")[splits]
    rows = []
    for name, seeds in frame.groupby(frame.index.str.replace(r"-\d$", "", regex=True)):
        row = {"network": name, "seeds": str(len(seeds))}
        for split in splits:
            row[split] = f"{(mean := seeds[split].mean()):.3f}"
            if len(seeds) > 1:
                half = seeds[split].sem() * stats.t.ppf(0.975, len(seeds) - 1)
                row[split] += f" [{mean - half:.3f}, {mean + half:.3f}]"
        rows.append(row)
    return markdown(pd.DataFrame(rows))


def learned_curves(validated: Mapping[str, list[Record]]) -> bytes:
    """Plots MSE over copying's MSE on `validation` along the trainings of `LEARNED`."""
    panels = []
    for data, lines in LEARNED.items():
        values = []
        for line, chains in lines.items():
            for chain in chains:
                before = 0
                for rows in (validated[name] for name in chain.split()):
                    for row in rows:
                        place = {
                            "update": before + row["update"],
                            "ratio": row["ratio"],
                        }
                        values.append({"line": line, "chain": chain, **place})
                    before += rows[-1]["update"]
        scale = {"type": "log", "domain": [0.15, 1.5], "nice": False, "clamp": True}
        ratio = charts.channel("ratio", "squared error over that of copying", **scale)
        ticks = [0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5]
        encoding = {
            "x": charts.channel("update", "update") | {"axis": {"tickCount": 5}},
            "y": ratio | {"axis": {"values": ticks}},
            "color": charts.names("line", legend={"columns": 1}),
            "detail": charts.names("chain"),
        }
        mark = charts.layer("line", encoding, data=values, strokeWidth=1.5)
        panels.append(mark | {"title": data, "width": 330, "height": 260})
    return charts.svg(
        {"hconcat": panels, "resolve": {"scale": {"color": "independent"}}},
        "Error of frozen weights on validation over that of copying, along trainings: "
        "lowest with 16 recurrent channels in the bottom layer, trained longest.",
    )


def foreign_cost(default: Record, tuned: Record) -> str:
    """Tabulates the cost of noise on other networks and its limit; bold if exceeded.

    The records come from `benchmark.py --suite=foreign` with the default and with tuned
    XLA flags.
    """

    def ratio(name: str, wanted: str) -> Cell:
        def cell(row: Record) -> str:
            said = f"{row[name]:.2f}"
            return said if float(said) <= row[wanted] else f"**{said}**"

        return cell

    frames = {
        flags: pd.DataFrame(record["rows"]).set_index(["network", "noise"])
        for flags, record in (("default", default), ("tuned", tuned))
    }
    frame = pd.concat(frames, axis=1)
    frame.columns = [" ".join(name) for name in frame.columns]
    frame = frame.reset_index()
    cells: list[tuple[str, str | Cell]] = [
        ("network", "{network}"),
        ("noise", "`{noise}`"),
    ]
    measures = {"time": "time_ratio", "trace and compile": "compile_ratio"}
    for place, (what, name) in enumerate(measures.items()):
        frame[f"most {name}"] = [WANTED[noise][place] for noise in frame.noise]
        cells += [
            (f"{what}, {flags} flags", ratio(f"{flags} {name}", f"most {name}"))
            for flags in frames
        ]
        cells.append(("wanted", f"{{most {name}:g}}"))
    return markdown(frame, cells)


# The counts, by tool and part of its record: in words, and the target.
SCORES = {
    "explain": ("`explain`: constructed differences named rightly", "95%"),
    "closer": ("`explain(...).closer`: the nearer of two, as float64 says", "95%"),
    "localize": ("`localize`: planted lines found, and no other", "100%"),
    "first_difference.clean": ("`first_difference`: other order, no alarm", "100%"),
    "first_difference.faulty": ("`first_difference`: planted line first", "95%"),
    "invariance.bits": ("`invariance`: variants with the same bits, or not", "100%"),
    "invariance.rungs": ("`invariance`: `beyond` for mixed rows, and only then", "95%"),
    "invariance.lines": ("`invariance`: planted line first", "95%"),
}


def accuracy(record: Record) -> str:
    """Compares the tools' accuracy with the targets (docs/noise/accuracy.md)."""
    errors = [error for leaves in record["digits"].values() for error in leaves]
    programs = len(record["digits"])
    what = f"`digits` against float64: mean error of a leaf, {programs} programs"
    rows = [(what, "0.5 digits", f"{min(errors):.2f} to {max(errors):.2f} digits")]
    for failure, runs in pd.DataFrame(record["tolerance"]).groupby("failure"):
        excess = runs.excess[runs.excess > 0]
        what = f"`tolerance(failure={failure:g})`: fraction of 10,000 fresh runs "
        what += f"outside, mean of 4 keys; {len(runs)} programs and noises"
        found = f"{runs['mean'].mean():.1g}, worst {runs['mean'].max():.2g} (one key "
        found += f"{runs.worst.max():.2g}); the tolerance is {excess.min():.1f} to "
        found += (
            f"{excess.max():.1f} times (median {excess.median():.1f}) the furthest run"
        )
        rows.append((what, f"{failure:g}", found))
    # One of the kernels is not a mistake.
    words = {True: "caught", False: "passes"}
    rows += [
        (f"`assert_close` on a kernel with {name}", words[wanted], words[caught])
        for name, caught in record["kernels"].items()
        for wanted in [name != "another order"]
    ]
    for name, (what, share) in SCORES.items():
        tool, _, part = name.partition(".")
        score = record[tool][part] if part else record[tool]
        cases, wrong = score["cases"], len(score["wrong"])
        rows.append((what, share, f"{cases - wrong} of {cases}"))
    within = record["decisions"]
    what = "`decisions`: accuracies of fresh runs within what 16 draws said"
    rows.append((what, f"{within['wanted']:.2f}", f"{within['within']:.2f}"))
    return markdown(pd.DataFrame(rows, columns=["what", "wanted", "found"]))
