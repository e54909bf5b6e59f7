"""Sends the audit to a receiver of syslog, seal by seal. What it has is kept in the database, so nothing is left out while it is away.

At least once: after a failure the seals of that run are sent again; every entry carries its id.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from logging.handlers import SysLogHandler

import structlog
from django.db.models import Q

from fleet.control.audit_chain import Bounds, rows_of
from fleet.control.audit_export import FACILITY, Message, entry_message, seal_message
from fleet.control.audit_receiver import Receiver, read_address
from fleet.models import AuditSeal, AuditStream

LONGEST_DATAGRAM = 8192
TIMEOUT_SECONDS = 10.0
CLAIM = timedelta(minutes=5)
SEALS = 20  # a run

log = structlog.get_logger(__name__)


class _Handler(SysLogHandler):
    """The standard library's, which says when it could not send, and does not wait for ever."""

    append_nul = False

    def createSocket(self) -> None:
        if self.socktype == socket.SOCK_STREAM and not isinstance(self.address, str):
            self.unixsocket = False
            self.socket = socket.create_connection(self.address, timeout=TIMEOUT_SECONDS)
        else:
            super().createSocket()

    def handleError(self, record: logging.LogRecord) -> None:
        raise


class _Sender:
    def __init__(self, handler: _Handler, *, ending: str) -> None:
        self._handler, self._ending = handler, ending

    def send(self, message: Message) -> None:
        self._handler.emit(
            logging.makeLogRecord({"levelno": message.level, "levelname": logging.getLevelName(message.level), "msg": message.text + self._ending})
        )


@contextmanager
def _connected(receiver: Receiver) -> Iterator[_Sender]:
    """Over TCP the receiver has read everything once the block has ended: it was told that no more comes, and closed the connection itself."""
    address: str | tuple[str, int] = receiver.path if receiver.scheme == "unix" else (receiver.host, receiver.port)
    handler = _Handler(address, facility=FACILITY, socktype=socket.SOCK_DGRAM if receiver.is_datagram else socket.SOCK_STREAM)
    try:
        yield _Sender(handler, ending="" if receiver.is_datagram else "\n")
        if not receiver.is_datagram:
            handler.socket.shutdown(socket.SHUT_WR)
            while handler.socket.recv(4096):
                continue
    finally:
        handler.close()


def send_new(*, address: str, now: datetime, most: int = SEALS) -> int:
    """Send the seals that this receiver lacks, each behind its entries; how many it took. 0 also while another sends, or the receiver is away."""
    receiver = read_address(address)
    AuditStream.objects.bulk_create([AuditStream(address=address)], ignore_conflicts=True)
    held = AuditStream.objects.filter(address=address)
    if not held.filter(Q(claimed_until__isnull=True) | Q(claimed_until__lt=now)).update(claimed_until=now + CLAIM):
        return 0
    state = held.get()
    sent = state.seal_number
    try:
        seals = list(AuditSeal.objects.filter(number__gt=state.seal_number).order_by("number")[:most])
        if seals:
            with _connected(receiver) as sender:
                for seal in seals:
                    _send(seal, sender, receiver)
            sent = seals[-1].number
        held.update(seal_number=sent, claimed_until=None, failing_since=None, failure="", **({"sent_at": now} if seals else {}))
    except OSError as error:
        log.warning("audit.receiver_away", address=address, error=str(error))
        held.update(claimed_until=None, failing_since=state.failing_since or now, failure=str(error)[:300])
    return sent - state.seal_number


def _send(seal: AuditSeal, sender: _Sender, receiver: Receiver) -> None:
    longest = LONGEST_DATAGRAM if receiver.is_datagram else None
    end = AuditSeal.objects.filter(number__gte=seal.number, until_id__isnull=False).order_by("number").values_list("until_id", flat=True).first()
    for row in rows_of(Bounds.of(seal).entries(end)):
        sender.send(entry_message(row, longest=longest))
    sender.send(seal_message(seal))
