"""A rank whose first step never ends."""

import json
import socket
import sys
import threading
import time
from pathlib import Path

from gradus.assembly.rank import live
from gradus.parallel.messages import READY, Channel

channel = Channel(socket.socket(fileno=int(sys.argv[1])))
job = json.loads(channel.receive() or b"")
channel.send(READY)
threading.Thread(target=live, args=(channel.send, Path(job["path"]).parent), daemon=True).start()
time.sleep(60)
