"""A rank whose exchanges connect as NCCL's do: the first tensor to another rank waits until that rank receives it."""

import sys

import torch

from gradus.assembly.rank import main
from gradus.parallel.group import Group

ASKED, ANSWERED = 98, 99  # tags of gloo's messages; tensors have 0


def connect_late() -> None:
    """Make the first exchange between two ranks of a group wait for both of them, in this process."""
    send, receive = Group.send, Group.receive

    def sending(self, x, rank):
        if not_met(self, rank):
            self._exchange.send([torch.zeros(1)], rank, ASKED).wait()
            self._exchange.recv([torch.zeros(1)], rank, ANSWERED).wait()
        return send(self, x, rank)

    def receiving(self, like, rank):
        if not_met(self, rank):
            self._exchange.recv([torch.zeros(1)], rank, ASKED).wait()
            self._exchange.send([torch.zeros(1)], rank, ANSWERED).wait()
        return receive(self, like, rank)

    Group.send, Group.receive = sending, receiving


def not_met(group: Group, rank: int) -> bool:
    """Whether this is the first exchange with that rank."""
    met = group.__dict__.setdefault("met", set())
    new = rank not in met
    met.add(rank)
    return new


if __name__ == "__main__":
    connect_late()
    sys.exit(main(int(sys.argv[1])))
