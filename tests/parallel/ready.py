"""A rank without a model: it is ready at once, and lives until rank 0 closes the stream."""

import json
import socket
import sys

from gradus.parallel.messages import READY, Channel

channel = Channel(socket.socket(fileno=int(sys.argv[1])))
json.loads(channel.receive() or b"")
channel.send(READY)
while channel.receive() is not None:
    pass
