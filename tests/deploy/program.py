"""Replicas with the scripted engine, as a program: `python -m tests.deploy.program REPLICAS STEP_S MOST RUNNING`.

MOST: replicas under load, 0 for no autoscaling. RUNNING: requests that each runs at once.

It prints its address and serves until SIGTERM. A line on stdin deploys again, as a rolling update does, and is answered
with another line. The answers' text names the replica's process: "0@PID 1@PID …".
"""

import sys
import threading
from dataclasses import replace

from gradus.deploy import run
from gradus.server.config import ServerConfig
from tests.server.scripted import written

ENGINE = "ScriptedCore(slots={slots}, step_s={step}, piece=f'@{{os.getpid()}} ', context_length=65536)"


def redeploy(plan):
    for number, _ in enumerate(sys.stdin):
        from ray import serve  # which the main thread has imported by then

        changed = replace(plan, settings=replace(plan.settings, max_waiting=300 + number))
        serve.run(run.build(changed), name=run.NAME, route_prefix=None)
        print("deployed again", flush=True)


if __name__ == "__main__":
    replicas, step, most, running = sys.argv[1:]
    model = written(ENGINE.format(step=step, slots=running))
    settings = ServerConfig(model=model, port=0).replaced({"max_sequences": int(running)})
    plan = run.Plan(settings, int(replicas), int(most) or None, loader="tests.server.scripted")
    threading.Thread(target=redeploy, args=(plan,), daemon=True).start()
    sys.exit(run.deploy(plan))
