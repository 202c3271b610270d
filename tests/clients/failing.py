"""An engine that fails now and then, for clients that are to go on."""

from dataclasses import replace

from tests.server.saying import SayingCore


class FailingCore(SayingCore):
    """Its first `times` answers end with an error after a few tokens."""

    def __init__(self, say, times=1, **options):
        super().__init__(say, **options)
        self.times = times

    def _advance(self, sample):
        if len(sample.tokens) >= 6 and self.times > 0:
            self.times -= 1
            return replace(self._end(sample, (), "error"), stop_reason=None)
        return super()._advance(sample)
