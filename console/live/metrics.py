"""Figures of the live socket for `/metrics`."""

from prometheus_client import Counter, Gauge

SOCKETS = Gauge("masthead_live_sockets", "Open live sockets of this process.")
TICKS = Counter("masthead_live_ticks_total", "Messages of frames handed to viewers.")
REFUSED = Counter("masthead_live_refused_handshakes_total", "Handshakes refused before any data.", ["reason"])
RESYNCS = Counter("masthead_live_resyncs_total", "Snapshots sent after a gap, by who noticed it.", ["by"])
INTERRUPTIONS = Counter("masthead_live_interruptions_total", "Times that a task of the live hub was interrupted and began anew.")
