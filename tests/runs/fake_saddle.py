"""A stand-in for `symmetric_start.py`: writes its lines and its row at once."""

import sys
from pathlib import Path

flags = dict(word.removeprefix("--").split("=") for word in sys.argv[1:])
arm, seed, updates = flags["arms"], flags["seeds"], int(flags["updates"])
print(f"saddle {arm} seed {seed}: update {updates} of {updates}, loss 0.5")
if arm == "run":
    sys.exit("the time did not suffice")
table = Path(flags["workdir"]) / "runs.csv"
row = f"symmetric,{arm},0.0,{seed},,,0.5,{updates}\n"
with open(table, "a") as file:
    if not file.tell():
        row = (
            "program,arm,delta,seed,separated_at,unequal_at,final_loss,updates\n" + row
        )
    file.write(row)
