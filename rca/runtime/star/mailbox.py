"""Gradients of one child of a ring, received while its parent computes."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import Tensor


class Mailbox:
    """Receives the gradients of a child in a thread: gloo says that a message is there only to who waits."""

    def __init__(self, child: int, like: Tensor) -> None:
        self.child = child
        self._messages: queue.Queue[Tensor | Exception] = queue.Queue()
        self._answered = threading.Semaphore(1)
        self._is_closed = False
        #: Whether the child has ended; known after `take`.
        self.has_ended = False
        self._sending: tuple[dist.Work | None, Tensor] | None = None
        self._like = like
        self._thread = threading.Thread(target=self._receive, name=f"child-{child}", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while True:
            # A child sends again only after an answer.
            self._answered.acquire()
            if self._is_closed:
                return
            message = torch.empty_like(self._like)
            try:
                dist.recv(message, src=self.child)
            except Exception as error:  # The ring goes on without a child that has ended.
                self._messages.put(error)
                return
            self._messages.put(message)

    @property
    def is_full(self) -> bool:
        """Whether a message has arrived."""
        return not self._messages.empty()

    def take(self, *, wait: bool = False) -> Tensor | None:
        """The message that has arrived, or the next one; None if there is none or the child has ended."""
        try:
            message = None if self.has_ended else self._messages.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(message, Exception):
            self.has_ended, message = True, None
        return message

    def answer(self, parameters: Tensor) -> None:
        """Send parameters without waiting: the child has received the previous ones, as it has sent since."""
        self._answered.release()
        # The thread learns that the child has ended, and so does the ring.
        with suppress(RuntimeError):
            self._sending = (dist.isend(parameters, dst=self.child), parameters)

    def close(self, parameters: Tensor) -> None:
        """Send the last answer and end the thread."""
        self._is_closed = True
        self.answer(parameters)
        if self._sending is not None and self._sending[0] is not None:
            with suppress(RuntimeError):
                self._sending[0].wait()
        self._thread.join()
