"""A replica's port answers requests that were admitted, each once, and says when one has ended."""

import asyncio

from gradus.deploy.front import TICKET
from gradus.deploy.replica import Tickets

HASHES = (1, 2)


async def asked(tickets, ticket, path="/generate"):
    """Send a request with a ticket. Returns the status."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"host", b"here"), (TICKET, ticket.encode())]}
    await tickets(scope, None, send)
    return sent[0]["status"]


def answering(status):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})

    return app


def test_a_ticket_admits_one_request_and_no_other():
    async def run():
        served = []
        tickets = Tickets(answering(200), served.append)
        assert await asked(tickets, "") == 403 and await asked(tickets, "guessed") == 403
        with tickets.new(HASHES) as (ticket, request):
            assert not request.begun.is_set()
            assert await asked(tickets, ticket) == 200
            assert request.begun.is_set() and request.ended.is_set() and served == [HASHES]
            assert await asked(tickets, ticket) == 403
        with tickets.new(HASHES) as (ticket, _):
            pass
        assert await asked(tickets, ticket) == 403, "the admission was given up"

    asyncio.run(run())


def test_a_prompt_that_was_refused_is_not_published():
    async def run():
        served = []
        tickets = Tickets(answering(400), served.append)
        with tickets.new(HASHES) as (ticket, _):
            assert await asked(tickets, ticket) == 400
        assert not served

    asyncio.run(run())


def test_a_request_that_fails_has_ended_too():
    async def fails(scope, receive, send):
        raise OSError

    async def run():
        tickets = Tickets(fails, lambda hashes: None)
        with tickets.new(HASHES) as (ticket, request):
            try:
                await asked(tickets, ticket)
            except OSError:
                assert request.ended.is_set()

    asyncio.run(run())
