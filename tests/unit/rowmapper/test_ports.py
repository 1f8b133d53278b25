"""What the row mapper asks of Kafka and the registry, and waits for."""

from concurrent.futures import Future

from millrace.rowmapper.ports import Ports


class LateFuture(Future):
    """Has its result just after a wait for it was given up."""

    def result(self, timeout=None):
        if timeout is not None and not self.done():
            self.set_result(7)
            raise TimeoutError
        return super().result(timeout)


class LatePool:
    def __init__(self):
        self.future = LateFuture()

    def submit(self, *_):
        return self.future


def test_an_answer_that_comes_just_after_a_wait_for_it_was_given_up():
    pool = LatePool()

    def tick():
        if not pool.future.done():
            pool.future.set_result(7)

    ports = Ports(None, None, None, pool, None, {}, tick)
    assert ports.register([("subject", {})]) == [7]
