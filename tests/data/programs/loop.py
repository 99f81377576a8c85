"""A training loop without a framework: steps and ranges by our helper, losses at full precision."""

import argparse
import json
import os
import random
import time

import perfgate

parser = argparse.ArgumentParser()
parser.add_argument("--racy", action="store_true", help="the last bits of the loss differ between runs")
parser.add_argument("--wait", action="store_true", help="never end")
options = parser.parse_args()

generator = random.Random(7)
log = os.path.join(os.environ["PERFGATE_METRICS_DIR"], "loss.jsonl")
print("mode", os.environ["PERFGATE_MODE"], "arm", os.environ["PERFGATE_ARM"], flush=True)  # noqa: T201
with open(log, "w") as file:
    for step in perfgate.steps(range(8), tokens=512):
        with perfgate.range("forward"):
            time.sleep(0.002)
        for _ in range(3):
            with perfgate.range("layer"):
                time.sleep(0.001)
        if options.wait:
            time.sleep(1000)
        loss = generator.random() + (random.random() * 1e-9 if options.racy else 0.0)
        file.write(json.dumps({"step": step, "loss": loss}) + "\n")
