"""Read many streamed answers at once, in a process that does nothing else: for serving_lesson.py.

    python3 benchmarks/lessons/stream_client.py PORT STREAMS PROMPT_TOKENS MAX_TOKENS

Prints a JSON list: for each stream the time of sending, and the time of each token, in seconds.
"""

import asyncio
import json
import sys
import time


async def read_all(port: int, streams: int, prompt: int, tokens: int) -> list[list[float]]:
    return await asyncio.gather(*(read_one(port, [number + 1] * prompt, tokens) for number in range(streams)))


async def read_one(port: int, prompt: list[int], tokens: int) -> list[float]:
    """Send a request, and note the times. A frame may bring several tokens."""
    body = json.dumps({"prompt": prompt, "stream": True, "max_tokens": tokens}).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times = [time.perf_counter()]
    writer.write(head.encode() + body)
    async for line in reader:
        if line.startswith(b"data: {"):
            now = time.perf_counter()
            times += [now] * len(json.loads(line.removeprefix(b"data: "))["token_ids"])
    writer.close()
    return times


if __name__ == "__main__":
    print(json.dumps(asyncio.run(read_all(*map(int, sys.argv[1:])))))
